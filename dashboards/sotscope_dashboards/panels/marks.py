"""The marks below the stack: commands, branches, recoveries, and alarms without an episode."""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

from sotscope_dashboards import style
from sotscope_dashboards.health import joints
from sotscope_dashboards.scene import Scene, position_of

WRITTEN = 40
"""Marks that are written out, and letters of each."""
LATE = 0.8
"""Share of the view from which on words stand left of their mark."""


class _Mark(NamedTuple):
    at: int
    symbol: str
    words: str
    colour: str


def marks(scene: Scene) -> dict[str, Any]:
    """A trace on axis y4, of marks with words at the token where they took effect."""
    start, stop = scene.range
    shown = sorted(mark for mark in [*_told(scene), *_recoveries(scene)] if start <= mark.at < stop)
    colours = style.THEMES[scene.look.theme]
    late = [mark.at > start + LATE * (stop - start) for mark in shown]
    inks = [colours[mark.colour] for mark in shown]
    return {
        "type": "scatter", "mode": "markers+text", "yaxis": "y4", "x": [mark.at for mark in shown],
        "y": [0.5] * len(shown), "text": [style.escaped(mark.words[:WRITTEN]) for mark in shown[:WRITTEN]],
        "textposition": ["middle left" if left else "middle right" for left in late], "textfont": {"color": inks},
        "marker": {"symbol": [mark.symbol for mark in shown], "size": 9, "color": inks},
        "hovertemplate": "token %{x}: %{text}<extra></extra>", "cliponaxis": False, "name": "events",
    }  # fmt: skip


def _told(scene: Scene) -> list[_Mark]:
    found = []
    for event in scene.events():
        at = position_of(event)
        if event["kind"] == "alarm" and "episode" not in event:
            found.append(_Mark(scene.total - 1 if at is None else at, "triangle-up", str(event["alarm"]), "alarm"))
        elif event["kind"] == "command" and at is not None:
            words = ", ".join(_set(name, value) for name, value in event["changes"].items())
            found.append(_Mark(at, "diamond", words, "accent"))
        elif event["kind"] == "branch" and at is not None:
            found.append(_Mark(at, "circle", f"branch {event['seq']}", "accent"))
    return found


def _recoveries(scene: Scene) -> list[_Mark]:
    """Of several at one token, one mark."""
    found = []
    for at, group in groupby(joints(scene), key=lambda joint: joint.at):
        tried = list(group)
        times = f" ×{len(tried)}" if len(tried) > 1 else ""
        words = f"{tried[-1].policy}{times}: −{sum(joint.tokens for joint in tried)} tokens"
        found.append(_Mark(at, "star-diamond", words, "ink"))
    return found


def _set(name: str, value: Any) -> str:
    """A setting that was changed, in words; of interventions the kinds that are on."""
    if name != "interventions" or not isinstance(value, list):
        return f"{name} {value}"
    kinds = [
        str(one.get("kind")) if isinstance(one, dict) else str(one).partition(":")[0]
        for one in value if not isinstance(one, dict) or one.get("on", True)
    ]  # fmt: skip
    return f"on: {'+'.join(kinds)}" if kinds else "interventions off"
