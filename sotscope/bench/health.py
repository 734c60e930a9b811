"""Does it notice a collapse, how early, is it right, and does it recover? Greedy texts of prompts of new wording.

The texts of the two baselines (nothing done; a repetition penalty of 1.1 from the start) are written in batches.
Monitors judge the rows of a forward over each text, which raise the alarms that a live recording raises. Recoveries and
the healthy texts that are compared byte for byte are real recordings.
"""

from __future__ import annotations

import hashlib
import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from sotscope.bench.decode_prompts import bench_prompts, first_of_each_kind
from sotscope.bench.health_figures import Judged, detection, early
from sotscope.bench.health_live import cost, live
from sotscope.bench.health_parts import Parts
from sotscope.bench.health_recover import ATTEMPTS, recover
from sotscope.bench.health_replay import Replay
from sotscope.bench.stats import Report
from sotscope.capture.plan import anatomy
from sotscope.catalog import MONITORS
from sotscope.config import PromptConfig, RunConfig
from sotscope.decode.sampling import end_ids
from sotscope.errors import HealthError
from sotscope.health.loops import loop_start
from sotscope.models.load import Loaded, fingerprint, load
from sotscope.models.prompt_file import PromptLine
from sotscope.preparation import make_prompt, versions
from sotscope.training.generate import continue_batch

PROMPTS = Path(str(files("sotscope.bench") / "health_prompts.jsonl"))
TOKENS, QUICK_TOKENS = 512, 128
PENALTY = 1.1
BATCH = 40
HEALTHY, QUICK_HEALTHY = 10, 2
"""Healthy texts that are recorded plainly and with everything on."""
Advance = Callable[[int, int], None]


@dataclass(frozen=True)
class Task:
    """A prompt of the bench, with its token ids."""

    given: PromptConfig
    ids: list[int]


def run(
    report: Report = lambda text: None,
    *,
    model: str | Loaded = "smollm2",
    prompts: Path | None = None,
    quick: bool = False,
    tokens: int | None = None,
    resume: Path | None = None,
    advance: Advance = lambda done, total: None,
) -> dict[str, Any]:
    """Figures of ``bench health``: recall, precision, false_alarms_per_1000, lead_median, early, recovered{policy:
    share}, baselines{none, repetition_penalty}, cost_ratio, healthy_changed, and what they come from.

    ``tokens`` (512, quick: 128) are written after each prompt; ``quick`` takes two prompts a kind. Finished parts are
    kept in the folder ``resume`` and not measured again. Raises PromptError for a bad prompts file, HealthError for a
    folder with the parts of another bench, or prompts that do not fit.
    """
    count = tokens or (QUICK_TOKENS if quick else TOKENS)
    lines = bench_prompts(prompts or PROMPTS)
    loaded = load(model, report=report) if isinstance(model, str) else model
    tasks = _tasks(loaded, first_of_each_kind(lines, 2) if quick else lines, count)
    about = {"fingerprint": fingerprint(loaded.model), "tokens": count, "quick": quick,
             "prompts": hashlib.sha256(repr([task.ids for task in tasks]).encode()).hexdigest()[:16]}  # fmt: skip
    with ExitStack() as stack:
        folder = resume or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sotscope-")))
        bench = _Bench(loaded, tasks, count, Parts(folder, about), report, advance)
        return {**bench.figures(QUICK_HEALTHY if quick else HEALTHY), "conditions": {
            "model": loaded.name, **about, "prompts": len(tasks), "kinds": sorted({line.kind for line in lines}),
            "threads": torch.get_num_threads(), "left_out": bench.replay.left_out, "versions": versions()}}  # fmt: skip


