"""What monitors cost: tokens/s recording with every monitor on over tokens/s recording with none."""

from __future__ import annotations

import copy
import itertools
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from sotscope.bench.stats import Report, ratio
from sotscope.config import CaptureConfig, DecodeConfig, HealthConfig, PromptConfig, RunConfig
from sotscope.events import Step
from sotscope.models.load import Loaded
from sotscope.recorder import recording

BLOCK = 8


def cost(
    loaded: Loaded, given: PromptConfig, sites: Sequence[str], report: Report, *, tokens: int = 128, pairs: int = 7
) -> dict[str, Any]:
    """The median of ``pairs`` rounds and its interval. In a round both decode the same tokens in turns."""
    shared = {id(tensor): tensor for tensor in (*loaded.model.parameters(), *loaded.model.buffers())}
    arms = {
        name: (replace(loaded, model=copy.deepcopy(loaded.model, shared)), HealthConfig(monitor=on))
        for name, on in (("off", False), ("on", True))
    }
    seen: dict[str, list[float]] = {name: [] for name in arms}
    with tempfile.TemporaryDirectory(prefix="sotscope-") as folder:
        for number in range(-1, pairs):  # the first round warms up
            report(f"cost: round {max(0, number + 1)} of {pairs}")
            spent = dict.fromkeys(arms, 0.0)
            with ExitStack() as stack:
                steps = {
                    name: _steps(stack, model, health, given, sites, tokens, Path(folder) / f"{number}-{name}.sot")
                    for name, (model, health) in arms.items()
                }
                _take_turns(steps, spent, tokens, number)
            if number >= 0:
                for name, seconds in spent.items():
                    seen[name].append((tokens - 1) / seconds)
    return {**ratio(seen["on"], seen["off"]), "tokens_per_second": {k: round(max(v), 2) for k, v in seen.items()}}


def _steps(
    stack: ExitStack, loaded: Loaded, health: HealthConfig, given: PromptConfig, sites: Sequence[str], tokens: int,
    out: Path,
) -> Iterator[Step]:  # fmt: skip
    settings = RunConfig(
        input=given,
        capture=CaptureConfig(sites=list(sites), self_check=False),
        decode=DecodeConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=[]),
        health=health,
        out=out,
    )
    return stack.enter_context(recording(settings, model=loaded)).steps()


def _take_turns(steps: dict[str, Iterator[Step]], spent: dict[str, float], tokens: int, seed: int) -> None:
    order = random.Random(seed)
    for one in steps.values():
        next(step for step in one if step.mode != "prompt")
    names = list(steps)
    for _ in range(1, tokens, BLOCK):
        order.shuffle(names)
        for name in names:
            began = time.perf_counter()
            for _ in itertools.islice(steps[name], BLOCK):
                pass
            spent[name] += time.perf_counter() - began
