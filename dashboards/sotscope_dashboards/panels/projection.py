"""The states of one layer on two axes that stay: principal components of the first rows, the view projected on them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sotscope.analysis.facts import sinks
from sotscope.plain import plain, ranges
from sotscope_dashboards import style
from sotscope_dashboards.panels import parts
from sotscope_dashboards.panels.contract import Panel
from sotscope_dashboards.scene import Scene

POINTS = 4000
"""Rows that are drawn, at most."""
FIT = 512
"""Rows that the axes are fitted on, at most, evenly spread over the basis."""
NAMED = 8
SCALES = {
    "light": style.SEQUENTIAL,
    # cividis begins nearly black
    "dark": [[0.0, "#5b7fc0"], [0.33, "#8a8f98"], [0.66, "#bfb178"], [1.0, "#fee838"]],
}


class Projection(Panel):
    name: ClassVar[str] = "projection"
    title: ClassVar[str] = "Projection"
    shows: ClassVar[str] = "The states of one layer as points, on the two axes along which the first rows vary most."
    look_for: ClassVar[str] = "Points that gather (the text repeats itself) or drift away, and the path they take."
    not_meant: ClassVar[str] = (
        "Near here need not be near in full: two axes show only the share of variance given above."
    )
    by_cursor: ClassVar[bool] = True

    @parts.figure(parts.EMPTY)
    def draw(self, scene: Scene) -> dict[str, Any]:
        found = Projected(scene)
        theme = scene.look.theme
        note, margin = parts.headline(found.words, theme)
        picture = style.layout(
            theme, 420 + margin, margin={"t": margin}, annotations=[note], dragmode="lasso", hovermode="closest",
            uirevision=parts.uirevision(scene, *parts.subject(scene), found.basis), meta={"basis": found.basis},
        )  # fmt: skip
        ranges_of = [_range(axis[found.inside]) for axis in found.points.T]
        axes = parts.pane(
            picture, 0, (0.0, 1.0), f"component 1 ({found.shares[0]:.1%} of the variance)",
            f"component 2 ({found.shares[1]:.1%})", xaxis=ranges_of[0], yaxis=ranges_of[1],
        )  # fmt: skip
        data = [_points(found, axes, theme), *_cursor(found, axes, picture, theme)]
        return {"data": data, "layout": plain(picture)}

    @parts.columns("position", "token", "x", "y")
    def table(self, scene: Scene) -> pd.DataFrame:
        found = Projected(scene)
        x, y = found.points.T
        return pd.DataFrame({"position": found.at, "token": found.labels, "x": x, "y": y})


@dataclass(frozen=True)
class Fit:
    """Mean [dim], two axes [2, dim], their shares of the variance, and how many rows they come from."""

    mean: NDArray[np.float64]
    axes: NDArray[np.float64]
    shares: tuple[float, float]
    rows: int


@dataclass(frozen=True)
class Projected:
    """Worked out once a picture. Raises NothingError where there are too few rows."""

    scene: Scene

    @cached_property
    def basis(self) -> int:
        """First rows of the lineage that the axes stand for: the largest power of two there is, so that they seldom
        change while a run grows."""
        total = self.scene.total
        return min(max(1 << max(0, total.bit_length() - 1), 3), total)

    @cached_property
    def _axes(self) -> Fit:
        """Kept between looks: rows never change, and the same ones are asked for several times a second."""
        rows = parts.rows_in_view(self.scene)
        if len(rows) < 3:
            raise parts.NothingError(f"A projection needs three rows; {parts.count(len(rows), 'row')} in view.")
        key = ("projection", self.scene.seq, *parts.subject(self.scene), self.basis)
        if key not in self.scene.memo:
            places = parts.spread(self.basis, FIT)
            self.scene.memo[key] = fit(parts.states(self.scene, self.scene.lineage[places]))
        found: Fit | None = self.scene.memo[key]
        if found is None:
            raise parts.NothingError(
                f"The first {self.basis:,} rows of {parts.called(self.scene)} give no axes: too few can be used, "
                "or all are the same."
            )
        return found

    @property
    def shares(self) -> tuple[float, float]:
        return self._axes.shares

    @cached_property
    def _drawn(self) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64], int]:
        """Rows that are drawn, along the lineage; where [point, 2]; their norms; and how many are not finite."""
        axes, rows, start = self._axes, self.scene.rows, self.scene.range[0]
        places = parts.spread(len(rows), POINTS)
        here = self.scene.cursor - start
        if 0 <= here < len(rows) and here not in places:
            places[np.abs(places - here).argmin()] = here
        states = parts.states(self.scene, rows[places]).astype(np.float64)
        norm = np.sqrt(np.vecdot(states, states))
        good = np.isfinite(norm)
        if not good.any():
            raise parts.NothingError(f"No row in view is finite in {parts.called(self.scene)}.")
        return start + places[good], (states[good] - axes.mean) @ axes.axes.T, norm[good], int((~good).sum())

    @property
    def at(self) -> NDArray[np.int64]:
        """[point] rows along the lineage."""
        return self._drawn[0]

    @property
    def points(self) -> NDArray[np.float64]:
        """[point, 2]"""
        return self._drawn[1]

    @cached_property
    def inside(self) -> NDArray[np.bool_]:
        """[point] False for sinks, which would press all others into a corner."""
        sink = sinks(self._drawn[2][:, None])
        return ~sink if not sink.all() else np.ones(len(sink), bool)

    @cached_property
    def labels(self) -> list[str]:
        assert self.scene.run is not None
        return self.scene.run.tokens_at(self.scene.lineage[self.at]).labels

    @property
    def words(self) -> list[str]:
        start, stop = self.scene.range
        count, used = stop - start, self._axes.rows
        drawn = (
            f"{len(self.at):,} of the {count:,} rows in view, evenly spread"
            if count > POINTS
            else parts.count(count, "row")
        )
        lines = [
            f"{parts.called(self.scene)}, {drawn}. Axes: PCA of {used:,} of the first {self.basis:,} rows "
            f"(evenly spread, without sinks); they show {sum(self.shares):.0%} of the variance there."
        ]
        outside = self.at[~self.inside]
        if len(outside):
            more = f" and {len(outside) - NAMED} more" if len(outside) > NAMED else ""
            lines.append(
                f"Outside the frame: row {ranges(outside[:NAMED].tolist())}{more} (sinks: norm far above the others'); "
                "autoscale shows them."
            )
        if self._drawn[3]:
            lines.append(f"{parts.count(self._drawn[3], 'row')} not drawn: NaN or infinity.")
        return lines


def fit(states: NDArray[np.float32]) -> Fit | None:
    """PCA of ``states [row, dim]`` without sinks and rows that are not finite; None where there is no variance."""
    states = states[np.isfinite(states).all(1)].astype(np.float64)
    if len(states):
        states = states[~sinks(np.linalg.norm(states, axis=1)[:, None])]
    if len(states) < 3:
        return None
    mean = states.mean(0)
    _, sizes, axes = np.linalg.svd(states - mean, full_matrices=False)
    power = np.square(sizes)
    if not power.sum() > 1e-12 * max(1.0, float(np.square(mean).sum())):
        return None
    axes, power = axes[:2], power / power.sum()
    if len(axes) < 2:
        axes, power = np.concatenate([axes, np.zeros_like(axes)]), np.append(power, 0.0)
    # an axis has no direction of its own: its largest number is positive, so that a picture never turns over
    signs = np.sign(axes[np.arange(2), np.abs(axes).argmax(1)])
    return Fit(mean, axes * np.where(signs == 0, 1, signs)[:, None], (float(power[0]), float(power[1])), len(states))


def _range(values: NDArray[np.float64]) -> dict[str, Any]:
    low, high = float(values.min()), float(values.max())
    room = 0.06 * (high - low) or 1.0
    return {"range": [low - room, high + room], "zeroline": False}


def _points(found: Projected, axes: dict[str, str], theme: str) -> dict[str, Any]:
    shown = {label: style.escaped(label) for label in set(found.labels)}  # tokens repeat
    hover = [f"row {at} “{shown[label]}”" for at, label in zip(found.at, found.labels, strict=True)]
    bar = {"title": {"text": "row", "side": "right"}, "thickness": 10, "outlinewidth": 0}
    return {
        "type": "scatter", "mode": "markers", **axes, "name": "rows", "customdata": style.typed(found.at),
        "x": style.typed(found.points[:, 0]), "y": style.typed(found.points[:, 1]), "hovertext": hover,
        "hovertemplate": "%{hovertext}<extra></extra>", "unselected": {"marker": {"opacity": 0.2}},
        "marker": {"color": style.typed(found.at), "colorscale": SCALES[theme], "size": 6, "colorbar": bar,
                   "line": {"width": 0.5, "color": style.THEMES[theme]["soft"]}},
    }  # fmt: skip


def _cursor(found: Projected, axes: dict[str, str], picture: dict[str, Any], theme: str) -> list[dict[str, Any]]:
    """The point of the row under the cursor, outlined, and named by an annotation of the ``picture``."""
    place = np.flatnonzero(found.at == found.scene.cursor)
    if not len(place):
        return []
    x, y = map(float, found.points[place[0]])
    colours = style.THEMES[theme]
    name = f"row {found.scene.cursor} “{style.escaped(found.labels[place[0]])}”"
    picture["annotations"].append(
        {"text": name, "x": x, "y": y, "showarrow": False, "yshift": 19, "bgcolor": colours["card"], "borderpad": 1,
         "font": {"color": colours["accent"], "size": 12}}
    )  # fmt: skip
    return [
        {
            "type": "scatter", "mode": "markers", **axes, "name": "cursor", "x": [x], "y": [y], "hoverinfo": "skip",
            "marker": {"symbol": "circle-open", "size": 14, "color": colours["accent"], "line": {"width": 2.5}},
        }
    ]  # fmt: skip
