"""How soon the page shows what was decoded, and how soon the engine does what the page was told."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sotscope.bench.dashboard_browser import Tab
from sotscope.bench.dashboard_server import start
from sotscope.bench.dashboard_timeline import journal_of, new_run, percentiles, timeline, wait_end
from sotscope.bench.stats import Report
from sotscope.errors import LiveError
from sotscope.store.journal import JournalReader

SWITCHING = 1500
"""Tokens of the run whose mode is switched; it is stopped when all switches are done."""
STILL_MS = 10_000
"""A run that has written nothing for so long is at its end."""
LOOK_S = 0.1
PAUSE_S = (0.3, 1.0)
"""From one switch's effect to the next click; drawn anew each time, so that clicks fall anywhere in a step."""


def commit_to_pixels(open_tab: Callable[[], Tab], folder: Path, tokens: int, delay_ms: float) -> dict[str, float]:
    """ms from the commit of the step that chose a token to the frame in which it stands on the page."""
    with open_tab() as tab:
        tab.ready()
        path = _begin(tab, folder, tokens, delay_ms)
        wait_end(path)
        written = timeline(journal_of(path))
        last = written.chosen[-1]
        tab.until(f"(noted.tokens[sotscope.state.run] || {{}})[{last}] > 0 && sotscope.answer.total === {last}")
        painted = tab.painted()
    waited = [painted[token] - written.token_ms(token) for token in written.chosen if token in painted]
    return percentiles(waited) | {"tokens": len(waited)}


def command_to_effect(
    open_tab: Callable[[], Tab], folder: Path, switches: int, delay_ms: float, report: Report
) -> dict[str, Any]:
    """ms from a click on a mode to the commit of the first step in it; ``over_step_ms``: less that step's own time."""
    draw = random.Random(0)
    clicks: list[tuple[str, float]] = []
    with open_tab() as tab:
        tab.ready()
        path = _begin(tab, folder, SWITCHING, delay_ms)
        journal = journal_of(path)
        tab.until("sotscope.answer.engine.state === 'running' && sotscope.answer.total > 0")
        # a step of combine bears the name of whose drafts it took
        modes = [mode for mode in tab.ask("sotscope.answer.engine.modes") if mode not in ("ar", "combine")]
        for number in range(switches):
            mode = "ar" if number % 2 else modes[number // 2 % len(modes)]
            time.sleep(draw.uniform(*PAUSE_S))
            report(f"command to effect: switch {number + 1} of {switches}, to {mode}")
            tab.page.click(f"[data-mode={mode}]")
            clicks.append((mode, tab.ask("noted.clicks.at(-1)")))
            if not _took_effect(journal, mode, clicks[-1][1]):
                clicks.pop()  # the text was at its end
                break
        tab.command({"kind": "stop"})
    if not clicks:
        raise LiveError(f"the text ended before a mode could be switched; the run is {path}.")
    written = timeline(journal)
    steps = [written.first_in(mode, at) for mode, at in clicks]
    waited = written.committed_ms[steps] - np.array([at for _, at in clicks])
    return {
        "command_to_effect_ms": percentiles(waited) | {"switches": len(waited)},
        "over_step_ms": percentiles(waited - written.step_ms[steps]),
        "step_ms": percentiles(written.step_ms[written.modes != "prompt"]),
    }


def _begin(tab: Tab, folder: Path, tokens: int, delay_ms: float) -> Path:
    """Start a run as the tab would; returns where it is."""
    with new_run(folder) as found:
        refusal = tab.command(start(tokens, delay_ms=delay_ms))
        if refusal:
            raise LiveError(f"start: {refusal}")
    return found[0]


def _took_effect(journal: JournalReader, mode: str, since: float) -> bool:
    """Wait for a step in ``mode``; False where the text ended before there was one."""
    while timeline(journal).first_in(mode, since) < 0:
        if time.time() * 1000 - journal.last.time_ns / 1e6 > STILL_MS:
            return False
        time.sleep(LOOK_S)
    return True
