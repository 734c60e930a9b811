"""A text recorded plainly and with everything on, in turns: is it the same, and what do monitors cost?"""

from __future__ import annotations

import copy
import itertools
import random
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from sotscope.bench.health_recover import settings_of
from sotscope.bench.stats import ratio
from sotscope.config import HealthConfig, PromptConfig
from sotscope.events import Step
from sotscope.models.load import Loaded
from sotscope.recorder import Recording, recording

BLOCK = 8
"""Tokens of a turn."""
ARMS = {"off": HealthConfig(), "on": HealthConfig(monitor=True, recover={"rollback": {}})}


def live(loaded: Loaded, given: PromptConfig, tokens: int, sites: Sequence[str], seed: int = 0) -> dict[str, Any]:
    """Record a prompt plainly, and with every monitor and a recovery, a few tokens of each in turns.

    ``changed``: tokens or states on disk are not the same, or there was a recovery. ``seconds`` of each, and of how
    many ``tokens``: all but the first one.
    """
    shared = {id(tensor): tensor for tensor in (*loaded.model.parameters(), *loaded.model.buffers())}
    with tempfile.TemporaryDirectory(prefix="sotscope-") as folder:
        runs: dict[str, Recording] = {}
        with ExitStack() as stack:
            for name, health in ARMS.items():  # hooks of one must not see the other's forwards
                model = replace(loaded, model=copy.deepcopy(loaded.model, dict(shared)))
                settings = settings_of(given, sites, health, tokens)
                settings = settings.model_copy(update={"out": Path(folder) / f"{name}.sot"})
                runs[name] = stack.enter_context(recording(settings, model=model))
            seconds = _take_turns({name: run.steps() for name, run in runs.items()}, seed)
        told = {name: (run.decoder.context.ids, run.sequence, _state_bytes(run.path)) for name, run in runs.items()}
    off, on = told["off"], told["on"]
    return {
        "changed": off != on, "same_tokens": off[0] == on[0], "recoveries": on[1],
        "tokens": runs["off"].decoder.context.new_tokens - 1, "seconds": seconds,
    }  # fmt: skip


def cost(found: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Of what ``live`` found: the speed with monitors over that without, the median text and its interval; None where
    nothing was written."""
    known = [one for one in found if one["tokens"] > 0]
    if not known:
        return None
    seconds = {name: [one["seconds"][name] for one in known] for name in ARMS}
    tokens = sum(one["tokens"] for one in known)
    return {
        **ratio(seconds["off"], seconds["on"]),
        "tokens_per_second": {name: round(tokens / sum(spent), 2) for name, spent in seconds.items()},
    }


def _take_turns(steps: Mapping[str, Iterator[Step]], seed: int) -> dict[str, float]:
    """Decode to the end, some tokens of each at a time, in an order that changes; the seconds of each."""
    order, names, spent = random.Random(seed), list(steps), dict.fromkeys(steps, 0.0)
    for one in steps.values():
        next(step for step in one if step.mode != "prompt")
    going = True
    while going:
        order.shuffle(names)
        going = False
        for name in names:
            began = time.perf_counter()
            taken = sum(1 for _ in itertools.islice(steps[name], BLOCK))
            spent[name] += time.perf_counter() - began
            going |= taken == BLOCK
    return spent


def _state_bytes(run: Path) -> dict[str, bytes]:
    """What is on disk of the states, by file."""
    chunks = sorted((run / "states.zarr" / "resid").rglob("*"))
    return {str(path.relative_to(run)): path.read_bytes() for path in chunks if path.is_file()}
