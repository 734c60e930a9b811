"""How soon a page stands: the first paint, the first words of a finished run, the heatmap of a long one."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from sotscope.bench.dashboard_browser import Tab
from sotscope.bench.dashboard_server import Server
from sotscope.bench.dashboard_synthetic import write
from sotscope.bench.stats import Report

PAINT = "performance.getEntriesByName('first-contentful-paint')"


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
    places: dict[str, tuple[Path, dict[str, Any], str, str]] = {
        "first_paint_ms": (source, {}, f"{PAINT}[0].startTime", f"{PAINT}.length"),
        "first_token_ms": (source, {}, _since("first"), "noted.first"),
        f"open_{rows}_ms": (long, {"view": "full"}, _since("heatmap"), "noted.heatmap"),
        f"open_{rows}_whole_ms": (long, {"view": "full", "start": 0, "stop": rows}, _since("heatmap"), "noted.heatmap"),
    }
    found: dict[str, list[float]] = {name: [] for name in places}
    for number in range(rounds):
        report(f"open: round {number + 1} of {rounds}")
        for name, (run, query, value, ready) in places.items():
            with Server(run, model) as server, Tab(browser, server.page(**query)) as tab:
                tab.until(ready)
                found[name].append(float(tab.ask(value)))
    return {name: round(statistics.median(times), 1) for name, times in found.items()}


def _since(name: str) -> str:
    return f"noted.{name} - performance.timeOrigin"
