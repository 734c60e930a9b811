"""The profile over layers at the cursor, over the usual range of the view."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sotscope.plain import plain, ranges
from sotscope_dashboards import style
from sotscope_dashboards.panels import parts
from sotscope_dashboards.panels.contract import Panel
from sotscope_dashboards.scene import Scene

SCALARS = {"norm": "L2 norm", "max_abs": "largest number (without sign)", "cosine": "cosine to the row before"}
SIZES = ("norm", "max_abs")
BAND = (5.0, 50.0, 95.0)
"""Percentiles of the view: the band's edges, and its middle."""
ROWS = 2048
"""Rows that the band is made of, at most."""
LOG = 30.0
"""A range of positive numbers this many times its smallest is drawn on a log axis."""


class Layers(Panel):
    name: ClassVar[str] = "layers"
    title: ClassVar[str] = "Layers"
    shows: ClassVar[str] = "The size of the state under the cursor in each layer, over the usual range of the view."
    look_for: ClassVar[str] = "A layer in which this token leaves the band of the others."
    not_meant: ClassVar[str] = "A large norm alone is no fault: the first token's is always large (attention sink)."
    by_cursor: ClassVar[bool] = True

    @parts.figure(parts.EMPTY)
    def draw(self, scene: Scene) -> dict[str, Any]:
        found = _profiles(scene)
        theme = scene.look.theme
        note, margin = parts.headline([_title(scene), *_gaps(scene, found)], theme)
        picture = style.layout(
            theme, 300 + margin, margin={"t": margin}, annotations=[note], hovermode="x unified",
            uirevision=parts.uirevision(scene),
        )  # fmt: skip
        data: list[dict[str, Any]] = []
        picture["shapes"] = []
        for i, (name, domain) in enumerate(zip(found, parts.across(len(found)), strict=True)):
            scale = _scale(np.concatenate(list(found[name].values()))) if name in SIZES else {}
            words = SCALARS[name] + (" (log)" if scale else "")
            axes = parts.pane(picture, i, domain, "layer", words, yaxis=scale)
            data += _traces(scene, found[name], axes)
            picture["shapes"].append(_at(scene, axes))
        return {"data": data, "layout": plain(picture)}

    @parts.columns("position", "token", "layer", *SCALARS)
    def table(self, scene: Scene) -> pd.DataFrame:
        found = _profiles(scene)
        assert scene.run is not None
        token = scene.run.tokens_at(scene.lineage[[scene.cursor]]).labels[0]
        lines = pd.DataFrame({"position": scene.cursor, "token": token, "layer": scene.layers})
        for name, profile in found.items():
            for column, values in profile.items():
                lines[name if column == "cursor" else f"{name}_{column}"] = values
        return lines


def _profiles(scene: Scene) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Of each scalar: cursor, p5, p50 and p95 [layer]. Raises NothingError where none was recorded."""
    rows = parts.rows_in_view(scene)
    assert scene.run is not None
    count = len(scene.layers)
    known = {scalar.name for scalar in scene.run.spec.scalars if scalar.row == (count,)}
    if not count or not known & set(SCALARS):
        raise parts.NothingError("This run has no scalars of each layer (norm, max_abs, cosine).")
    rows = rows[parts.spread(len(rows), ROWS)]
    found = {}
    for name in [name for name in SCALARS if name in known]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a layer without a finite number
            band = np.nanpercentile(parts.finite(scene.scalar(name, rows)), BAND, axis=0)
        cursor = parts.finite(scene.scalar(name, scene.lineage[[scene.cursor]])[0])
        found[name] = {"cursor": cursor} | {f"p{level:g}": line for level, line in zip(BAND, band, strict=True)}
    return found


def _scale(values: NDArray[np.float64]) -> dict[str, Any]:
    """A log axis where it shows more, and hides nothing: ticks at 1, 2 and 5, or at the powers of ten alone."""
    known = values[np.isfinite(values)]
    if not len(known) or known.min() <= 0 or known.max() < LOG * known.min():
        return {}
    low, high = (int(np.floor(np.log10(edge))) for edge in (known.min(), known.max()))
    step = max(1, (high - low) // 6)
    ticks = [
        digit * 10.0**power for power in range(low, high + 1, step) for digit in ((1, 2, 5) if high - low < 3 else (1,))
    ]
    return {
        "type": "log",
        "tickvals": ticks,
        "ticktext": [f"{tick:,g}" if tick < 1e6 else f"{tick:.0e}" for tick in ticks],
    }


def _title(scene: Scene) -> str:
    assert scene.run is not None
    token = scene.run.tokens_at(scene.lineage[[scene.cursor]]).labels[0]
    start, stop = scene.range
    of = f" ({ROWS:,} of them, evenly spread)" if stop - start > ROWS else ""
    return (
        f"Line: row {scene.cursor} “{token}”. Band: the middle 90 % (p5 to p95) of {parts.span(start, stop)}{of}; "
        f"dotted: their median. Upright line: layer {scene.layer}."
    )


def _gaps(scene: Scene, found: dict[str, dict[str, NDArray[np.float64]]]) -> list[str]:
    """Where the line breaks, in words."""
    layers = np.array(scene.layers)
    lines: dict[str, list[str]] = {}
    for name, profile in found.items():
        gone = np.isnan(profile["cursor"])
        if gone.any():
            where = "in any layer" if gone.all() else f"in layers {ranges(layers[gone].tolist())}"
            lines.setdefault(where, []).append(name)
    why = "not finite, or not computed there" if scene.cursor else "not finite, or the first row has none before it"
    return [f"No {', '.join(names)} of this row {where}: {why}." for where, names in lines.items()]


def _traces(scene: Scene, profile: dict[str, NDArray[np.float64]], axes: dict[str, str]) -> list[dict[str, Any]]:
    """Band, median and cursor."""
    colours = style.THEMES[scene.look.theme]
    common = {"type": "scatter", "x": style.typed(scene.layers), **axes}
    low, middle, high = (style.typed(profile[f"p{level:g}"]) for level in BAND)
    edge = {**common, "mode": "lines", "line": {"width": 0}}
    return [
        {**edge, "name": "p5", "y": low, "hovertemplate": "%{y:.4g}"},
        {**edge, "name": "p95", "y": high, "fill": "tonexty", "fillcolor": "rgba(128,140,160,0.22)",
         "hovertemplate": "%{y:.4g}"},
        {**common, "name": "median", "y": middle, "mode": "lines", "hovertemplate": "%{y:.4g}",
         "line": {"color": colours["soft"], "width": 1, "dash": "dot"}},
        {**common, "name": f"row {scene.cursor}", "y": style.typed(profile["cursor"]), "mode": "lines+markers",
         "line": {"color": colours["accent"], "width": 2}, "marker": {"size": 4}, "hovertemplate": "%{y:.4g}"},
    ]  # fmt: skip


def _at(scene: Scene, axes: dict[str, str]) -> dict[str, Any]:
    """The chosen layer as an upright line."""
    return {"type": "line", "xref": axes["xaxis"], "yref": f"{axes['yaxis']} domain", "x0": scene.layer,
            "x1": scene.layer, "y0": 0, "y1": 1,
            "line": {"color": style.THEMES[scene.look.theme]["soft"], "width": 1}}  # fmt: skip
