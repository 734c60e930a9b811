"""How soon a page stands: the first paint, the first words of a finished run, the heatmap of a long one."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from sotscope.bench.dashboard_browser import Tab
from sotscope.bench.dashboard_server import Server
from sotscope.bench.dashboard_synthetic import write
from sotscope.bench.stats import Report

_ENTRIES = "performance.getEntriesByName('first-contentful-paint')"
PAINT = (f"{_ENTRIES}.length", f"{_ENTRIES}[0].startTime")


def opening(
    browser: Any, source: Path, folder: Path, model: str, rows: int, rounds: int, report: Report
) -> dict[str, float]:
    """ms from navigation, medians; each round has a fresh server and a browser without a cache.

    ``first_paint_ms`` and ``first_token_ms`` of the finished run ``source`` in the simple view; ``open_{rows}_ms``
    until the heatmap of a run of so many rows is drawn, of its newest tokens; ``open_{rows}_whole_ms``: of all.
    """
    long = folder / "long.sot"
    report(f"open: writing a run of {rows:,} rows")
    write(source, long, rows)
    whole: dict[str, Any] = {"view": "full", "start": 0, "stop": rows}
    pages: list[tuple[Path, dict[str, Any], dict[str, tuple[str, str]]]] = [
        (source, {}, {"first_paint_ms": PAINT, "first_token_ms": _noted("first")}),
        (long, {"view": "full"}, {f"open_{rows}_ms": _noted("heatmap")}),
        (long, whole, {f"open_{rows}_whole_ms": _noted("heatmap")}),
    ]  # fmt: skip
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        report(f"open: round {number + 1} of {rounds}")
        for run, query, values in pages:
            with Server(run, model) as server, Tab(browser, server.page(**query)) as tab:
                for name, (there, value) in values.items():
                    tab.until(there)
                    found.setdefault(name, []).append(float(tab.ask(value)))
    return {name: round(statistics.median(times), 1) for name, times in found.items()}


def _noted(name: str) -> tuple[str, str]:
    """Whether it is noted, and when, in ms from navigation."""
    return f"noted.{name}", f"noted.{name} - performance.timeOrigin"