class _Bench:
    """The parts, in order; each is made once."""

    def __init__(
        self, loaded: Loaded, tasks: list[Task], tokens: int, parts: Parts, report: Report, advance: Advance
    ) -> None:
        self._loaded, self._tasks, self._tokens, self._parts = loaded, tasks, tokens, parts
        self._report, self._advance = report, advance
        self._stop = end_ids(loaded.model.generation_config)
        self.replay = Replay(loaded, {name: {} for name in MONITORS.names()})

    def figures(self, healthy: int) -> dict[str, Any]:
        none = self._texts("none", 1.0)
        penalised = self._texts("penalty", PENALTY)
        said = self._each("alarms", range(len(none)), lambda i: self.replay(self._tasks[i].ids, none[i]))
        texts = [
            Judged(len(task.ids), text, text[-1] in self._stop, said[i])
            for i, (task, text) in enumerate(zip(self._tasks, none, strict=True))
        ]
        looping = [i for i, text in enumerate(texts) if text.start is not None]
        fine = [i for i, text in enumerate(texts) if text.start is None]
        recovered = {policy: self._recovered(policy, looping, none) for policy in ATTEMPTS}
        lived = self._each("live", fine[:healthy], lambda i: live(
            self._loaded, self._tasks[i].given, self._tokens, self.replay.sites, seed=i))  # fmt: skip
        measured = cost(list(lived.values()))
        score = self.replay.subject.early
        return {
            **detection(texts),
            "early": early(texts, score.threshold_rows, score.threshold_texts) if score else None,
            "recovered": {policy: found["share"] for policy, found in recovered.items()},
            "recoveries": recovered,
            "baselines": {
                "none": _quiet([none[i] for i in looping]),
                "repetition_penalty": _quiet([penalised[i] for i in looping]),
                "looping_with_penalty": sum(loop_start(text) is not None for text in penalised),
            },
            "cost_ratio": measured and measured["median"], "cost": measured,
            "healthy_changed": sum(one["changed"] for one in lived.values()), "healthy_compared": len(lived),
        }  # fmt: skip

    def _texts(self, name: str, penalty: float) -> list[list[int]]:
        """What the model writes after every prompt, in batches."""
        texts: list[list[int]] = []
        for start in range(0, len(self._tasks), BATCH):
            self._report(f"{name}: writing from prompt {start + 1} of {len(self._tasks)} on")
            prompts = [task.ids for task in self._tasks[start : start + BATCH]]
            texts += self._parts.get(f"{name}-{start:03}.json", lambda prompts=prompts: continue_batch(  # type: ignore[misc]
                self._loaded.model, prompts, self._tokens, self._stop, repetition_penalty=penalty))  # fmt: skip
        return texts

    def _each(self, name: str, indices: Sequence[int], make: Callable[[int], Any]) -> dict[int, Any]:
        found = {}
        for done, i in enumerate(indices):
            self._report(f"{name}: text {done + 1} of {len(indices)}")
            found[i] = self._parts.get(f"{name}-{i:03}.json", lambda i=i: make(i))  # type: ignore[misc]
            self._advance(done + 1, len(indices))
        return found

    def _recovered(self, policy: str, looping: Sequence[int], texts: Sequence[Sequence[int]]) -> dict[str, Any]:
        tries = self._each(policy, looping, lambda i: recover(
            self._loaded, self._tasks[i].given, texts[i], policy, self.replay.sites))  # fmt: skip
        found = list(tries.values())
        good = [one for one in found if one["recovered"]]
        return {
            "share": round(len(good) / len(found), 4) if found else None, "texts": len(found),
            "alarmed": sum(one["alarmed"] for one in found),
            "at_first_attempt": sum(one["attempts"] == 1 for one in good),
            "after_median": statistics.median([one["after"] for one in good]) if good else None,
        }  # fmt: skip


def _quiet(texts: Sequence[Sequence[int]]) -> float | None:
    """The share of texts without a loop."""
    return round(sum(loop_start(text) is None for text in texts) / len(texts), 4) if texts else None


def _tasks(loaded: Loaded, lines: Sequence[PromptLine], tokens: int) -> list[Task]:
    room = anatomy(loaded.model).context_length
    tasks = []
    for line in lines:
        given = PromptConfig(prompt=line.prompt, messages=line.messages, system=line.system, raw=line.raw)
        ids = make_prompt(loaded, RunConfig(input=given)).ids
        if room is not None and len(ids) + tokens > room:
            raise HealthError(f"line {line.number}: a prompt of {len(ids)} tokens and {tokens} new ones do not fit in "
                              f"the model's context of {room}; take fewer --tokens.")  # fmt: skip
        tasks.append(Task(given, ids))
    return tasks
