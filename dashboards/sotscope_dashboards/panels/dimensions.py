"""The dimensions of one layer, ranked: how much they vary, how evenly, how steadily, and which stand out."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sotscope.analysis.facts import OUTLIER, sinks
from sotscope.analysis.histogram import histogram_entropy
from sotscope.plain import plain, ranges
from sotscope_dashboards.panels import parts
from sotscope_dashboards.panels.contract import Panel
from sotscope_dashboards.scene import Scene

ROWS, TOP, POINTS, BINS = 1024, 50, 48, 32
"""Rows that are read, dimensions that are listed, points of a sparkline, at most; bins of a histogram."""
SIZED = 256
"""Rows that median sizes are made of, at most."""
NAMED = 8
"""Outlier dimensions that the note names."""
NUMERIC = {"type": "numericColumn", "sortable": True, "width": 112}
COLUMNS: list[dict[str, Any]] = [
    {"field": "dim", "headerName": "dimension", **NUMERIC, "width": 98},
    {"field": "variance", "headerName": "variance", **NUMERIC, "sort": "desc"},
    {"field": "share", "headerName": "of variance (%)", **NUMERIC, "width": 124},
    {"field": "entropy", "headerName": "entropy (nats)", **NUMERIC, "width": 118},
    {"field": "stability", "headerName": "stability (−1 to 1)", **NUMERIC, "width": 136},
    {"field": "trend", "headerName": "over the view", "cellRenderer": "Sparkline", "sortable": False, "flex": 1,
     "cellDataType": False, "minWidth": 120},
    {"field": "outlier", "headerName": "stands out", "sortable": True, "width": 98},
]  # fmt: skip


@dataclass(frozen=True)
class Ranked:
    table: pd.DataFrame
    """One line a listed dimension; ``trend`` is a list of numbers."""
    note: str


class Dimensions(Panel):
    name: ClassVar[str] = "dimensions"
    title: ClassVar[str] = "Dimensions"
    kind = "grid"
    shows: ClassVar[str] = "The dimensions of one layer's states that vary most over the rows in view."
    look_for: ClassVar[str] = "A few dimensions with much of the variance, or one that steps where the text turns."
    not_meant: ClassVar[str] = (
        "A dimension has no meaning of its own: features are directions, and variance is no effect."
    )

    @parts.grid
    def draw(self, scene: Scene) -> dict[str, Any]:
        found = _ranked(scene)
        return {"columns": COLUMNS, "rows": _short(found.table), "note": found.note}

    @parts.columns("dim", "variance", "share", "entropy", "stability", "outlier")
    def table(self, scene: Scene) -> pd.DataFrame:
        return _ranked(scene).table.drop(columns="trend")


def sampled(count: int, most: int = ROWS) -> NDArray[np.int64]:
    """Places of at most ``most`` rows: all, or pairs of neighbours evenly spread (stability needs neighbours)."""
    if count <= most:
        return np.arange(count)
    first = np.linspace(0, count - 2, most // 2).round().astype(np.int64)
    return np.union1d(first, first + 1)


def _ranked(scene: Scene) -> Ranked:
    """Raises NothingError where fewer than two rows are left."""
    rows = parts.rows_in_view(scene)
    at = sampled(len(rows))
    states = parts.states(scene, rows[at]).astype(np.float64)
    norm = np.sqrt(np.vecdot(states, states))
    bad = ~np.isfinite(norm)
    sink = sinks(np.where(bad, np.nan, norm)[:, None])
    keep = ~bad & ~sink
    left = _left_out(at, scene.range[0], bad, sink & ~bad)
    if keep.sum() < 2:
        raise parts.NothingError(f"Variance needs two rows; {int(keep.sum())} of {len(rows)} can be used here.{left}")
    kept, place = states[keep], at[keep]
    centred = kept - kept.mean(0)
    variance = np.square(centred).mean(0)
    top = np.argsort(-variance, kind="stable")[:TOP]
    whole = variance.sum()
    words = _standing_out(kept, states[sink & ~bad], variance)
    table = pd.DataFrame(
        {
            "dim": top,
            "variance": variance[top],
            "share": 100 * variance[top] / whole if whole > 0 else np.zeros(len(top)),
            "entropy": histogram_entropy(kept[:, top], BINS),
            "stability": _stability(centred[:, top], np.diff(place) == 1),
            "trend": _trends(centred[:, top], kept[:, top]),
            "outlier": [words.get(int(dim), "") for dim in top],
        }
    )
    return Ranked(table, _note(scene, len(rows), at, table, states.shape[1], words) + left)


def _stability(centred: NDArray[np.float64], follows: NDArray[np.bool_]) -> NDArray[np.float64]:
    """[dim] correlation of successive tokens, von Neumann's ratio as in ``sotscope.analysis.dim_stats``."""
    before, after = centred[:-1][follows], centred[1:][follows]
    apart = (np.square(before) + np.square(after)).sum(0)
    together = 2 * (before * after).sum(0)
    found: NDArray[np.float64] = np.divide(together, apart, out=np.full(len(apart), np.nan), where=apart > 0)
    return found


