"""What is new of a run since a viewer last looked: its tokens, ready to be shown.

Nothing is kept here: what was lost on the way is asked for again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sotscope.plain import plain
from sotscope.store.reader import Run

SHOWN_REFUSED = frozenset({"first_slot_miss", "later_slot_miss", "outside_vocabulary", "near_tie", "processor"})
"""Reasons of the one draft a step that was looked at and refused; those after it were not looked at."""


@dataclass(frozen=True)
class Frame:
    """The tokens ``start`` to ``stop`` of a lineage of ``total`` rows; each list has one entry a token.

    One entry more than there are rows at the end: the token that was chosen last has no row yet. ``entropy`` (nats),
    ``logprob`` and ``margin`` are those of the distribution that chose the token (the row before it), NaN for the
    prompt; ``norm`` is the token's own, in one layer. ``how``: "given", "chosen" by the model in a step, or an
    "accepted" draft. ``refused``: the draft that was refused in its place, {index: [label, reason]}.
    """

    start: int
    stop: int
    total: int
    labels: list[str]
    special: list[bool]
    segment: list[str]
    mode: list[str]
    how: list[str]
    entropy: list[float]
    logprob: list[float]
    margin: list[float]
    norm: list[float]
    refused: dict[int, list[str]]

    def as_dict(self) -> dict[str, Any]:
        """Strict JSON."""
        found: dict[str, Any] = plain(asdict(self))
        return found


def frame_of(run: Run, lineage: NDArray[np.int64], start: int, stop: int, layer: int = -1) -> Frame:
    """The frame of the tokens ``start`` to ``stop`` along ``lineage`` (indices into the run, in order).

    A ``stop`` of ``len(lineage) + 1`` includes the token chosen last. ``layer`` (a recorded number) gives ``norm``.
    """
    total = len(lineage)
    start, stop = max(0, min(start, total)), min(stop, total + 1)
    first = max(0, start - 1)  # the row that chose the first token
    rows = lineage[first : min(stop, total)]
    tokens = run.tokens_at(rows)
    own = slice(start - first, None)
    ids = tokens.ids[own].tolist()
    segments, modes, how = tokens.segments[own], tokens.modes[own], _how(run, rows, tokens.modes)[own]
    if stop == total + 1 and len(rows) and tokens.next_ids[-1] >= 0:
        ids.append(int(tokens.next_ids[-1]))
        segments, modes, how = [*segments, "generated"], [*modes, tokens.modes[-1]], [*how, "chosen"]
    chosen = {name: _chose(run, rows, name, own, len(ids)) for name in ("entropy", "logprob", "margin")}
    norm = np.full(len(ids), np.nan)
    if layer in run.layers and "norm" in run.scalar_names:
        found = run.scalars_at("norm", rows[own])[:, run.layers.index(layer)]
        norm[: len(found)] = found
    pieces = tokens.pieces
    return Frame(
        start, start + len(ids), total, [pieces.label(i) for i in ids], [i in pieces.special for i in ids], segments,
        modes, how, **{name: values.tolist() for name, values in chosen.items()}, norm=norm.tolist(),
        refused=_refused(run, rows, start),
    )  # fmt: skip


def _how(run: Run, rows: NDArray[np.int64], modes: list[str]) -> list[str]:
    """A row that is not the first of its step fed an accepted draft."""
    steps = run.steps_at(rows)
    again = np.concatenate([[False], steps[1:] == steps[:-1]]) if len(rows) else np.zeros(0, bool)
    given = [mode in ("prompt", "forced") for mode in modes]
    # the last prompt token is fed by the first step of decoding
    before = [True, *given][: len(given)]
    return [
        "given" if is_given or (was and not draft) else "accepted" if draft else "chosen"
        for is_given, was, draft in zip(given, before, again, strict=True)
    ]


def _chose(run: Run, rows: NDArray[np.int64], name: str, own: slice, count: int) -> NDArray[np.float64]:
    """[count] a scalar of the row before each token; NaN before the first."""
    known = name in run.scalar_names
    values = np.asarray(run.scalars_at(name, rows), np.float64) if known else np.full(len(rows), np.nan)
    if own.start == 0:
        values = np.concatenate([[np.nan], values])
    return np.concatenate([values, np.full(count, np.nan)])[:count]


def _refused(run: Run, rows: NDArray[np.int64], start: int) -> dict[int, list[str]]:
    """Of every step, the draft that was refused, by the index of the token that stands in its place."""
    if not len(rows):
        return {}
    steps = run.steps_at(rows)
    drafts = run.drafts_between(int(steps.min()), int(steps.max()) + 1)
    drafts = drafts[drafts.reason.isin(SHOWN_REFUSED)]
    known = set(steps.tolist())
    label = run.pieces.label
    found = zip(drafts.step.tolist(), drafts.target.tolist(), drafts.token.tolist(), drafts.reason, strict=True)
    return {
        target: [label(token), reason] for step, target, token, reason in found if step in known and target >= start
    }
