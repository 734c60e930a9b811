"""The lane of alarms below the stack: a bar an episode, from where it began to where it ended."""

from __future__ import annotations

from typing import Any

from sotscope_dashboards import style
from sotscope_dashboards.health import SIGNS, Episode, episodes
from sotscope_dashboards.scene import Scene

LANE = 18
"""Pixels of a lane."""
MOST = 3
"""Lanes, at most; episodes that find no room are said in the last one."""
FAINT = 0.16
"""How solid a warning's bar is; a critical one's is solid."""
LETTERS = 7
"""Pixels of a letter, about; the stack is about ``WIDE`` pixels wide."""
WIDE = 760


def lane(scene: Scene) -> tuple[list[dict[str, Any]], int]:
    """Traces on axis y5, and how many lanes they take. Overlapping episodes stand below each other."""
    start, stop = scene.range
    shown = [one for one in episodes(scene) if one.onset < stop and one.end >= start]
    placed, left_out = _places(sorted(shown, key=lambda one: (one.onset, one.order)))
    if not placed:
        return [], 0
    return [_bars(scene, placed, left_out)], max(place for _, place in placed) + 1


def _places(found: list[Episode]) -> tuple[list[tuple[Episode, int]], int]:
    """Each with its lane, the first that is free; and how many have none."""
    ends: list[int] = []
    placed: list[tuple[Episode, int]] = []
    for one in found:
        free = next((i for i, end in enumerate(ends) if end < one.onset), len(ends))
        if free >= MOST:
            continue
        ends[free : free + 1] = [one.end]
        placed.append((one, free))
    return placed, len(found) - len(placed)


def _bars(scene: Scene, placed: list[tuple[Episode, int]], left_out: int) -> dict[str, Any]:
    colours = style.THEMES[scene.look.theme]
    start, stop = scene.range
    each = WIDE / max(1, stop - start)
    texts, inks, fills = [], [], []
    for one, _ in placed:
        grave = one.severity == "critical"
        room = (min(one.end + 1, stop) - max(one.onset, start)) * each
        words = f"{SIGNS.get(one.severity, '△')} {one.kind}"
        texts.append(style.escaped(words if room > LETTERS * len(words) else words[0] if room > 2 * LETTERS else ""))
        inks.append(colours["card"] if grave else colours["alarm"])
        fills.append(colours["alarm"] if grave else _faint(colours["alarm"]))
    more = f"<br>{left_out} more here are not drawn: zoom in, or see Events" if left_out else ""
    return {
        "type": "bar", "orientation": "h", "yaxis": "y5", "name": "alarms", "offset": 0.1, "width": 0.8,
        "base": [one.onset - 0.5 for one, _ in placed], "x": [one.end - one.onset + 1 for one, _ in placed],
        "y": [place for _, place in placed], "text": texts, "textposition": "inside", "insidetextanchor": "start",
        "textangle": 0, "textfont": {"size": 10, "color": inks}, "cliponaxis": True, "constraintext": "none",
        "marker": {"color": fills, "line": {"width": 1, "color": colours["alarm"]}},
        "customdata": [_hover(one) + more for one, _ in placed],
        "hovertemplate": "%{customdata}<extra></extra>",
    }  # fmt: skip


def _hover(one: Episode) -> str:
    where = f"since token {one.onset}" if one.going else f"token {one.onset} to {one.end}"
    return style.escaped(f"{SIGNS.get(one.severity, '△')} {one.kind}, {one.severity}, {where}") + (
        f"<br>{style.escaped(one.message)}"
    )


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{FAINT})"
