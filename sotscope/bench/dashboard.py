"""The live page, measured with a real server, a real browser and the real model: delays, what looking costs, memory.

Everything is done as a user does it: ``sotscope dashboard`` in a process of its own, Chromium without a screen, and
times that are the run's own (its journal) or the browser's (when the frame was done).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sotscope.bench.dashboard_browser import Tab, chromium
from sotscope.bench.dashboard_decode import decode, decode_ratios
from sotscope.bench.dashboard_growth import growth
from sotscope.bench.dashboard_live import command_to_effect, commit_to_pixels
from sotscope.bench.dashboard_open import opening
from sotscope.bench.dashboard_server import Server
from sotscope.bench.stats import Report
from sotscope.errors import ConfigError
from sotscope.registry import unknown

PARTS = ("pixels", "command", "decode", "open", "growth")


@dataclass(frozen=True)
class Sizes:
    """How much is measured; the defaults are those of the figures that are claimed."""

    tokens: int = 96
    """Tokens of a run that is decoded."""
    switches: int = 12
    pairs: int = 7
    rows: int = 20_000
    """Rows of the long run that is opened."""
    rounds: int = 3
    """How often a page is opened."""
    minutes: float = 10
    delay_ms: float = 0
    """Pause after every step where delays are measured: for models that are too small to be watched."""


def run(
    report: Report = lambda text: None,
    *,
    model: str = "smollm2",
    parts: Sequence[str] = PARTS,
    sizes: Sizes = Sizes(),
) -> dict[str, Any]:
    """What each of ``parts`` finds. Raises ConfigError for an unknown part, SotscopeError without a browser."""
    for part in parts:
        if part not in PARTS:
            raise ConfigError(unknown("part", part, list(PARTS)))
    begun = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    with chromium() as browser, tempfile.TemporaryDirectory() as folder:
        live, given = Path(folder) / "live", Path(folder) / "given"
        live.mkdir()
        given.mkdir()
        found, source = _live(browser, live, model, parts, sizes, report)
        if "open" in parts:
            found |= opening(browser, source, given, model, sizes.rows, sizes.rounds, report)
        if "growth" in parts:
            found |= growth(browser, source, given, model, sizes.minutes, report)
    threads = os.environ.get("OMP_NUM_THREADS")
    return found | {"model": model, "cores": os.cpu_count(), "omp_num_threads": threads, "load_before": begun}


def _live(
    browser: Any, folder: Path, model: str, parts: Sequence[str], sizes: Sizes, report: Report
) -> tuple[dict[str, Any], Path]:
    """What needs the model, and a run of it that the other parts make theirs of."""
    found: dict[str, Any] = {}
    with Server(folder, model) as server:
        report("loading the model, and a first run")
        source = decode(server.link, folder, sizes.tokens)
        simple, full = (partial(Tab, browser, server.page(view=view)) for view in ("simple", "full"))
        if "pixels" in parts:
            for name, tab in (("commit_to_pixels_ms", full), ("commit_to_pixels_simple_ms", simple)):
                report(f"commit to pixels: {sizes.tokens} tokens, {'full' if tab is full else 'simple'} view")
                found[name] = commit_to_pixels(tab, folder, sizes.tokens, sizes.delay_ms)
        if "command" in parts:
            found |= command_to_effect(full, folder, sizes.switches, sizes.delay_ms, report)
        if "decode" in parts:
            found |= decode_ratios(server, full, folder, sizes.tokens, sizes.pairs, report)
    return found, source
