"""How states answer to a change of topic: after how many tokens, and in which layers, they have left where they were.

The answer of a row is its distance from the mean of the rows before the switch, over the usual one of those rows from
the mean of the others among them (so that 1 is usual, however few rows there are). The lag is the time to half of the
plateau, as of a step response in control engineering (the delay time).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray
from scipy.ndimage import median_filter
from scipy.stats import mannwhitneyu

from sotscope.analysis import figures
from sotscope.analysis.contracts import Pool
from sotscope.analysis.moments import Layer, Subject
from sotscope.analysis.report import Report
from sotscope.analysis.view import WRITTEN, View
from sotscope.analysis.wording import called
from sotscope.robust import MAD_TO_SIGMA

BEFORE, AFTER = 8, 12
"""Rows that count, before and after the switch, that it takes at least."""
SMOOTH = 5
"""Rows a running median goes over: one odd token is no plateau, and a step stays as sharp as it is."""
LEAST = 0.02
"""A plateau that is not this much above the usual distance is none, even where distances hardly vary."""
CHANCE = 0.001
"""... nor one that chance explains as well as this (Mann and Whitney's test of the rows that make it; as tokens depend
on each other, a bar against few rows, not a proof)."""


@dataclass(frozen=True)
class Switch:
    """``response [token, layer]`` of ``rows`` (positions in the view) around row ``at``; ``table`` has the lags."""

    at: int
    why: str
    rows: NDArray[np.int64]
    response: NDArray[np.float64]
    table: pd.DataFrame

    def add_to(self, report: Report, view: View) -> None:
        """Tables, figures and the finding."""
        layers = self.table.layer.tolist()
        offsets = self.rows - self.at
        report.tables["switch"] = self.table
        report.tables["response"] = xr.DataArray(
            self.response, dims=("token", "layer"), name="response",
            coords={"token": self.rows, "layer": layers, "since_switch": ("token", offsets)},
        )  # fmt: skip
        shown = np.unique(np.linspace(0, len(layers) - 1, min(5, len(layers))).round().astype(int))
        names = [figures.name(view.labels, int(row)) for row in self.rows]
        report.figures["response"] = partial(
            figures.lines, {f"layer {layers[i]}": self.response[:, i] for i in shown},
            f"Distance from where the states were before token {self.at}", f"tokens since the switch ({self.why})",
            "distance / usual distance", at=offsets, hover=names,
        )  # fmt: skip
        report.figures["lag"] = partial(
            figures.lines, {"lag": self.table.lag}, "Time to half of the plateau after the switch", "layer", "tokens",
            at=layers,
        )  # fmt: skip
        _say(report, self)


def after_switch(view: View, chosen: Subject, at: int | None, around: int, pool: Pool) -> Switch | str:
    """What happens around the switch ``at`` (default: ``find_switch``), or why nothing can be said."""
    why = "given"
    if at is None:
        at, why = find_switch(view)
    if at is None or at >= len(view):
        return "answer to a switch of topic: this view shows none; give one with switch=ROW (of this view)"
    tokens = view.tokens
    member = chosen.keep & ((tokens.seq == tokens.seq[at]) | (view.selection.seq is not None))
    rows = np.flatnonzero(member)
    before, after = rows[rows < at][-around:], rows[rows >= at][:around]
    if len(before) < BEFORE or len(after) < AFTER:
        return (
            f"answer to the switch at token {at} ({why}): {len(before)} rows before and {len(after)} after it are too "
            f"few (at least {BEFORE} and {AFTER})"
        )
    rows = np.concatenate([before, after])
    found = list(pool.map(partial(_distances, before=len(before)), chosen.layers(view, rows), "switch of topic"))
    distances = np.stack(found, axis=1)
    usual = np.median(distances[: len(before)], 0)
    response = distances / np.where(usual > 0, usual, np.nan)
    return Switch(at, why, rows, response, _lags(response, usual, after - at, chosen.names))


def find_switch(view: View) -> tuple[int | None, str]:
    """The row of the view with which the last user turn begins, if it is not the first turn; else the first row of
    what the model wrote; and which of them it is. (None, "") where there is neither.
    """
    segments = np.array(view.tokens.segments, object)
    user = segments == "user"
    begins = np.flatnonzero(user & ~np.concatenate([[False], user[:-1]]))
    if len(begins) > 1:
        return int(begins[-1]), "last user turn"
    written = np.flatnonzero(np.isin(segments.astype(str), list(WRITTEN)))
    if len(written) and written[0] > 0:
        return int(written[0]), "first token that the model wrote"
    return (int(begins[0]), "user turn") if len(begins) and begins[0] > 0 else (None, "")


def _distances(layer: Layer, before: int) -> NDArray[np.float64]:
    """[row] L2 distance from the mean of the first ``before`` rows; of these, from the mean of the others of them."""
    states = layer.all()
    away = states - states[:before].mean(0)
    found: NDArray[np.float64] = np.sqrt(np.einsum("td,td->t", away, away))
    found[:before] *= before / (before - 1)
    return found


def _lags(
    response: NDArray[np.float64], usual: NDArray[np.float64], offsets: NDArray[np.int64], names: list[Any]
) -> pd.DataFrame:
    """One line a layer. ``offsets`` are the tokens since the switch of the last rows of ``response``."""
    before, after = response[: -len(offsets)], response[-len(offsets) :]
    spread = MAD_TO_SIGMA * np.median(np.abs(before - np.median(before, 0)), 0)
    smooth = median_filter(after, size=(min(SMOOTH, len(after)), 1), mode="nearest")
    late = len(after) // 2
    plateau = np.median(smooth[late:], 0)
    chance = mannwhitneyu(before, after[late:], alternative="less", axis=0).pvalue
    moved = (plateau - 1 > np.maximum(spread, LEAST)) & (chance < CHANCE)
    half = 1 + (plateau - 1) / 2
    lag = np.where(moved, offsets[(smooth >= half).argmax(0)], np.nan)
    table = {"layer": names, "usual": usual, "spread": spread, "plateau": plateau, "p_value": chance}
    return pd.DataFrame(table | {"moved": moved, "half": half, "lag": lag})


def _say(report: Report, found: Switch) -> None:
    table, where = found.table, f"the switch at token {found.at} ({found.why})"
    moved = table[table.moved]
    numbers: dict[str, Any] = {"switch": found.at, "which": found.why}
    numbers |= {"layers": moved.layer.tolist(), "lag": moved.lag.tolist()}
    if table.plateau.isna().all():
        report.find(f"The rows before {where} are all the same, so nothing says how far is far.", **numbers)
    elif not len(moved):
        text = f"No layer moves clearly away after {where}: distances reach {table.plateau.max():.2f} times the usual."
        report.find(text, **numbers)
    else:
        first, last = moved[moved.lag == moved.lag.min()], moved[moved.lag == moved.lag.max()]
        pace = f"{called(first.layer)} first, within {_tokens(moved.lag.min())}"
        if len(first) == len(moved):
            pace = f"all within {_tokens(moved.lag.min())}"
        else:
            pace += f", {called(last.layer)} last, within {_tokens(moved.lag.max())}"
        report.find(
            f"After {where} {len(moved)} of {len(table)} layers move away, to at most {moved.plateau.max():.2f} times "
            f"the usual distance: {pace}.",
            **numbers,
        )


def _tokens(count: float) -> str:
    return f"{int(count) + 1} token{'s' if count else ''}"
