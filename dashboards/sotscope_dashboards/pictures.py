"""Which pictures a tab is sent: those that it wants and that changed, and while tokens come none too often.

The cores that draw are those that decode. So a picture that only grew rests for a while (``Panel.rest_ms``; the text
never does); one that a person changed, by a cursor, a range or a tab, comes at once. The key of a picture says what it
shows and when it was drawn; the tab gives it back, and the server keeps nothing of it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sotscope_dashboards.panels.contract import Panel
from sotscope_dashboards.scene import Scene


def pictures(
    scene: Scene,
    panels: Mapping[str, Panel],
    wants: Sequence[str],
    have: Mapping[str, str],
    *,
    moving: bool,
    now: Callable[[], float] = time.time,
) -> dict[str, Any]:
    """``draw(scene)`` of the panels in ``wants`` that the tab, which has those of the keys ``have``, must be sent.

    ``moving``: tokens are being written, so that the next change is not far.
    """
    found: dict[str, Any] = {}
    for name in wants:
        panel = panels.get(name)
        if panel is None:
            continue
        look, seen = _look(panel, scene), _seen(scene)
        had_look, _, rest = have.get(name, "").partition(".")
        had_seen, _, drawn_ms = rest.partition(".")
        if (had_look, had_seen) == (look, seen):
            continue
        at = round(now() * 1000)
        grown = had_look == look and moving
        if grown and drawn_ms.isdecimal() and 0 <= at - int(drawn_ms) < panel.rest_ms:
            continue
        found[name] = {"key": f"{look}.{seen}.{at}", "kind": panel.kind, "draw": panel.draw(scene)}
    return found


def _look(panel: Panel, scene: Scene) -> str:
    """The same for what is looked at in the same way."""
    look = scene.look.model_dump(exclude=set() if panel.by_cursor else {"cursor"})
    return _digest(sorted(look.items()))


def _seen(scene: Scene) -> str:
    """The same as long as the run is."""
    run = scene.run
    return _digest((scene.why,) if run is None else (len(run), run.recording, run.events_bytes, scene.range))


def _digest(facts: Any) -> str:
    return hashlib.blake2s(repr(facts).encode(), digest_size=8).hexdigest()
