"""What recording costs: tokens/s recording to disk over tokens/s of the same loop not recording.

Beside it transformers' own way to the same states, ``generate(output_hidden_states=True)``, over plain ``generate()``
(which keeps them in memory, every step's tuple, and writes nothing).
"""

from __future__ import annotations

import copy
import itertools
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sotscope.bench.memory import run as peak_memory
from sotscope.bench.stats import Nobody, Report, interleave, ratio
from sotscope.capture.plan import as_it_was
from sotscope.config import CaptureConfig, DecodeConfig, PromptConfig, RunConfig
from sotscope.decode.drafters.ar import Plain
from sotscope.decode.loop import Decoder
from sotscope.decode.sampling import Sampler
from sotscope.events import Step
from sotscope.models.load import Loaded, load
from sotscope.models.prompt import build_prompt
from sotscope.preparation import versions
from sotscope.recorder import recording

BLOCK = 8
PROMPT = "Write a short story about a lighthouse keeper who learns to bake bread."


def run(
    report: Report = lambda text: None,
    *,
    model: str = "smollm2",
    new_tokens: int = 128,
    pairs: int = 7,
    memory: bool = True,
) -> dict[str, Any]:
    """Figures of ``bench capture``: ratio_resid, ratio_all, peers{name: ratio}, each the median of ``pairs`` rounds.

    ``memory`` also measures the peak of a 4,000-token prompt (some minutes). Prefill, model loading and the
    self-check are outside the clock; waiting until every row is on disk is inside.
    """
    loaded = load(model, report=report)
    prompt = build_prompt(loaded.tokenizer, PROMPT)
    twins = {name: _twin(loaded) for name in ("plain", "resid", "all")}
    seen: dict[str, list[float]] = {name: [] for name in twins}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(-1, pairs):  # the first round warms up
            report(f"round {max(0, number + 1)} of {pairs}: recording and not, {BLOCK} tokens in turn")
            speeds = _round(twins, prompt.ids, new_tokens, Path(folder), number)
            if number >= 0:
                for name, speed in speeds.items():
                    seen[name].append(speed)
    peers = {
        "generate": lambda: _generate(loaded, prompt.ids, new_tokens, states=False),
        "generate+hidden_states": lambda: _generate(loaded, prompt.ids, new_tokens, states=True),
    }
    seen.update(interleave(peers, pairs, report))
    resid, everything = ratio(seen["resid"], seen["plain"]), ratio(seen["all"], seen["plain"])
    peer = ratio(seen["generate+hidden_states"], seen["generate"])
    return {
        "ratio_resid": resid["median"],
        "ratio_all": everything["median"],
        "peers": {"transformers output_hidden_states (in memory)": peer["median"]},
        "intervals": {"resid": resid, "all": everything, "transformers": peer},
        "tokens_per_second": {name: round(max(values), 2) for name, values in seen.items()},
        "memory_4000_tokens": peak_memory(report, model=model) if memory else None,
        "new_tokens": new_tokens,
        "pairs": pairs,
        "model": model,
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }


def _twin(loaded: Loaded) -> Loaded:
    """The same weights in other modules, so that hooks on one arm are not seen by another."""
    shared = {id(tensor): tensor for tensor in (*loaded.model.parameters(), *loaded.model.buffers())}
    return replace(loaded, model=copy.deepcopy(loaded.model, shared))


def _round(twins: dict[str, Loaded], ids: list[int], new_tokens: int, folder: Path, number: int) -> dict[str, float]:
    """Tokens/s of each arm, decoded in turns of ``BLOCK`` tokens, so that a slower second of the machine hits all."""
    order = random.Random(number)
    spent = dict.fromkeys(twins, 0.0)
    with ExitStack() as stack:
        arms: dict[str, tuple[Iterator[Step], Callable[[], None]]] = {
            "plain": (_plain(twins["plain"], ids, new_tokens), lambda: None),
            "resid": _recorded(stack, twins["resid"], ["resid"], new_tokens, folder / f"{number}-resid.sot"),
            "all": _recorded(stack, twins["all"], ["all"], new_tokens, folder / f"{number}-all.sot"),
        }
        for steps, _ in arms.values():
            next(step for step in steps if step.reason != "prefill")
        names = list(arms)
        for start in range(1, new_tokens, BLOCK):
            order.shuffle(names)
            for name in names:
                steps, flush = arms[name]
                began = time.perf_counter()
                for _ in itertools.islice(steps, BLOCK):
                    pass
                if start + BLOCK >= new_tokens:
                    flush()
                spent[name] += time.perf_counter() - began
    return {name: (new_tokens - 1) / seconds for name, seconds in spent.items()}


def _plain(loaded: Loaded, ids: list[int], new_tokens: int) -> Iterator[Step]:
    sampler = Sampler(loaded.model, len(ids), overrides={"do_sample": False, "eos_token_id": []})
    decoder = Decoder(
        loaded.model, Plain(), sampler, sink=Nobody(), tokenizer=loaded.tokenizer, max_new_tokens=new_tokens
    )
    return decoder.run(ids)


def _recorded(
    stack: ExitStack, loaded: Loaded, sites: list[str], new_tokens: int, out: Path
) -> tuple[Iterator[Step], Callable[[], None]]:
    settings = RunConfig(
        input=PromptConfig(prompt=PROMPT),
        capture=CaptureConfig(sites=sites, self_check=False),
        decode=DecodeConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=[]),
        out=out,
    )
    recorded = stack.enter_context(recording(settings, model=loaded))
    return recorded.steps(), recorded.writer.flush


def _generate(loaded: Loaded, ids: list[int], new_tokens: int, *, states: bool) -> float:
    inputs = torch.tensor([ids])
    options: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "min_new_tokens": None}
    with as_it_was(loaded.model), torch.inference_mode():
        start = time.perf_counter()
        loaded.model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=new_tokens,
            output_hidden_states=states,
            return_dict_in_generate=True,
            **options,
        )
        return new_tokens / (time.perf_counter() - start)
