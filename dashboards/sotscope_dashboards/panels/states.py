"""The stack on one token axis: a heatmap of the states, accepted per step, entropy and margin, alarms and commands."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sotscope.robust import MAD_TO_SIGMA
from sotscope_dashboards import style
from sotscope_dashboards.panels import alarms, parts
from sotscope_dashboards.panels.contract import Panel
from sotscope_dashboards.panels.marks import marks
from sotscope_dashboards.pooling import COLUMNS, Grid, pool
from sotscope_dashboards.scene import Scene

HEIGHT = 380
MARGIN = (20, 38)
"""Pixels above and below."""
UNITS = {
    "norm": "L2 norm ÷ layer's median", "max_abs": "largest number ÷ layer's median",
    "change": "change from the token before ÷ layer's median", "cosine": "cosine to the token before",
}  # fmt: skip
BANDS = {"yaxis": [0.43, 1.0], "yaxis2": [0.27, 0.37], "yaxis3": [0.105, 0.215], "yaxis4": [0.0, 0.05]}
TICKS = 10
NAMED = 0.06
"""Share of the view from which on a stretch of one mode is named."""
CAPTION = 0.12
"""Share of the view that a band's caption takes."""
MOST = 2048
"""Tokens in view for which the states of a site are read; resid's numbers are recorded."""
FAR = 8.0
"""Robust standard deviations from the median at which the colours end."""


