"""What ``sotscope bench decode`` shows: a progress bar, two tables, and what a reader should know."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sotscope.cli.terminal import heading, notes, number, output, printable, say, table
from sotscope.errors import SotscopeError


def refuse_plot(plot: Path) -> None:
    """What would fail after hours fails now."""
    if find_spec("plotly") is None:
        raise SotscopeError("--plot needs plotly: pip install 'sotscope[plot]'")
    if plot.suffix.lower() != ".html":
        raise SotscopeError(f"--plot {plot}: give a name that ends in .html.")
    if not plot.absolute().parent.is_dir():
        raise SotscopeError(f"--plot {plot}: there is no folder {plot.parent}.")


class Bar:
    """A progress bar on a terminal; elsewhere lines."""

    def __init__(self) -> None:
        console = notes()
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=console, transient=True) if console.is_terminal else None

    def __enter__(self) -> Bar:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("starting", total=None)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def report(self, text: str) -> None:
        if self._bar is None:
            say(text)
        else:
            self._bar.update(self._task, description=printable(text))

    def advance(self, done: int, total: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)


def show(found: Mapping[str, Any]) -> None:
    """Speed by kind, then what it comes from; notes last."""
    kinds, modes = list(found["speedup"]), list(found["geomean"])
    titles = (*map(printable, kinds), "overall")
    made = table("speed, ar = 1", *titles, right=titles)
    for arm in (*modes, *found["peers"]):
        cells = [found["intervals"][group].get(arm, {"median": 1.0}) for group in (*kinds, "geomean")]
        made.add_row(arm, *map(_interval, cells))
    columns = ("tokens/forward", "identical", "p50 ms", "p95 ms", "p99 ms", "first ms", "draft", "forward", "accept")
    more = table("mode", *columns, "accepted by slot", right=columns, wraps="accepted by slot")
    for mode in modes:
        widths, share = found["tokens_per_forward"][mode].values(), found["share"][mode]
        more.add_row(
            mode,
            number(sum(widths) / len(widths)),
            _percent(found["identical"][mode], 1),
            *(number(value) for value in found["latency_ms"][mode].values()),
            number(found["ttft_ms"][mode]),
            *(_percent(share[part]) for part in ("draft", "forward", "accept")),
            " ".join(f"{rate:.2f}" for rate in found["acceptance"][mode]),
        )
    output().print(made, heading("what it comes from"), more)
    about = found["conditions"]
    remarks = [
        f"{entry['arm']}: {entry['verdict']} at token {entry['index']} of prompt {entry['prompt']} ({entry['kind']}), "
        f"margin {number(entry['margin'])}"
        for entry in found["divergences"]
    ]
    drift = f"two ar runs in a row differed by a factor of {number(about['ar_drift']['p50'])} (median)"
    for line in (*remarks, *about["notes"], drift):
        output().print(printable(line))


def _interval(found: Mapping[str, Any]) -> str:
    low, high = found.get("low"), found.get("high")
    return f"{found['median']:.2f}" + (f" ({low:.2f}-{high:.2f})" if low is not None else "")


def _percent(share: float, digits: int = 0) -> str:
    return "–" if math.isnan(share) else f"{share:.{digits}%}"
