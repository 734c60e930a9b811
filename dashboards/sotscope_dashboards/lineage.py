"""Sequences of a run: which one a recovery went on as, and the path from the first to the one in view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

ROLLED_BACK = "rolled_back"


def heirs(sequences: Iterable[Mapping[str, Any]], events: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    """{sequence: the one that a recovery went on with}. Branches that a person made are told by an event each."""
    branches = {event.get("seq") for event in events if event.get("kind") == "branch"}
    finish: dict[int, str] = {}
    found: dict[int, int] = {}
    for one in sequences:
        seq, parent = int(one["seq_id"]), int(one["parent"])
        finish[seq] = str(one["finish"])
        if seq not in branches and finish.get(parent) == ROLLED_BACK:
            found.setdefault(parent, seq)
    return found


def final(seq: int, following: Mapping[int, int]) -> int:
    """What recoveries made of ``seq``."""
    while following.get(seq, seq) > seq:
        seq = following[seq]
    return seq


def path(sequences: Sequence[Mapping[str, Any]], seq: int) -> list[dict[str, Any]]:
    """``seq`` and its ancestors, the first one first."""
    known = {int(one["seq_id"]): dict(one) for one in sequences}
    found: list[dict[str, Any]] = []
    while seq in known and (not found or seq < int(found[-1]["seq_id"])):
        found.append(known[seq])
        seq = int(known[seq]["parent"])
    return found[::-1]
