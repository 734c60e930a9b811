"""The numbers of the bar: speed, tokens a forward, latency, memory, alarms, age."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pandas as pd

from sotscope.plain import plain
from sotscope.store import layout
from sotscope_dashboards.scene import Scene

LATEST = 256
"""Steps that the numbers are of."""
MB = 1e6


def numbers(scene: Scene, now: float | None = None) -> dict[str, Any]:
    """Of the newest ``LATEST`` decode steps; None where there is none. Latencies are ms a token, age ms."""
    run = scene.run
    if run is None or not scene.total:
        return {}
    last = int(run.steps_at(scene.lineage[-1:])[0])
    steps = run.steps_between(max(0, last - LATEST + 1), last + 1)
    found: dict[str, Any] = {"alarms": len(scene.events("alarm")), "rows": scene.total, "recording": run.recording}
    if run.recording:
        found["age_ms"] = round(1000 * max(0.0, (now or time.time()) - (run.path / layout.JOURNAL).stat().st_mtime))
    if len(steps):
        found["memory_mb"] = round(float(steps.rss.iloc[-1]) / MB)
        found["window"] = int(steps.window.iloc[-1])
        found["mode"] = steps["mode"].iloc[-1]
    found |= of_steps(steps[steps["mode"] != "prompt"])
    return dict(plain(found))


def of_steps(steps: pd.DataFrame) -> dict[str, float]:
    """Speed and latency (ms a token) of decode ``steps`` (nanoseconds); empty where there is none."""
    if not len(steps):
        return {}
    spent = (steps.draft_ns + steps.forward_ns + steps.accept_ns + steps.capture_ns).to_numpy(float) / 1e6
    tokens = steps.rows.to_numpy(float)
    each = np.repeat(spent / tokens, tokens.astype(int))
    found = dict(zip(("p50", "p95", "p99"), np.percentile(each, [50, 95, 99]).tolist(), strict=True))
    if spent.sum() > 0:  # not so where a run was made without a clock
        found["tokens_per_s"] = float(tokens.sum() / spent.sum() * 1000)
    found["tokens_per_forward"] = float(tokens.mean())
    return found
