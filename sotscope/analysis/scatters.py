"""Scatter figures of layouts, flat or in space: points in the order of their table, by a number or by cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from sotscope.analysis.figures import COLOURS, GREY, SEQUENTIAL, figure

AXES = ("x", "y", "z")
MANY = 2000
"""More points are drawn by WebGL."""
APART = tuple(colour for colour in COLOURS if colour != "#8C8C8C")
"""Colours of clusters: grey is for points in none."""
SYMBOLS = ("circle", "square", "diamond", "cross", "x")
"""Shapes that plotly knows in space too; with the colours, clusters differ by more than one of them."""


def by_number(table: pd.DataFrame, titles: Sequence[str], title: str, number: str, *, path: bool = False) -> go.Figure:
    """Points coloured by a column; ``path`` joins them in order and writes the number beside each."""
    made = _empty(titles, title)
    drawn = table[table.x.notna()]
    marker = {
        "color": drawn[number], "colorscale": SEQUENTIAL, "size": 7, "line": {"color": GREY, "width": 0.5},
        "colorbar": {"title": {"text": number, "side": "right"}, "thickness": 12, "outlinewidth": 0},
    }  # fmt: skip
    extra: dict[str, Any] = {"mode": "markers"}
    if path:
        extra = {"mode": "lines+markers+text", "text": drawn[number], "textposition": "top center"}
        extra["line"] = {"color": GREY, "width": 1}
    _add(made, drawn, titles, marker=marker, name="", **extra)
    return made


def by_cluster(table: pd.DataFrame, named: pd.DataFrame, titles: Sequence[str], title: str) -> go.Figure:
    """Points coloured by cluster, those in none grey; ``named`` has a line a cluster, with its ``name``."""
    made = _empty(titles, title)
    drawn = table[table.x.notna()]
    _add(
        made, drawn[drawn.cluster < 0], titles, mode="markers", name="in no cluster",
        marker={"color": GREY, "size": 4, "opacity": 0.6},
    )  # fmt: skip
    for k, name in zip(named.cluster, named.name, strict=True):
        look = {"color": APART[k % len(APART)], "symbol": SYMBOLS[k % len(SYMBOLS)], "size": 7}
        _add(made, drawn[drawn.cluster == k], titles, mode="markers", name=name.replace("<", "&lt;"), marker=look)
    made.update_layout(showlegend=True)
    return made


def _empty(titles: Sequence[str], title: str) -> go.Figure:
    made = figure(title, titles[0], titles[1], height=520)
    if len(titles) > 2:
        look = {"gridcolor": "rgba(136,136,136,0.25)", "showbackground": False}
        scene = {f"{axis}axis": {"title": {"text": text}, **look} for axis, text in zip(AXES, titles, strict=True)}
        made.update_layout(scene=scene)
    return made


def _add(made: go.Figure, points: pd.DataFrame, titles: Sequence[str], **look: Any) -> None:
    places = {axis: points[axis] for axis in AXES[: len(titles)]}
    look |= {"customdata": _hover(points), "hovertemplate": "%{customdata}<extra></extra>"}
    if len(titles) > 2:
        made.add_scatter3d(**places, **look)
    elif len(points) > MANY:
        made.add_scattergl(**places, **look)
    else:
        made.add_scatter(**places, **look)


def _hover(points: pd.DataFrame) -> np.ndarray[Any, np.dtype[Any]]:
    """One text a point: every column but the coordinates."""
    columns = [name for name in points.columns if name not in AXES]
    lines = [
        "<br>".join(
            f"{name} {str(value).replace('<', '&lt;')}" for name, value in zip(columns, row, strict=True) if value != -1
        )
        for row in points[columns].itertuples(index=False, name=None)
    ]
    return np.array(lines, object)
