"""What went wrong along the sequence in view, and what was taken back: episodes of alarms, and joints of recoveries."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from sotscope.plain import plain
from sotscope_dashboards import lineage, style
from sotscope_dashboards.scene import Scene

MOST = 2000
"""Tokens of one retracted stretch that are shown, at most."""
NEWEST = 200
"""Episodes and joints that are shown, at most."""
SIGNS = {"critical": "▲", "warning": "△"}
"""Severities are told apart without colour, too."""


@dataclass(frozen=True)
class Episode:
    """An alarm from the row where it began to the last one that was wrong, both included; rows of the lineage.

    ``going``: it has not ended, and the run is being recorded. ``order`` is the place of the event in the run.
    """

    kind: str
    message: str
    severity: str
    onset: int
    end: int
    going: bool
    order: int


@dataclass(frozen=True)
class Joint:
    """Where a recovery goes on: before token ``at`` stood ``text`` (token labels), ``tokens`` of them from position
    ``pos`` on, until it was taken back. ``outcome`` is empty while it is being tried."""

    at: int
    pos: int
    text: str
    tokens: int
    policy: str
    attempt: int
    alarm: str
    action: str
    outcome: str
    order: int


def episodes(scene: Scene) -> list[Episode]:
    """Of the lineage in view, oldest first. An alarm of rows that were taken back is not of this lineage."""
    if scene.run is None:
        return []
    limits, low = {}, scene.total
    for one in reversed(lineage.path(scene.sequences, scene.seq)):
        limits[int(one["seq_id"])] = low
        low = min(low, int(one["parent_pos"])) if int(one["parent"]) >= 0 else low
    events = scene.events()
    ends = {event.get("episode"): _int(event, "pos") for event in events if event.get("kind") == "alarm_end"}
    found = []
    for order, event in enumerate(events):
        limit, onset = limits.get(event.get("seq", -1), 0), _int(event, "onset")
        pos = _int(event, "pos", onset)
        if event.get("kind") != "alarm" or _int(event, "episode") < 0 or not 0 <= onset <= pos < limit:
            continue
        end = ends.get(event["episode"])
        last = limit - 1 if end is None else min(end, limit - 1)
        kind, message, severity = (str(event.get(key, "")) for key in ("alarm", "message", "severity"))
        going = end is None and scene.run.recording
        found.append(Episode(kind, message, severity, onset, max(onset, last), going, order))
    return found[-NEWEST:]


def joints(scene: Scene) -> list[Joint]:
    """Of the lineage in view, by where they stand; of one place, the first attempt first."""
    if scene.run is None:
        return []
    events, taken = scene.events(), {}
    for order, event in enumerate(events):
        if event.get("kind") == "retracted":
            taken[event.get("seq")] = (order, event)
    found: list[Joint] = []
    for one, other in pairwise(lineage.path(scene.sequences, scene.seq)):
        parent, child = int(one["seq_id"]), int(other["seq_id"])
        if scene.heirs.get(parent) == child and parent in taken:
            order, event = taken[parent]
            pos = max(0, _int(event, "pos", 0))
            found = [replace(joint, at=min(joint.at, pos)) for joint in found]
            found.append(_joint(scene, parent, pos, max(0, _int(event, "tokens", 0)), order))
        else:  # a person left this text for another one
            found = [joint for joint in found if joint.at < int(other["parent_pos"])]
    return sorted(found, key=lambda joint: (joint.at, joint.order))[-NEWEST:]


def _joint(scene: Scene, seq: int, pos: int, tokens: int, order: int) -> Joint:
    """``order``: the place of the ``retracted`` event; the recovery that asked for it stands before it."""
    events = scene.events()
    asked: Mapping[str, Any] = next((e for e in reversed(events[:order]) if e.get("kind") == "recovery"), {})
    same = ("policy", "attempt", "alarm", "episode")
    outcomes = [
        str(event.get("outcome", ""))
        for event in events[order:]
        if event.get("kind") == "recovery_outcome" and all(event.get(key) == asked.get(key) for key in same)
    ]
    return Joint(
        pos, pos, _text(scene, seq, pos, tokens), tokens, str(asked.get("policy", "")), _int(asked, "attempt", 1),
        str(asked.get("alarm", "")), str(asked.get("action", "")), (outcomes or [""])[0], order,
    )  # fmt: skip


def _text(scene: Scene, seq: int, pos: int, tokens: int) -> str:
    """Labels of ``tokens`` tokens of ``seq`` from ``pos`` on. It is over and does not change: worked out once."""
    key = ("retracted", seq, pos)
    if key not in scene.memo and tokens:
        assert scene.run is not None
        rows = scene.run.rows(seq)[max(0, pos - 1) : pos + min(tokens, MOST) - 1]
        ids = scene.run.tokens_at(rows).all_ids[1 if pos else 0 :]
        scene.memo[key] = "".join(scene.run.pieces.label(i) for i in ids)
    return str(scene.memo.get(key, ""))


@dataclass(frozen=True)
class Notice:
    """A recovery that took nothing back: one that ended the text, or that was given up."""

    title: str
    text: str
    order: int


def notices(scene: Scene) -> list[Notice]:
    found = []
    for order, event in enumerate(scene.events()):
        kind, alarm = event.get("kind"), event.get("alarm")
        if kind == "recovery" and _int(event, "keep") < 0:
            found.append(Notice(f"↺ {event.get('policy')}", f"{event.get('action')} (alarm: {alarm})", order))
        if kind == "recovery_outcome" and event.get("outcome") == "given up":
            text = f"{event.get('attempts')} attempts did not help against {alarm}; nothing more is tried"
            found.append(Notice("↺ given up", text, order))
    return found


def news(found: list[Episode], taken: list[Joint], more: list[Notice]) -> dict[str, Any] | None:
    """The newest of all that a person should know of, in words: recoveries, alarms that are critical, and others while
    they go on. None where there is nothing."""
    grave = [one for one in found if one.going or one.severity == "critical"]
    everything: list[Episode | Joint | Notice] = [*grave, *taken, *more]
    newest = max(everything, key=lambda one: one.order, default=None)
    if newest is None:
        return None
    told: dict[str, Any] = {"kind": "recovery", "order": newest.order, "severity": "", "at": None}
    match newest:
        case Episode():
            where = f"since token {newest.onset}" if newest.going else f"token {newest.onset} to {newest.end}"
            told |= {"kind": "alarm", "severity": newest.severity, "at": newest.onset,
                     "title": f"{SIGNS.get(newest.severity, '△')} {newest.kind}, {newest.severity}",
                     "text": f"{newest.message} ({where})"}  # fmt: skip
        case Joint():
            told |= {"at": newest.at, "title": f"↺ {newest.policy}", "text": said(newest)}
        case Notice():
            told |= {"title": newest.title, "text": newest.text}
    return told


def said(joint: Joint) -> str:
    """What a recovery did, and what came of it, in one line."""
    why = "a person asked for it" if joint.alarm == "called" else f"{joint.alarm} alarm" if joint.alarm else "no alarm"
    ends = {"": "being tried", "recovered": "it recovered", "again": "it came again", "unknown": "the outcome is open"}
    count = f"{joint.tokens:,} token{'' if joint.tokens == 1 else 's'} taken back from token {joint.pos}"
    attempt = f", attempt {joint.attempt}" if joint.attempt > 1 else ""
    return f"{count} ({why}{attempt}): {ends.get(joint.outcome, joint.outcome)}"


def told(scene: Scene, have: str) -> dict[str, Any]:
    """What the page shows of it, in strict JSON, with a key; only the key where the tab ``have``s it already."""
    found, taken = episodes(scene), joints(scene)
    facts = {
        "alarms": [
            asdict(one) | {"sign": SIGNS.get(one.severity, "△"), "end": None if one.going else one.end} for one in found
        ],
        "joints": [asdict(one) | {"said": said(one), "text": style.visible(one.text)} for one in taken],
        "news": news(found, taken, notices(scene)),
    }
    key = hashlib.blake2s(repr((scene.look.run, scene.seq, facts)).encode(), digest_size=8).hexdigest()
    return {"key": key} if key == have else {"key": key, **plain(facts)}


def _int(event: Mapping[str, Any], name: str, default: int = -1) -> int:
    value = event.get(name, default)
    return int(value) if isinstance(value, int | np.integer) and not isinstance(value, bool) else default
