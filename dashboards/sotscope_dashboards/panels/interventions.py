"""What changes states on purpose: where each intervention held, and what it did where the run measured that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sotscope.plain import plain, ranges
from sotscope_dashboards import style
from sotscope_dashboards.panels import parts
from sotscope_dashboards.panels.contract import Panel
from sotscope_dashboards.pooling import pool
from sotscope_dashboards.scene import Scene

EFFECTS = {"effect_kl": "KL (nats)", "effect_state_distance": "state moved ÷ norm"}
CHANGED = "effect_top1_changed"
NOTHING = (
    "Nothing changes the states of this run on purpose. Live, add an intervention in the form above; on the command "
    'line: sotscope record "..." --intervene "prune:layers=10-20,k=3" --measure.'
)
BAND, PANE = 20, 104
"""Pixels of an intervention's band, and of a plot."""


class Interventions(Panel):
    name: ClassVar[str] = "interventions"
    title: ClassVar[str] = "Interventions"
    shows: ClassVar[str] = (
        "Which interventions changed each token's states, and, where measured, what they did to that very step."
    )
    look_for: ClassVar[str] = "Tokens where the most likely next token changed, and whether the effect stays or fades."
    not_meant: ClassVar[str] = (
        "It is the direct effect on one step: earlier tokens, which were changed too, are the same on both sides."
    )

    @parts.figure(120)
    def draw(self, scene: Scene) -> dict[str, Any]:
        found = _known(scene)
        names = [style.escaped(one["label"][:14]) for one in found]
        mask, effects = _mask(scene), _effects(scene)
        theme = scene.look.theme
        note, margin = parts.headline(_title(scene, mask, effects), theme)
        bands, plots = BAND * len(found) + 8, PANE * len(effects)
        height = bands + plots + margin + 44
        picture = style.layout(
            theme, height, margin={"t": margin, "l": 96}, annotations=[note], uirevision=parts.uirevision(scene),
            hovermode="closest", meta={"interventions": _rows(scene, found)},
        )  # fmt: skip
        start, stop = scene.range
        share = bands / (bands + plots)
        x = {"range": [start - 0.5, stop - 0.5], "showgrid": False}
        axes = parts.pane(
            picture, 0, (0.0, 1.0), "" if effects else "token", "", xaxis={**x, "showticklabels": not effects},
            yaxis={"domain": [1 - share, 1.0], "range": [len(found) - 0.5, -0.5], "showgrid": False, "fixedrange": True,
                   "tickvals": list(range(len(found))), "ticktext": names},
        )  # fmt: skip
        data = [_bands(scene, found, mask, axes)]
        for i, name in enumerate(effects, 1):
            top = (1 - share) * (1 - (i - 1) / len(effects))
            low = (1 - share) * (1 - i / len(effects))
            last = i == len(effects)
            axes = parts.pane(
                picture, i, (0.0, 1.0), "token" if last else "", EFFECTS[name],
                xaxis={**x, "matches": "x", "showticklabels": last},
                yaxis={"domain": [low, top - 0.12 * (top - low)], "rangemode": "tozero", "nticks": 4},
            )  # fmt: skip
            data += _lines(scene, name, effects[name], axes)
        return {"data": data, "layout": plain(picture)}

    @parts.columns("position", "token", "interventions", *EFFECTS, CHANGED)
    def table(self, scene: Scene) -> pd.DataFrame:
        found = _known(scene)
        mask = _mask(scene)
        names = ["+".join(one["label"] for i, one in enumerate(found) if int(bits) >> i & 1) for bits in mask]
        lines = pd.DataFrame({"position": range(*scene.range), "token": scene.labels, "interventions": names})
        for name in (*EFFECTS, CHANGED):
            lines[name] = _scalar(scene, name)
        return lines


def _known(scene: Scene) -> list[dict[str, Any]]:
    """Each intervention that the run tells of, in the order of its bits: label, its settings, whether it is on now.

    Raises NothingError where there is none.
    """
    parts.rows_in_view(scene)
    events = scene.events("interventions")
    if not events:
        raise parts.NothingError(NOTHING)
    names: list[str] = [str(name) for event in events for name in event.get("names") or []]
    known: dict[str, dict[str, Any]] = {name: {"label": name, "kind": "", "on": False} for name in names}
    for event in events:
        active = [dict(one) for one in event.get("active") or [] if isinstance(one, Mapping)]
        taken: set[str] = set()
        for one in known.values():
            one["on"] = False
        for config in active:
            label = _label(config, known, taken)
            taken.add(label)
            known[label] = {"kind": "", **config, "label": label, "on": True}
    return list(known.values())


def _label(config: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]], taken: set[str]) -> str:
    """As the recording names it: its own name, that of the same settings before, else the next of its kind."""
    if config.get("name"):
        return str(config["name"])
    kind = str(config.get("kind", ""))
    same = [label for label, one in known.items() if label not in taken and _settings(one) == _settings(config)]
    fresh = [
        label for label, one in known.items()
        if label not in taken and not one["kind"] and (label == kind or label.startswith(f"{kind} "))
    ]  # fmt: skip
    return (same or fresh or [kind])[0]


