"""Is a mode's text that of `ar`? Identical, a numerical tie, or a real divergence, decided by decoding both.

Two matmul widths round differently, so where two tokens are equally likely a block of drafts may choose the other one.
That is a numerical tie; everything else that differs is a fault. Nothing is recorded.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sotscope.capture.plan import anatomy
from sotscope.capture.watch import StateWatch
from sotscope.config import DecodeConfig
from sotscope.decode.cache import CachedModel
from sotscope.decode.contracts import UNLIMITED, Drafter
from sotscope.decode.loop import Decoder
from sotscope.decode.sampling import Sampler
from sotscope.errors import DecodeError
from sotscope.events import Alarm, Command, Outcome, Step
from sotscope.models.load import Loaded
from sotscope.parts import PartsMaker

IDENTICAL, TIE, DIVERGENCE, INVALID = KINDS = ("identical", "tie", "divergence", "invalid")
"""What a comparison finds. `invalid`: the logits are not finite somewhere, or there was nothing to compare."""
WIDTHS = tuple(range(2, 9))
"""Widths that are tried where nobody says which blocks were fed."""
PREFILL = 256


@dataclass(frozen=True)
class Verdict:
    """What two continuations of one prompt have in common.

    ``index`` is the first new token that differs, ``margin`` how far apart the two likeliest tokens are there in the
    logits of a forward of one token, ``width_difference`` the largest difference between those logits and the same
    ones computed in blocks.
    """

    kind: str
    index: int | None = None
    margin: float = math.nan
    width_difference: float = math.nan


@torch.inference_mode()
def compare(
    model: Any,
    prompt_ids: Sequence[int],
    ours: Sequence[int],
    theirs: Sequence[int],
    *,
    steps: Sequence[Step] = (),
    sampler: Sampler | None = None,
) -> Verdict:
    """Compare two greedy continuations of ``prompt_ids``, token ids: ``ours`` of a mode, ``theirs`` of `ar`.

    ``steps`` are the mode's: its blocks are fed again as they were; without them blocks of 2 to 8 tokens are tried.
    ``sampler`` gives the processors that both were decoded with. A numerical tie is a first divergence where both
    tokens are within twice the ``width_difference`` of the likeliest one, or within the resolution of the dtype; a
    difference in more than half of the dtype's digits is no rounding, so it explains nothing.
    """
    prompt, ours, theirs = list(prompt_ids), list(ours), list(theirs)
    index = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    same = len(ours) == len(theirs) == index
    looked_at = index if same else min(index + 1, len(ours), len(theirs))
    if not looked_at or not _all_finite(model, prompt + ours[: looked_at - 1], looked_at):
        return Verdict(INVALID, index if not same else None)
    if same:
        return Verdict(IDENTICAL)
    if looked_at == index:  # one of them ended
        return Verdict(DIVERGENCE, index)
    prefix = prompt + ours[:index]

    def scores(blocks: Iterable[tuple[list[int], int]]) -> Tensor:
        logits = _replay(model, prompt, blocks)
        return logits.float() if sampler is None else sampler.scores(prefix, logits)

    narrow = scores(_blocks_of(prefix, len(prompt), 1))
    fed = [_fed(steps, len(prefix) - 1)] if steps else [_blocks_of(prefix, len(prompt), width) for width in WIDTHS]
    difference = max(_difference(scores(blocks), narrow) for blocks in fed)
    top = narrow.topk(2).values
    reach = float(top[0] - torch.minimum(narrow[ours[index]], narrow[theirs[index]]))
    tie = _is_tie(reach, difference, float(narrow[narrow.isfinite()].abs().max()), model.dtype)
    return Verdict(TIE if tie else DIVERGENCE, index, float(top[0] - top[1]), difference)


def _is_tie(reach: float, difference: float, largest: float, dtype: torch.dtype) -> bool:
    eps, scale = torch.finfo(dtype).eps, max(1.0, largest)
    return reach <= eps * scale or (reach <= 2 * difference and difference <= math.sqrt(eps) * scale)


def _difference(a: Tensor, b: Tensor) -> float:
    both = a.isfinite() & b.isfinite()
    return float((a - b)[both].abs().max()) if bool(both.any()) else math.inf


def _all_finite(model: Any, ids: list[int], rows: int) -> bool:
    """Whether the logits [token, vocab] of the last ``rows`` of ``ids`` are: one forward without a cache."""
    keeps = {"logits_to_keep": rows} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
    logits = model(torch.tensor([ids], device=model.device), use_cache=False, **keeps).logits[0, -rows:]
    return bool(logits.amax(-1).isfinite().all())


def _blocks_of(ids: list[int], prompt_length: int, width: int) -> list[tuple[list[int], int]]:
    """The ids from the last prompt token on in blocks of ``width``; the first one takes what is over."""
    fed = ids[prompt_length - 1 :]
    first = len(fed) % width
    starts = [*([0] if first else []), *range(first, len(fed), width)]
    parts = [fed[start : first if start < first else start + width] for start in starts]
    return [(part, len(part)) for part in parts]


def _fed(steps: Sequence[Step], last: int) -> list[tuple[list[int], int]]:
    """The blocks that ``steps`` fed, drafts and all, with how many of each to keep; row ``last`` is the last kept."""
    blocks = []
    for step in steps:
        if step.mode != "prompt" and step.reason != "last_row" and step.pos <= last:
            block = [step.token_ids[0], *(draft.token for draft in step.drafts)]
            blocks.append((block, min(step.rows, last - step.pos + 1)))
    return blocks


def _replay(model: Any, prompt: list[int], blocks: Iterable[tuple[list[int], int]]) -> Tensor:
    """Logits [vocab] of the last row that is kept, computed as the decode loop does."""
    cached = CachedModel(model)
    for _ in cached.prefill(prompt[:-1], PREFILL, all_logits=False):
        pass
    row = torch.empty(0)
    for block, kept in blocks:
        row = cached.forward(block)[kept - 1]
        cached.keep(len(block) - kept)
    return row


# -- decoding both ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checked:
    """One prompt decoded with `ar` and with a mode. Times are milliseconds a token, without the prefill."""

    verdict: Verdict
    tokens: int
    drafts: int
    forwards: int
    ms: float
    ar_ms: float
    alarms: tuple[str, ...] = ()
    """What went wrong without harm to the text: a drafter that failed."""

    @property
    def tokens_per_forward(self) -> float:
        return self.tokens / self.forwards if self.forwards else math.nan

    @property
    def speedup(self) -> float:
        """How many times as fast as `ar`."""
        return self.ar_ms / self.ms if self.ms else math.nan


class Checker:
    """Decodes prompts with a mode and with `ar`, greedily and with the same settings, and compares.

    Raises a SotscopeError for a mode that cannot be made, or one that drafts nothing.
    """

    def __init__(
        self,
        loaded: Loaded,
        settings: DecodeConfig,
        *,
        drafter: Drafter | None = None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        if settings.mode in ("ar", "forced"):
            raise DecodeError(f"mode {settings.mode} drafts nothing that could be checked; give one that does.")
        greedy = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        self._loaded = loaded
        self.settings = settings.model_copy(update=greedy)
        self._mode = PartsMaker(loaded, self.settings, report, drafter)
        self._ar = PartsMaker(loaded, self.settings.model_copy(update={"mode": "ar", "drafter": None}), report)
        self._mode.parts()

    def check(self, prompt_ids: Sequence[int]) -> Checked:
        """Decode ``prompt_ids`` both ways. Raises DecodeError where the mode cannot decode this model."""
        alarms: list[str] = []
        ours, steps, sampler = self._decode(self._mode, prompt_ids, alarms)
        theirs, plain, _ = self._decode(self._ar, prompt_ids, [])
        tokens, expected = _new_ids(steps), _new_ids(plain)
        if "non_finite" in (ours.finish_reason, theirs.finish_reason):
            verdict = Verdict(INVALID, min(len(tokens), len(expected)))
        else:
            model = self._loaded.model
            verdict = compare(model, prompt_ids, tokens, expected, steps=steps, sampler=sampler)
        return Checked(
            verdict,
            len(tokens),
            drafts=sum(len(step.drafts) for step in steps),
            forwards=sum(step.mode != "prompt" for step in steps),
            ms=1e3 * ours.decode_s / max(1, len(tokens)),
            ar_ms=1e3 * theirs.decode_s / max(1, len(expected)),
            alarms=tuple(alarms),
        )

    def _decode(
        self, maker: PartsMaker, prompt_ids: Sequence[int], alarms: list[str]
    ) -> tuple[Outcome, list[Step], Sampler]:
        settings, model = maker.settings, self._loaded.model
        sampler = Sampler(model, len(prompt_ids), overrides=settings.overrides())
        decoder = Decoder(
            model,
            None,
            sampler,
            sink=_Alarms(alarms),
            parts=maker.parts(),
            watch=StateWatch(model),
            tokenizer=self._loaded.tokenizer,
            stop=[*settings.stop, *sampler.stop],
            max_new_tokens=settings.max_new_tokens,
            context_length=anatomy(model).context_length or UNLIMITED,
            prefill_block=PREFILL,
        )
        steps = list(decoder.run(prompt_ids))
        assert decoder.outcome is not None
        return decoder.outcome, steps, sampler


def _new_ids(steps: Sequence[Step]) -> list[int]:
    return [token for step in steps if step.mode != "prompt" for token in step.next_ids if token >= 0]


class _Alarms:
    """A sink that notes alarms; what the steps say comes with the steps."""

    def __init__(self, messages: list[str]) -> None:
        self._messages = messages

    def on_step(self, step: Step) -> None: ...

    def on_alarm(self, alarm: Alarm) -> None:
        self._messages.append(alarm.message)

    def on_command(self, command: Command) -> None: ...
