"""From timed runs to the figures of ``bench decode``."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sotscope.bench.decode_arms import Decoded
from sotscope.checking import IDENTICAL, TIE
from sotscope.models.load import Loaded
from sotscope.preparation import versions

RESAMPLES = 2000


@dataclass(frozen=True)
class Sample:
    """One run of an arm. ``neighbours`` are the runs of `ar` before and after it (none for `ar` itself).

    ``verdict``, ``index`` and ``margin`` are what ``checking.compare`` says of its text next to that of `ar`.
    """

    kind: str
    prompt: int
    arm: str
    decoded: Decoded
    neighbours: tuple[Decoded, ...]
    verdict: str = IDENTICAL
    index: int | None = None
    margin: float | None = None

    def ratio(self) -> float | None:
        """The time `ar` took over this arm's, on the same tokens; None where no whole block is left to be timed."""
        if not self.neighbours:
            return None
        common = _common([self.decoded.tokens, *(run.tokens for run in self.neighbours)])
        start, end = self.decoded.ends[0], self.decoded.last_end(common)
        if end <= start:
            return None
        plain = statistics.mean(run.when(end) - run.when(start) for run in self.neighbours)
        return plain / (self.decoded.when(end) - self.decoded.when(start))


def figures(
    samples: Sequence[Sample], kinds: Sequence[str], ours: Sequence[str], peers: Sequence[str]
) -> dict[str, Any]:
    """Every x is a ratio to `ar` on the same tokens; over 1 is faster.

    ``speedup{kind: {mode: x}}``, ``geomean{mode: x}``, ``peers{arm: {kind: x}}``; ``intervals`` hold the 95 %
    bootstrap interval over prompts of each (``intervals{kind: {arm}}``, ``intervals{geomean: {arm}}``).
    ``tokens_per_forward{mode: {kind: x}}`` is 1 + accepted drafts / steps. ``acceptance{mode: [by slot]}``: of the
    drafts for a slot that were looked at or came after a miss, the share accepted. ``identical{mode: share}`` of runs
    whose text is that of `ar`, a numerical tie included; ``ties`` counts those, ``divergences`` lists every first
    difference. ``latency_ms{mode}``: percentiles of the time between the arrival of a token and that of the one
    before it, after the first block; tokens of one block arrive together, so all but its first have 0.
    ``share{mode}`` of the time after the first block. ``ttft_ms{mode}``: median time to the first block.
    """
    by_arm = {arm: [sample for sample in samples if sample.arm == arm] for arm in (*ours, *peers)}
    ratios = {arm: _by_kind(by_arm[arm], kinds) for arm in by_arm if arm != "ar"}
    spread = {kind: {arm: interval({kind: found[kind]}) for arm, found in ratios.items()} for kind in kinds}
    spread["geomean"] = {arm: interval(found) for arm, found in ratios.items()}
    middle = {group: {"ar": 1.0, **{arm: x["median"] for arm, x in arms.items()}} for group, arms in spread.items()}
    runs = {mode: [sample.decoded for sample in by_arm[mode]] for mode in ours}
    return {
        "speedup": {kind: {mode: middle[kind][mode] for mode in ours} for kind in kinds},
        "geomean": {mode: middle["geomean"][mode] for mode in ours},
        "tokens_per_forward": {
            mode: {kind: tokens_per_forward(s.decoded for s in by_arm[mode] if s.kind == kind) for kind in kinds}
            for mode in ours
        },
        "acceptance": {mode: acceptance(runs[mode]) for mode in ours},
        "identical": {mode: _share(s.verdict in (IDENTICAL, TIE) for s in by_arm[mode]) for mode in ours},
        "ties": sum(sample.verdict == TIE for mode in ours for sample in by_arm[mode]),
        "divergences": _divergences(samples),
        "latency_ms": {mode: latency_ms(runs[mode]) for mode in ours},
        "share": {mode: shares(runs[mode]) for mode in ours},
        "ttft_ms": {mode: _rounded(statistics.median(run.at[0] for run in runs[mode]) * 1e3) for mode in ours},
        "peers": {arm: {kind: middle[kind][arm] for kind in kinds} for arm in peers},
        "intervals": spread,
    }