def _trends(centred: NDArray[np.float64], kept: NDArray[np.float64]) -> list[list[float]]:
    """[dim] the values along the view; of each part the one that is farthest from the dimension's mean."""
    edges = np.linspace(0, len(kept), min(POINTS, len(kept)) + 1).round().astype(np.int64)
    far = [begin + np.abs(centred[begin:end]).argmax(0) for begin, end in pairwise(edges)]
    values = np.take_along_axis(kept, np.stack(far), axis=0)
    return [[float(f"{value:.4g}") for value in column] for column in values.T]


def _standing_out(
    kept: NDArray[np.float64], sink: NDArray[np.float64], variance: NDArray[np.float64]
) -> dict[int, str]:
    """In words, as `sotscope analyze dims` counts outliers: 20 times the median dimension's median size (over at most
    ``SIZED`` rows, which is enough for a factor of 20)."""
    size = np.median(np.abs(kept[parts.spread(len(kept), SIZED)]), 0)
    usual = float(np.median(size))
    words = dict.fromkeys(map(int, np.flatnonzero(variance == 0)), "constant")
    if usual > 0:
        largest = np.abs(sink).argmax(1)
        massive = np.abs(sink[np.arange(len(sink)), largest]) > OUTLIER * usual
        words |= dict.fromkeys(map(int, largest[massive]), "in sinks only")
        words |= dict.fromkeys(map(int, np.flatnonzero(size > OUTLIER * usual)), "outlier")
    return words


def _short(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of the grid; four digits are what a person reads."""
    numbers = ("variance", "share", "entropy", "stability")
    lines = [{str(name): value for name, value in line.items()} for line in table.to_dict("records")]
    return [line | {name: plain(float(f"{line[name]:.4g}")) for name in numbers} for line in lines]


def _note(
    scene: Scene, count: int, at: NDArray[np.int64], table: pd.DataFrame, width: int, words: dict[int, str]
) -> str:
    start = scene.range[0]
    rows = parts.span(start, start + count)
    if len(at) < count:
        rows = f"{len(at):,} of {count:,} rows in view (pairs of neighbours, evenly spread)"
    listed = f"the {len(table)} of {width:,} dimensions" if len(table) < width else parts.count(width, "dimension")
    if not table.variance.any():
        return f"{parts.called(scene)}, {rows}: nothing varies, all of them are the same."
    text = (
        f"{parts.called(scene)}, {rows}: {listed}{' that vary most' if len(table) < width else ''}, with "
        f"{table.share.sum():.3g} % of the variance. A sparkline shows {len(table.trend.iloc[0])} points, each the "
        "value farthest from the mean."
    )
    listed_dims = set(table.dim)
    others = sorted(dim for dim, word in words.items() if word != "constant" and dim not in listed_dims)
    if others:
        more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
        text += f" Outliers further down: {', '.join(f'{dim} ({words[dim]})' for dim in others[:NAMED])}{more}."
    fixed = sum(word == "constant" for word in words.values())
    return text + (
        f" {parts.count(fixed, 'dimension')} {'never changes' if fixed == 1 else 'never change'}." if fixed else ""
    )


def _left_out(at: NDArray[np.int64], start: int, bad: NDArray[np.bool_], sink: NDArray[np.bool_]) -> str:
    """What does not count, in words."""
    text = ""
    for mask, why in ((sink, "norm far above the others', a sink"), (bad, "NaN or infinity")):
        if mask.any():
            places = (start + at[mask])[:NAMED].tolist()
            more = f" and {int(mask.sum()) - NAMED} more" if mask.sum() > NAMED else ""
            text += f" Left out: row{'s' if len(places) > 1 else ''} {ranges(places)}{more} ({why})."
    return text
