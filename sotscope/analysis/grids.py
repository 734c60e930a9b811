"""Grids: a coloured square for every pair, layer by layer or layer by head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from sotscope.analysis.figures import DIVERGING, SEQUENTIAL, figure

TICKS = 16
"""Names along an axis at most."""


def grid(
    values: NDArray[Any],
    down: tuple[str, Sequence[Any]],
    across: tuple[str, Sequence[Any]],
    title: str,
    unit: str,
    *,
    diverging: bool = False,
    scaled_by: NDArray[np.bool_] | None = None,
) -> go.Figure:
    """``values [down, across]``; ``down`` and ``across`` are what an axis shows and the names along it.

    The colours span the 2nd to the 98th percentile of the values (of those ``scaled_by`` picks), symmetric about 0 if
    ``diverging``, so one outlier hides nothing.
    """
    made = figure(title, across[0], down[0], height=170 + min(560, 16 * max(8, len(down[1]))))
    shown = values[scaled_by] if scaled_by is not None and scaled_by.any() else values
    finite = shown[np.isfinite(shown)]
    low, high = np.percentile(finite, [2, 98]) if len(finite) else (0.0, 1.0)
    if diverging:
        high = max(abs(low), abs(high)) or 1.0
        low = -high
    rows, columns = len(down[1]), len(across[1])
    made.add_heatmap(
        z=values, x=list(range(columns)), y=list(range(rows)), zmin=low, zmax=high if high > low else low + 1,
        colorscale=DIVERGING if diverging else SEQUENTIAL, reversescale=diverging,
        colorbar={"title": {"text": unit, "side": "right"}, "thickness": 12, "outlinewidth": 0},
        customdata=np.broadcast_to(np.array([str(name) for name in across[1]], object), (rows, columns)),
        text=[[str(name)] * columns for name in down[1]],
        hovertemplate=f"{down[0]} %{{text}}<br>{across[0]} %{{customdata}}<br>%{{z:.4g}} {unit}<extra></extra>",
    )  # fmt: skip
    for axis, names in (("xaxis", across[1]), ("yaxis", down[1])):
        every = -(-len(names) // TICKS) or 1
        ticks = {"tickvals": list(range(0, len(names), every)), "ticktext": [str(name) for name in names[::every]]}
        made.update_layout({axis: ticks})
    return made
