"""What a long run does to the memory of the browser and of the server."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from sotscope.bench.dashboard_browser import Tab
from sotscope.bench.dashboard_server import Server
from sotscope.bench.dashboard_synthetic import writing
from sotscope.bench.stats import Report

EVERY_S = 0.02
SPARE = 2000
"""Rows more than are looked at, so that the run does not end before."""


def growth(browser: Any, source: Path, folder: Path, model: str, minutes: float, report: Report) -> dict[str, Any]:
    """MB that the browser's heap and the server's memory grow by, from the first minute (or a tenth) to the last.

    The tab is in the full view and follows a run of 50 tokens/s.
    """
    path = folder / "growth.sot"
    first = min(60.0, 6 * minutes)
    rows = int(60 * minutes / EVERY_S) + SPARE
    times = [first, *(60.0 * minute for minute in range(2, math.ceil(minutes))), 60 * minutes]
    with (
        writing(source, path, rows, EVERY_S),
        Server(path, model) as server,
        Tab(browser, server.page(view="full")) as tab,
    ):
        tab.ready()
        began, seen = time.monotonic(), list[tuple[float, float]]()
        for at in times:
            time.sleep(max(0.0, began + at - time.monotonic()))
            seen.append((tab.heap_mb(), server.memory_mb))
            heap, memory = seen[-1]
            report(f"growth: {at / 60:.1f} of {minutes:g} minutes: browser {heap:.1f} MB, server {memory:.1f} MB")
        shown = tab.ask("sotscope.answer.total")
    heap, memory = (round(last - begin, 1) for begin, last in zip(seen[0], seen[-1], strict=True))
    return {
        "browser_heap_growth_mb": heap, "server_growth_mb": memory, "minutes": minutes, "rows_shown": shown,
        "browser_heap_mb": round(seen[-1][0], 1), "server_mb": round(seen[-1][1], 1),
    }  # fmt: skip