def interval(by_kind: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Geometric mean of the kinds' medians, with its 95 % bootstrap interval (prompts drawn within kinds, seed 0).

    Of one kind that is its median. Kinds without a value are left out; NaN where there is none at all.
    """
    values = [np.array(found) for found in by_kind.values() if len(found)]
    if not values:
        return {"median": math.nan, "low": math.nan, "high": math.nan, "prompts": 0}
    generator = np.random.default_rng(0)
    logs = [np.log(np.median(generator.choice(found, (RESAMPLES, len(found))), axis=1)) for found in values]
    low, high = np.exp(np.quantile(np.mean(logs, axis=0), [0.025, 0.975]))
    middle = np.exp(np.mean([np.log(np.median(found)) for found in values]))
    return {
        "median": _rounded(middle), "low": _rounded(low), "high": _rounded(high), "prompts": sum(map(len, values)),
    }  # fmt: skip


def tokens_per_forward(runs: Iterable[Decoded]) -> float:
    """Mean acceptance length as vLLM defines it: 1 + accepted drafts / steps."""
    steps = [step for run in runs for step in run.steps]
    return _rounded(1 + sum(step.accepted for step in steps) / len(steps))


def acceptance(runs: Iterable[Decoded]) -> list[float]:
    """By slot, the share of its drafts that were accepted. Drafts after the end of the text are not counted."""
    slots: list[list[bool]] = []
    for draft in (draft for run in runs for step in run.steps for draft in step.drafts if draft.reason != "after_end"):
        slots += [[] for _ in range(draft.slot + 1 - len(slots))]
        slots[draft.slot].append(draft.accepted)
    return [_share(found) for found in slots]


def latency_ms(runs: Iterable[Decoded]) -> dict[str, float | None]:
    gaps: list[float] = []
    for run in runs:
        for block in range(1, len(run.at)):
            together = run.ends[block] - run.ends[block - 1] - 1
            gaps += [(run.at[block] - run.at[block - 1]) * 1e3, *[0.0] * together]
    return {f"p{q}": _rounded(np.percentile(gaps, q)) if gaps else None for q in (50, 95, 99)}


def shares(runs: Sequence[Decoded]) -> dict[str, float]:
    """Of the time from the first block's arrival to the last's."""
    total = sum(run.at[-1] - run.at[0] for run in runs)
    steps = [step for run in runs for step in run.steps[1:]]
    spent = {part: sum(getattr(step, f"{part}_ns") for step in steps) / 1e9 for part in ("draft", "forward", "accept")}
    spent["other"] = max(0.0, total - sum(spent.values()))
    return {part: _rounded(seconds / total) if total else math.nan for part, seconds in spent.items()}


def conditions(
    loaded: Loaded, samples: Sequence[Sample], *, tokens: int, rounds: int, prompts: Mapping[str, int], notes: list[str]
) -> dict[str, Any]:
    """What the figures hold for. ``ar_drift``: by what factor two neighbouring runs of `ar` differed (p50, p95)."""
    about = loaded.describe()
    drift = [_drift(*sample.neighbours) for sample in samples if sample.ratio() is not None]
    return {
        "model": {name: about[name] for name in ("name", "dtype", "parameters", "attention", "fingerprint")},
        "machine": {"processor": _processor(), "cpus": os.cpu_count(), "device": str(loaded.model.device)},
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "tokens": tokens,
        "rounds": rounds,
        "prompts": dict(prompts),
        "ar_drift": {f"p{q}": _rounded(np.percentile(drift, q)) if drift else None for q in (50, 95)},
        "notes": notes,
    }


def _by_kind(samples: Sequence[Sample], kinds: Sequence[str]) -> dict[str, list[float]]:
    """Of every prompt the median of its rounds."""
    rounds: dict[tuple[str, int], list[float]] = {}
    for sample in samples:
        ratio = sample.ratio()
        if ratio is not None:
            rounds.setdefault((sample.kind, sample.prompt), []).append(ratio)
    return {kind: [statistics.median(v) for (of, _), v in rounds.items() if of == kind] for kind in kinds}


def _common(texts: Sequence[tuple[int, ...]]) -> int:
    """How many tokens all texts begin with alike."""
    for place, column in enumerate(zip(*texts, strict=False)):
        if len(set(column)) > 1:
            return place
    return min(map(len, texts))


def _divergences(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    found = {}
    for sample in samples:
        if sample.verdict != IDENTICAL:
            parts = ("arm", "kind", "prompt", "verdict", "index", "margin")
            found[sample.arm, sample.prompt, sample.index] = {name: getattr(sample, name) for name in parts}
    return list(found.values())


def _drift(before: Decoded, after: Decoded) -> float:
    spans = sorted(run.at[-1] - run.at[0] for run in (before, after))
    return spans[1] / spans[0]


def _share(found: Iterable[bool]) -> float:
    values = list(found)
    return _rounded(sum(values) / len(values)) if values else math.nan


def _rounded(value: Any) -> float:
    return round(float(value), 4)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