def _settings(config: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(str(config.get(key)) for key in ("kind", "site", "layers", "tokens", "options"))


def _rows(scene: Scene, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the list on the page says of each; ``where`` are the rows of the lineage that it changed."""
    mask = _mask(scene, scene.lineage)
    made = []
    for i, one in enumerate(found):
        at = np.flatnonzero(mask >> i & 1)
        options = one.get("options") or {}
        made.append(
            {
                "label": style.visible(one["label"]), "kind": one["kind"], "site": one.get("site") or "",
                "layers": str(one.get("layers", "")), "tokens": one.get("tokens") or "", "on": one["on"],
                "strength": one.get("strength", 1.0), "rows": len(at), "where": ranges(at.tolist()) if len(at) else "",
                "options": style.visible(",".join(f"{key}={_plainly(value)}" for key, value in options.items())),
            }
        )  # fmt: skip
    return made


def _plainly(value: object) -> str:
    """As the page writes it, too: true, 3, 0.5, word."""
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else json.dumps(plain(value))


def _mask(scene: Scene, rows: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """[token] bits of the interventions that changed each row."""
    assert scene.run is not None
    count = len(scene.rows if rows is None else rows)
    if "intervened" not in scene.run.scalar_names:
        return np.zeros(count, np.int64)
    return np.nan_to_num(np.asarray(scene.scalar("intervened", rows), np.float64)).astype(np.int64)


def _scalar(scene: Scene, name: str) -> NDArray[np.float64]:
    assert scene.run is not None
    if name not in scene.run.scalar_names:
        return np.full(len(scene.rows), np.nan)
    return parts.finite(np.asarray(scene.scalar(name), np.float64))


def _effects(scene: Scene) -> dict[str, NDArray[np.float64]]:
    """[token] of each effect that was measured in view."""
    found = {name: _scalar(scene, name) for name in EFFECTS}
    return {name: values for name, values in found.items() if np.isfinite(values).any()}


def _title(scene: Scene, mask: NDArray[np.int64], effects: Mapping[str, NDArray[np.float64]]) -> list[str]:
    lines = [f"{parts.count(int((mask > 0).sum()), 'row')} of {len(mask):,} in view were changed."]
    if not effects:
        measured = scene.run is not None and "effect_kl" in scene.run.scalar_names
        why = "no step in view was changed" if measured else "record with --measure, or tick “measure” before Start"
        return [f"{lines[0]} No effect was measured: {why}."]
    changed = _scalar(scene, CHANGED)
    known = np.isfinite(changed)
    if known.any():
        share = f"{int((changed[known] > 0).sum()):,} of {int(known.sum()):,} measured steps"
        lines[0] += f" The likeliest next token changed in {share} (marked ◆)."
    return lines


def _bands(scene: Scene, found: list[dict[str, Any]], mask: NDArray[np.int64], axes: dict[str, str]) -> dict[str, Any]:
    """A bar wherever an intervention held."""
    base, width, place, words = [], [], [], []
    for i, one in enumerate(found):
        held = (mask >> i & 1).astype(np.int8)
        edges = np.flatnonzero(np.diff(held, prepend=0, append=0)).reshape(-1, 2)
        for begin, end in edges.tolist():
            base.append(scene.range[0] + begin - 0.5)
            width.append(end - begin)
            place.append(i)
            words.append(style.escaped(f"{one['label']}: {parts.span(*(scene.range[0] + at for at in (begin, end)))}"))
    return {
        "type": "bar", "orientation": "h", **axes, "name": "intervened", "base": base, "x": width, "y": place,
        "width": 0.62, "customdata": words, "hovertemplate": "%{customdata}<extra></extra>",
        "marker": {"color": style.THEMES[scene.look.theme]["accent"], "line": {"width": 0}},
    }  # fmt: skip


def _lines(scene: Scene, name: str, values: NDArray[np.float64], axes: dict[str, str]) -> list[dict[str, Any]]:
    """An effect over tokens; of many tokens the largest of each group. Marks stand where the likeliest word changed."""
    grid = pool(values[:, None])
    at = scene.range[0] + np.arange(grid.cells.shape[1]) * grid.width
    colours = style.THEMES[scene.look.theme]
    line = {
        "type": "scatter", "mode": "lines+markers" if len(at) < 128 else "lines", **axes, "name": name,
        "x": style.typed(at), "y": style.typed(grid.cells[0]), "connectgaps": False,
        "line": {"color": colours["soft"], "width": 1.5}, "marker": {"size": 3},
        "text": [style.escaped(scene.labels[i]) for i in range(0, len(scene.rows), grid.width)],
        "hovertemplate": f"token %{{x}} %{{text}}<br>{EFFECTS[name]} %{{y:.4g}}<extra></extra>",
    }  # fmt: skip
    moved = np.flatnonzero((_scalar(scene, CHANGED) > 0) & np.isfinite(values))
    if name != "effect_kl" or not len(moved):
        return [line]
    marks = {
        "type": "scatter", "mode": "markers", **axes, "name": CHANGED, "x": style.typed(scene.range[0] + moved),
        "y": style.typed(values[moved]), "marker": {"symbol": "diamond", "size": 7, "color": colours["warm"]},
        "hovertemplate": "token %{x}: another next token<br>KL %{y:.4g} nats<extra></extra>",
    }  # fmt: skip
    return [line, marks]
