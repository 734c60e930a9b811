"""What the tab panels share: which rows and steps are in view, whose states, and the frame around a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sotscope.errors import AnalysisError, SotscopeError
from sotscope_dashboards import style
from sotscope_dashboards.scene import Scene

Drawn = Callable[[Any, Scene], dict[str, Any]]
WIDE = 124
"""Letters of a headline that fit beside each other; plotly does not wrap text."""


NO_ROWS = "No token yet."
EMPTY = 240
"""Pixels of a figure that is a sentence."""


class NothingError(AnalysisError):
    """There is nothing to draw; the message is the sentence that says so."""


def figure(height: int) -> Callable[[Drawn], Drawn]:
    """A ``draw`` that shows what it cannot draw, or read, as a sentence, ``height`` pixels high."""

    def around(draw: Drawn) -> Drawn:
        @wraps(draw)
        def safe(self: Any, scene: Scene) -> dict[str, Any]:
            try:
                return draw(self, scene)
            except (SotscopeError, OSError) as why:
                made = style.sentence("", scene.look.theme, height)
                lines = textwrap.wrap(str(why), 88)
                made["layout"]["annotations"][0]["text"] = "<br>".join(map(style.escaped, lines))
                return made

        return safe

    return around


def grid(draw: Drawn) -> Drawn:
    """The same for a table: no rows, and the sentence as its note."""

    @wraps(draw)
    def safe(self: Any, scene: Scene) -> dict[str, Any]:
        try:
            return draw(self, scene)
        except (SotscopeError, OSError) as why:
            return {"columns": [], "rows": [], "note": style.visible(str(why))}

    return safe


def columns(*names: str) -> Callable[[Callable[[Any, Scene], pd.DataFrame]], Callable[[Any, Scene], pd.DataFrame]]:
    """The same for ``table``: where there is nothing it has these columns and no line."""

    def around(table: Callable[[Any, Scene], pd.DataFrame]) -> Callable[[Any, Scene], pd.DataFrame]:
        @wraps(table)
        def safe(self: Any, scene: Scene) -> pd.DataFrame:
            try:
                return table(self, scene)
            except (SotscopeError, OSError):
                return pd.DataFrame(columns=list(names))

        return safe

    return around


def rows_in_view(scene: Scene) -> NDArray[np.int64]:
    """[token] indices into the run; at least one. Raises NothingError."""
    if scene.run is None:
        raise NothingError(scene.why)
    if not scene.total:
        raise NothingError(NO_ROWS)
    if not len(scene.rows):
        raise NothingError("No rows in this range.")
    return scene.rows


def steps_in_view(scene: Scene) -> pd.DataFrame:
    """The steps that computed the rows in view, as ``run.steps`` (nanoseconds). Raises NothingError without rows."""
    rows = rows_in_view(scene)
    assert scene.run is not None
    return of_steps(scene.run.steps_between, np.unique(scene.run.steps_at(rows)))


def of_steps(between: Callable[[int, int], pd.DataFrame], steps: NDArray[np.int32]) -> pd.DataFrame:
    """Lines of some ``steps``, ascending, of what ``between`` reads: a branch in between may have others."""
    lines = between(int(steps[0]), int(steps[-1]) + 1) if len(steps) else between(0, 0)
    found: pd.DataFrame = lines[np.isin(lines.step.to_numpy(), steps)]
    return found


def spread(count: int, most: int) -> NDArray[np.int64]:
    """At most ``most`` of ``count`` places, evenly spread, the first and the last among them."""
    return np.linspace(0, count - 1, min(count, most)).round().astype(np.int64)


def subject(scene: Scene) -> tuple[str, int | None]:
    """The site that is looked at, ``resid`` or else the first one, and the layer (None: it has none)."""
    assert scene.run is not None
    if not scene.run.sites:
        raise NothingError("This run has no states; record them with --sites resid.")
    site = "resid" if "resid" in scene.run.sites else scene.run.sites[0]
    layers = scene.run.spec.site(site).layers
    if not layers:
        return site, None
    return site, scene.layer if scene.layer in layers else layers[len(layers) // 2]


def states(scene: Scene, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    """States of the subject, [token, dim]; heads one after the other."""
    assert scene.run is not None
    site, layer = subject(scene)
    found = scene.run.take(site, rows, layer=layer)
    return found.reshape(len(found), -1)


def called(scene: Scene) -> str:
    """The subject in words."""
    site, layer = subject(scene)
    return site if layer is None else f"{site} of layer {layer}"


def finite(values: NDArray[Any]) -> NDArray[np.float64]:
    """As float64, NaN for what is not finite."""
    found = np.asarray(values, np.float64)
    return np.where(np.isfinite(found), found, np.nan)


def headline(lines: Sequence[str], theme: str) -> tuple[dict[str, Any], int]:
    """Sentences above the picture as an annotation, and the margin they need in pixels."""
    wrapped = [piece for line in lines if line for piece in textwrap.wrap(line, WIDE)]
    note = {
        "text": "<br>".join(map(style.escaped, wrapped)), "xref": "paper", "yref": "paper", "x": 0, "y": 1,
        "xanchor": "left", "yanchor": "bottom", "yshift": 8, "align": "left", "showarrow": False,
        "font": {"size": 12, "color": style.THEMES[theme]["ink"]},
    }  # fmt: skip
    return note, 20 + 16 * len(wrapped)


def pane(
    picture: dict[str, Any], place: int, domain: tuple[float, float], x: str, y: str, **more: dict[str, Any]
) -> dict[str, str]:
    """Axes of their own for the picture at ``place`` (0, 1 ...) across ``domain``, with their titles; more of each as
    ``xaxis=`` and ``yaxis=``. Returns what its traces say of their axes."""
    number = str(place + 1) if place else ""
    mine: dict[str, dict[str, Any]] = {
        "xaxis": {"domain": list(domain), "anchor": f"y{number}"}, "yaxis": {"anchor": f"x{number}"}
    }  # fmt: skip
    for axis, title in (("xaxis", x), ("yaxis", y)):
        look = {key: picture[axis][key] for key in ("gridcolor", "linecolor", "zeroline", "automargin")}
        named = {"title": {"text": style.escaped(title), "standoff": 6, "font": {"size": 11}}}
        picture[f"{axis}{number}"] = look | mine[axis] | named | more.get(axis, {})
    return {"xaxis": f"x{number}", "yaxis": f"y{number}"}


def across(count: int, gap: float = 0.09) -> list[tuple[float, float]]:
    """Domains of ``count`` pictures side by side."""
    width = (1 - gap * (count - 1)) / count
    return [(i * (width + gap), min(1.0, i * (width + gap) + width)) for i in range(count)]


def count(number: int, word: str) -> str:
    """1 row, 2 rows."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def span(start: int, stop: int) -> str:
    """Rows from ``start`` up to, not including, ``stop``."""
    return f"row {start}" if stop - start == 1 else f"rows {start}–{stop - 1}"


def uirevision(scene: Scene, *more: object) -> str:
    """Stays the same as long as a user's zoom means the same."""
    assert scene.run is not None
    return " ".join(map(str, (scene.run.path.name, scene.look.seq, *more)))
