"""Figures that all analyzers draw alike: one look, colours that survive outliers, colour-blindness and dark pages.

Backgrounds are transparent and greys readable on white and on black, so that a figure fits the page it stands in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C8C8C", "#B8A90B")
"""Okabe and Ito's palette, safe for colour-blind readers; black and yellow made greys and olive for dark pages."""
SEQUENTIAL = "Cividis"
DIVERGING = "RdBu"
GREY = "#888888"
COLUMNS = 1200
"""Columns a heatmap draws; more tokens are drawn by the largest of their group."""


def figure(title: str, x: str, y: str, *, height: int = 380) -> go.Figure:
    """An empty figure with the house's look. ``x`` and ``y`` name the axes, units included."""
    made = go.Figure()
    axis = {"gridcolor": "rgba(136,136,136,0.25)", "zeroline": False, "linecolor": GREY, "ticks": "outside"}
    made.update_layout(
        title={"text": title, "x": 0, "xanchor": "left", "font": {"size": 15}},
        font={"color": GREY, "family": "system-ui, sans-serif", "size": 12},
        paper_bgcolor="rgba(0,0,0,0)", plot_bgcolor="rgba(0,0,0,0)", colorway=list(COLOURS), height=height,
        margin={"l": 64, "r": 16, "t": 48, "b": 52}, legend={"orientation": "h", "y": -0.22, "x": 0},
        xaxis={"title": {"text": x}, **axis}, yaxis={"title": {"text": y}, **axis},
    )  # fmt: skip
    return made


def heatmap(
    values: NDArray[Any],
    labels: Sequence[str],
    layers: Sequence[Any],
    title: str,
    unit: str,
    *,
    diverging: bool = False,
    rows: str = "layer",
) -> go.Figure:
    """``values [token, layer]`` with tokens along x: their position is the axis, their text is in the hover.

    The colours span the 2nd to the 98th percentile (symmetric about 0 if ``diverging``), so one outlier hides nothing.
    """
    made = figure(title, "token (position in this view)", rows, height=180 + min(520, 14 * max(6, len(layers))))
    drawn, begins, width = pooled(values)
    finite = drawn[np.isfinite(drawn)]
    low, high = np.percentile(finite, [2, 98]) if len(finite) else (0.0, 1.0)
    if diverging:
        high = max(abs(low), abs(high)) or 1.0
        low = -high
    names = [name(labels, begin, width) for begin in begins]
    made.add_heatmap(
        z=drawn.T, x=begins + (width - 1) / 2, y=list(range(len(layers))),
        zmin=low, zmax=high if high > low else low + 1,
        colorscale=DIVERGING if diverging else SEQUENTIAL, reversescale=diverging,
        colorbar={"title": {"text": unit, "side": "right"}, "thickness": 12, "outlinewidth": 0},
        customdata=np.broadcast_to(np.array(names, object), (len(layers), len(names))),
        text=[[str(layer)] * len(names) for layer in layers],
        hovertemplate=f"%{{customdata}}<br>{rows} %{{text}}<br>%{{z:.4g}} {unit}<extra></extra>",
    )  # fmt: skip
    every = max(1, len(layers) // 10)
    made.update_yaxes(tickvals=list(range(0, len(layers), every)), ticktext=[str(layer) for layer in layers[::every]])
    return made


def pooled(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64], int]:
    """``values [token, layer]`` in at most ``COLUMNS`` groups of neighbours, each its value of largest size; where the
    groups begin, and how many tokens each has.
    """
    width = -(-len(values) // COLUMNS)
    begins = np.arange(0, len(values), width)
    if width == 1:
        return values, begins, 1
    padded = np.full((len(begins) * width, values.shape[1]), np.nan)
    padded[: len(values)] = values
    groups = padded.reshape(len(begins), width, -1)
    at = np.where(np.isfinite(groups), np.abs(groups), -1).argmax(1)
    return np.take_along_axis(groups, at[:, None], 1)[:, 0], begins, width


def name(labels: Sequence[str], begin: int, width: int = 1) -> str:
    """What the hover says of a token, or of a group of them."""
    shown = "".join(labels[begin : begin + width])[:60].replace("<", "&lt;")
    where = f"{begin}" if width == 1 else f"{begin}–{min(len(labels), begin + width) - 1}"
    return f"token {where}: {shown}"


def lines(
    series: Mapping[str, ArrayLike],
    title: str,
    x: str,
    y: str,
    *,
    at: ArrayLike | None = None,
    hover: Sequence[str] | None = None,
    log: bool = False,
    zero: bool = False,
) -> go.Figure:
    """One line a series. ``at`` are the x positions (default 0, 1, ...), ``hover`` texts for them; with ``zero`` the y
    axis begins at 0.
    """
    made = figure(title, x, y)
    for label, values in series.items():
        y_values = np.asarray(values)
        made.add_scatter(
            x=np.arange(len(y_values)) if at is None else np.asarray(at), y=y_values, name=label,
            mode="lines+markers" if len(y_values) <= 64 else "lines", marker={"size": 5}, customdata=hover,
            hovertemplate=("%{customdata}<br>" if hover is not None else f"{x} %{{x}}<br>") + "%{y:.4g}",
        )  # fmt: skip
    made.update_layout(showlegend=len(series) > 1, hovermode="x unified" if hover is None else "closest")
    if log:
        made.update_yaxes(type="log", dtick="D2")
    if zero:
        made.update_yaxes(rangemode="tozero")
    return made


def bars(labels: Sequence[str], values: ArrayLike, title: str, x: str, y: str) -> go.Figure:
    """Horizontal bars, first on top: names are read without turning one's head."""
    made = figure(title, x, y, height=140 + 24 * max(3, len(labels)))
    made.add_bar(
        y=list(range(len(labels))), x=np.asarray(values), orientation="h", marker={"color": COLOURS[0]},
        customdata=list(labels), hovertemplate="%{customdata}<br>%{x:.4g}<extra></extra>",
    )  # fmt: skip
    made.update_yaxes(tickvals=list(range(len(labels))), ticktext=list(labels), autorange="reversed")
    return made
