"""The arms of ``bench decode``: how one text is decoded, and when each of its tokens arrived.

Nothing is recorded: our arms are the decode loop with a drafter (and the hooks that the drafter needs, no others),
the peers are transformers' own ``generate``. All say the same of themselves: a :class:`Decoded`.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer

from sotscope.bench.stats import Nobody
from sotscope.capture.plan import anatomy
from sotscope.capture.watch import StateWatch
from sotscope.config import DecodeConfig
from sotscope.decode.contracts import UNLIMITED, Drafter
from sotscope.decode.loop import Decoder
from sotscope.decode.sampling import Sampler
from sotscope.errors import DecodeError
from sotscope.events import Alarm, Step
from sotscope.models.load import Loaded
from sotscope.parts import PartsMaker

PEERS: dict[str, dict[str, Any]] = {"hf_generate": {}, "hf_prompt_lookup": {"prompt_lookup_num_tokens": 4}}
"""What is decoded beside our own loop: ``generate`` with these options."""

MakeDrafter = Callable[[Sequence[int]], Drafter]
"""Makes a drafter for the token ids of one prompt."""


@dataclass(frozen=True)
class Decoded:
    """What one arm made of one prompt. Tokens arrive in blocks: those of one step, all at once.

    ``ends[b]`` tokens had arrived after block b, ``at[b]`` seconds after the start. ``steps`` are those that chose
    tokens (ours only), one a block.
    """

    tokens: tuple[int, ...]
    ends: tuple[int, ...]
    at: tuple[float, ...]
    steps: tuple[Step, ...] = ()

    def when(self, count: int) -> float:
        """Seconds until ``count`` tokens had arrived."""
        return self.at[bisect_left(self.ends, count)]

    def last_end(self, limit: int) -> int:
        """The largest number of whole blocks' tokens that is not over ``limit``; 0 for none."""
        at = bisect_right(self.ends, limit)
        return self.ends[at - 1] if at else 0


Arm = Callable[[Sequence[int]], Decoded]


class Ours:
    """Our loop in one mode: greedy, policy exact. Call it with the ids of a prompt.

    Drafter and gates are made anew for each text, as for each ``record``: what they learnt elsewhere does not count.
    Raises DecodeError where the mode cannot be had for this model, or where its drafter fails.
    """

    def __init__(self, loaded: Loaded, mode: str, tokens: int, drafter: MakeDrafter | None = None) -> None:
        self._loaded = loaded
        self._settings = DecodeConfig(mode="ar" if drafter else mode, max_new_tokens=tokens, do_sample=False)
        self._drafter = drafter
        self._context_length = anatomy(loaded.model).context_length or UNLIMITED

    def __call__(self, ids: Sequence[int]) -> Decoded:
        model, tokenizer = self._loaded.model, self._loaded.tokenizer
        sampler = Sampler(model, len(ids), overrides=self._settings.overrides())
        given = self._drafter(ids) if self._drafter else None
        decoder = Decoder(
            model,
            None,
            sampler,
            sink=_Listener(),
            parts=PartsMaker(self._loaded, self._settings, drafter=given).parts(),
            watch=StateWatch(model),
            tokenizer=tokenizer,
            stop=sampler.stop,
            max_new_tokens=self._settings.max_new_tokens,
            context_length=self._context_length,
        )
        at, steps = [], []
        start = time.perf_counter()
        for step in decoder.run(ids):
            if step.mode != "prompt":
                at.append(time.perf_counter() - start)
                steps.append(step)
        tokens: list[int] = []
        ends = []
        for step in steps:
            tokens += step.next_ids
            ends.append(len(tokens))
        return Decoded(tuple(tokens), tuple(ends), tuple(at), tuple(steps))


class _Listener(Nobody):
    """Figures of a drafter that was switched off are not that drafter's, so an alarm ends the run."""

    def on_alarm(self, alarm: Alarm) -> None:
        raise DecodeError(f"{alarm.message}.")


class Peer:
    """transformers' ``generate`` with some options, greedy. Call it with the ids of a prompt."""

    def __init__(self, loaded: Loaded, tokens: int, options: dict[str, Any]) -> None:
        self._loaded = loaded
        self._options = {"do_sample": False, "max_new_tokens": tokens, **options}

    def __call__(self, ids: Sequence[int]) -> Decoded:
        model = self._loaded.model
        inputs = torch.tensor([list(ids)], device=model.device)
        stamps = _Stamps()
        with torch.inference_mode():
            model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                streamer=stamps,
                tokenizer=self._loaded.tokenizer,
                **self._options,
            )
        return Decoded(tuple(stamps.tokens), tuple(stamps.ends), tuple(stamps.at))


class _Stamps(BaseStreamer):
    """A streamer that notes when tokens come. What it is given first is the prompt, before the prefill."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ends: list[int] = []
        self.at: list[float] = []
        self._started = 0.0

    def put(self, value: torch.Tensor) -> None:
        if not self._started:
            self._started = time.perf_counter()
            return
        self.at.append(time.perf_counter() - self._started)
        self.tokens += value.flatten().tolist()
        self.ends.append(len(self.tokens))

    def end(self) -> None:
        return