class States(Panel):
    name: ClassVar[str] = "states"
    title: ClassVar[str] = "States"
    shows: ClassVar[str] = (
        "Each column is a token, each row a layer: how large its state is, how far it moved, or how it is turned."
    )
    look_for: ClassVar[str] = (
        "Columns that stand out in all layers, bands that begin at one token, tall steps where drafts were taken."
    )
    not_meant: ClassVar[str] = "A bright cell is unusual for its layer, not wrong; the first token always stands out."

    @parts.figure(HEIGHT)
    def draw(self, scene: Scene) -> dict[str, Any]:
        theme = scene.look.theme
        rows = parts.rows_in_view(scene)
        if scene.site != "resid" and len(rows) > MOST:
            raise parts.NothingError(f"{len(rows):,} tokens are in view; zoom in to {MOST:,} to see {scene.site}.")
        values = cells(scene)
        grid = pool(values)
        heat, said = _heatmap(scene, grid)
        lines = _lines(scene)
        start, stop = scene.range
        lane, lanes = alarms.lane(scene)
        layout = style.layout(
            theme, HEIGHT + lanes * alarms.LANE, uirevision=f"{scene.look.run}/{scene.look.seq}", bargap=0,
            hovermode="closest",
            xaxis={"range": [start - 0.5, stop - 0.5], "anchor": "free", "position": 0, **_ticks(scene)},
            margin={"l": 46, "r": 52, "t": MARGIN[0], "b": MARGIN[1]},
            shapes=[{"type": "line", "xref": "x", "yref": "paper", "x0": scene.cursor, "x1": scene.cursor, "y0": 0,
                     "y1": 1, "line": {"color": style.THEMES[theme]["ink"], "width": 1}}],
            annotations=_captions(said, _changes(scene), theme, lanes),
        )  # fmt: skip
        axis = layout["yaxis"]
        for name, domain in BANDS.items():
            layout[name] = {**axis, "domain": [_above(edge, lanes) for edge in domain], "anchor": "x"}
        layout["yaxis"] |= {"title": {"text": "layer"}, "showgrid": False, "fixedrange": True}
        bars, tallest = _steps(scene)
        layout["yaxis2"] |= {"range": [0, tallest * 1.05], "dtick": -(-tallest // 2), "fixedrange": True}
        layout["yaxis3"] |= {"rangemode": "tozero", "nticks": 3, "fixedrange": True}
        layout["yaxis4"] |= {"visible": False, "range": [0, 1], "fixedrange": True}
        if lanes:
            under = {"domain": [0.0, _above(0.0, lanes)], "range": [lanes, 0], "anchor": "x"}
            layout["yaxis5"] = {**axis, **under, "visible": False, "fixedrange": True}
        heat["colorbar"]["len"] = 1 - _above(0.4, lanes)
        return {"data": [heat, bars, *lines, marks(scene), *lane], "layout": layout}

    @parts.columns("token", "label", "mode", "entropy", "margin")
    def table(self, scene: Scene) -> pd.DataFrame:
        parts.rows_in_view(scene)
        values = cells(scene)
        facts = {"token": np.arange(*scene.range), "label": scene.labels, "mode": scene.tokens.modes}
        facts |= {name: scene.scalar(name) for name in ("entropy", "margin")}
        layers = {f"{scene.look.scalar} layer {k}": values[:, i] for i, k in enumerate(scene.shown_layers)}
        return pd.DataFrame(facts | layers)


def cells(scene: Scene) -> NDArray[np.float64]:
    """[token, layer] what the heatmap is made of, for the layers that are shown; see ``UNITS``."""
    scalar = scene.look.scalar
    values = _change(scene) if scalar == "change" else _numbers(scene, scene.rows, (scalar,))[0]
    if scalar == "cosine":
        return values
    finite = np.where(np.isfinite(values), values, np.nan)
    usual = np.ones(values.shape[1])
    known = np.isfinite(finite).any(0)
    usual[known] = np.nanmedian(finite[:, known], 0)
    found: NDArray[np.float64] = values / np.where(usual > 0, usual, 1.0)
    return found


def _numbers(scene: Scene, rows: NDArray[np.int64], names: tuple[str, ...]) -> list[NDArray[np.float64]]:
    """Each of ``names`` [token, layer] for the layers that are shown: recorded ones of resid, else from the states."""
    assert scene.run is not None
    layers = scene.shown_layers
    if scene.site == "resid":
        columns = [scene.layers.index(layer) for layer in layers]
        return [np.asarray(scene.scalar(name, rows)[:, columns], np.float64) for name in names]
    at = int(np.searchsorted(scene.lineage, rows[0]))
    first = scene.lineage[max(0, at - 1)]  # cosines are to the row before
    states = scene.run.take(scene.site, np.concatenate([[first], rows]), layers=tuple(layers))
    flat = states.reshape(*states.shape[:2], -1)
    with np.errstate(all="ignore"):
        norm = np.sqrt(np.einsum("tld,tld->tl", flat, flat, dtype=np.float64))
        if not at:
            norm[0] = np.nan
        made = {"norm": lambda: norm[1:], "max_abs": lambda: np.abs(flat[1:]).max(2).astype(np.float64),
                "cosine": lambda: np.einsum("tld,tld->tl", flat[1:], flat[:-1], dtype=np.float64)
                / (norm[1:] * norm[:-1])}  # fmt: skip
        return [made[name]() for name in names]


def _change(scene: Scene) -> NDArray[np.float64]:
    """[token, layer] L2 distance to the row before, from both norms and the cosine between them; NaN at a start."""
    first = scene.range[0]
    rows = scene.lineage[max(0, first - 1) : scene.range[1]]
    norm, cosine = _numbers(scene, rows, ("norm", "cosine"))
    with np.errstate(all="ignore"):
        square = norm[1:] ** 2 + norm[:-1] ** 2 - 2 * norm[1:] * norm[:-1] * cosine[1:]
        found = np.sqrt(np.maximum(square, 0))
    return found if first else np.concatenate([np.full((1, norm.shape[1]), np.nan), found])


def _heatmap(scene: Scene, grid: Grid) -> tuple[dict[str, Any], str]:
    scalar, layers = scene.look.scalar, scene.shown_layers
    finite = grid.cells[np.isfinite(grid.cells)]
    low, high = (-1.0, 1.0) if scalar == "cosine" else (0.0, 1.0)
    said = grid.said
    if scalar != "cosine" and len(finite):
        low, high = _colours(finite)
        over = int((finite > high).sum())
        said = " · ".join(filter(None, [f"colours end at {high:.2g} ({over} cells above)" if over else "", said]))
    trace = {
        "type": "heatmap", "z": style.typed(grid.cells), "x0": scene.range[0] + (grid.width - 1) / 2, "dx": grid.width,
        "y0": layers[0], "dy": grid.height if len(layers) < 2 else (layers[1] - layers[0]) * grid.height,
        "zmin": low, "zmax": high, "name": scalar, "hoverongaps": False,
        "colorscale": style.DIVERGING if scalar == "cosine" else style.SEQUENTIAL,
        "hovertemplate": "token %{x:.0f}, layer %{y}: %{z:.3g}<extra></extra>",
        "colorbar": {"len": 0.6, "y": 1, "yanchor": "top", "thickness": 10, "outlinewidth": 0, "nticks": 5},
    }  # fmt: skip
    if scalar == "cosine":
        trace["reversescale"] = True
    site = "" if scene.site == "resid" else f"{scene.site}: "
    return trace, " · ".join(filter(None, [site + UNITS[scalar], said]))


def _colours(finite: NDArray[np.float64]) -> tuple[float, float]:
    """Where the colours begin and end: as far as numbers usually go, by median and MAD, so that no sink takes all."""
    middle = float(np.median(finite))
    reach = FAR * MAD_TO_SIGMA * float(np.median(np.abs(finite - middle)))
    low, high = max(float(finite.min()), middle - reach), min(float(finite.max()), middle + reach)
    return (low, high) if high > low else (low, low + 1e-6)


def _steps(scene: Scene) -> tuple[dict[str, Any], int]:
    """A bar a step: as wide as its rows, as high as the tokens it gave, coloured by its mode; and the highest."""
    steps = scene.run.steps_at(scene.rows) if scene.run is not None else np.zeros(0)
    begins = np.flatnonzero(np.diff(steps, prepend=-1))
    width = np.diff([*begins, len(steps)])
    modes = [scene.tokens.modes[i] for i in begins]
    height = np.where(np.array(modes) == "prompt", 0, width)  # a row of a step is a token it gave
    if len(begins) > COLUMNS:
        group = -(-len(begins) // COLUMNS)
        keep = np.arange(0, len(begins), group)
        height = np.maximum.reduceat(height, keep)
        width = np.add.reduceat(width, keep)
        begins, modes = begins[keep], [modes[i] for i in keep]
    trace = {
        "type": "bar", "yaxis": "y2", "x": style.typed(scene.range[0] + begins + (width - 1) / 2.0),
        "y": style.typed(height), "width": style.typed(np.maximum(width - 0.12, 0.2)), "customdata": modes,
        "marker": {"color": [style.MODE_COLOURS.get(mode, style.MODE_COLOURS["other"]) for mode in modes]},
        "hovertemplate": "%{customdata}: %{y} tokens in a step<extra></extra>", "name": "accepted",
    }  # fmt: skip
    return trace, max(1, int(height.max()))


def _lines(scene: Scene) -> list[dict[str, Any]]:
    """Entropy (nats) and top-2 margin; where there are many tokens, the farthest of each group."""
    values = np.stack([np.asarray(scene.scalar(name), np.float64) for name in ("entropy", "margin")], axis=1)
    grid = pool(values)
    x = style.typed(scene.range[0] + np.arange(grid.cells.shape[1]) * grid.width)
    labels = [style.escaped(scene.labels[i]) for i in range(0, len(scene.rows), grid.width)]
    colours = style.THEMES[scene.look.theme]
    looks = {"entropy": {"color": colours["warm"], "width": 1.5},
             "margin": {"color": colours["soft"], "width": 1, "dash": "dot"}}  # fmt: skip
    units = {"entropy": "nats", "margin": ""}
    return [
        {"type": "scatter", "mode": "lines", "yaxis": "y3", "x": x, "y": style.typed(grid.cells[i]), "name": name,
         "text": labels, "line": line, "connectgaps": False,
         "hovertemplate": f"token %{{x}} %{{text}}<br>{name} %{{y:.2f}} {units[name]}<extra></extra>"}
        for i, (name, line) in enumerate(looks.items())
    ]  # fmt: skip


def _above(y: float, lanes: int) -> float:
    """Where a height of the paper is when ``lanes`` of alarms stand below all else."""
    plot, more = HEIGHT - sum(MARGIN), lanes * alarms.LANE
    return (y * plot + more) / (plot + more)


def _changes(scene: Scene) -> list[tuple[int, str]]:
    """Where a mode begins, and its name: bars are not told apart by colour alone. Short stretches are left out."""
    modes, start, names = scene.tokens.modes, scene.range[0], []
    begins = [i for i in range(len(modes)) if not i or modes[i] != modes[i - 1]]
    for begin, end in pairwise([*begins, len(modes)]):
        at = max(begin, round(CAPTION * len(modes)))  # right of the caption of the band
        if end - at >= NAMED * len(modes) and modes[begin] != "prompt":
            names.append((start + at, modes[begin]))
    return names


def _captions(said: str, modes: list[tuple[int, str]], theme: str, lanes: int) -> list[dict[str, Any]]:
    places = {"tokens a step": 0.375, "entropy (nats) — and margin ···": 0.22, "commands and alarms": 0.055}
    places = {text: _above(y, lanes) for text, y in places.items()}
    base = {"xref": "paper", "yref": "paper", "x": 0, "xanchor": "left", "yanchor": "bottom", "showarrow": False,
            "font": {"size": 10, "color": style.THEMES[theme]["soft"]}}  # fmt: skip
    named = [{**base, "xref": "x", "x": at - 0.5, "y": places["tokens a step"], "text": mode} for at, mode in modes]
    rows = [{**base, "text": text, "y": y} for text, y in places.items()]
    return [{**base, "text": said, "y": 1.0}, *rows, *named]


def _ticks(scene: Scene) -> dict[str, Any]:
    """Numbers, with the words of some tokens where few are in view: words alone would merge equal ones."""
    start, stop = scene.range
    step = max(1, round((stop - start) / TICKS))
    at = list(range(start, stop, step))
    if stop - start > COLUMNS:
        return {"tickvals": at, "ticktext": [str(i) for i in at]}
    return {
        "tickangle": 0,
        "tickvals": at,
        "ticktext": [f"{i}<br>{style.escaped(scene.labels[i - start][:10])}" for i in at],
    }
