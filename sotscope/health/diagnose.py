"""What is wrong with a finished run: all monitors over every sequence, with where it began and what moved first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sotscope.catalog import MONITORS
from sotscope.errors import HealthError
from sotscope.events import Alarm, AlarmEnd
from sotscope.health.baseline import Baseline, find_baseline
from sotscope.health.contracts import Subject
from sotscope.health.early_model import find_early
from sotscope.health.moved import HEAD_FAR, first_moved
from sotscope.health.rows import rows_of_run, watched_of
from sotscope.health.watch import HealthWatch, make_monitors
from sotscope.store.reader import Run

ALWAYS = ("norm", "max_abs", "nonfinite", "cosine", "entropy", "logprob", "margin")
"""Scalars that every recording has."""
_BEFORE, _AFTER = 8, 12
"""Tokens around an onset that are shown."""


@dataclass(frozen=True)
class Found:
    """One alarm, from ``onset`` to ``end`` (positions): ``before`` and ``words`` are the text around the onset,
    ``moved`` the ``layer`` and the ``head`` that left their past first (``first_moved``), ``advice`` what to try."""

    kind: str
    severity: str
    onset: int
    pos: int
    end: int
    message: str
    evidence: Mapping[str, Any]
    before: str = ""
    words: str = ""
    moved: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    advice: str = ""


@dataclass(frozen=True)
class SequenceDiagnosis:
    """One sequence: its own ``rows`` (a branch's begin where it left its parent), and its alarms by onset."""

    seq: int
    rows: int
    finish: str
    alarms: tuple[Found, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """Of one run: ``monitors`` that judged it, a line for each that did not, and whose baseline they had."""

    run: str
    monitors: tuple[str, ...]
    sequences: tuple[SequenceDiagnosis, ...]
    left_out: tuple[str, ...] = field(default=())
    baseline: str = ""

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.sequences)

    @property
    def verdict(self) -> str:
        """``healthy``, or the worst severity of an alarm: ``warning``, ``critical``."""
        found = {alarm.severity for one in self.sequences for alarm in one.alarms}
        return "critical" if "critical" in found else "warning" if found else "healthy"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "rows": self.rows, "verdict": self.verdict}


def diagnose(
    run: Run, monitors: Mapping[str, Mapping[str, Any]] | None = None, baseline: Baseline | None = None
) -> Diagnosis:
    """Run ``monitors`` (name to parameters; default: all there are) over every sequence of a run.

    ``baseline`` is by default the one known for the run's model. A branch is judged from where it left its parent; what
    came before only tells its monitors what is usual. Raises HealthError for an unknown monitor or parameter, and for a
    run without the always-on scalars.
    """
    missing = [name for name in ALWAYS if name not in run.scalar_names]
    if missing:
        raise HealthError(f"{run.path.name} has no {', '.join(missing)}; record it anew with this version.")
    mark = str(run.attributes.get("model", {}).get("fingerprint", ""))
    known = baseline or find_baseline(mark)
    subject = Subject(tuple(run.layers), watched_of(run), known, find_early(mark))
    has = {"states"} if subject.watched else set()
    has |= {"head_norm", "attn_entropy"} & set(run.scalar_names)
    wanted = {name: {} for name in MONITORS.names()} if monitors is None else monitors
    made, left_out = make_monitors(wanted, subject, has)
    if known is None:
        left_out.append("there is no baseline for this model: its norms, heads and doubt are judged by the run's own "
                        "past alone (make one: sotscope baseline)")  # fmt: skip
    sequences = tuple(
        _sequence(run, line, HealthWatch(make_monitors(wanted, subject, has)[0]), subject)
        for line in run.sequences.to_dict("records")
    )
    return Diagnosis(str(run.path), tuple(made), sequences, tuple(left_out), known.model if known else "")


def _sequence(run: Run, line: Mapping[Any, Any], watch: HealthWatch, subject: Subject) -> SequenceDiagnosis:
    seq, finish = int(line["seq_id"]), str(line["finish"])
    indices = run.rows(seq)
    first = int(np.searchsorted(run.positions_at(indices), int(line["parent_pos"]))) if line["parent"] >= 0 else 0
    watch.prime(rows_of_run(run, indices[:first], subject.watched))
    events = [
        event for row in rows_of_run(run, indices[first:], subject.watched) for event in watch.observe(row)
    ] + watch.close()
    ends = {event.episode: event.pos for event in events if isinstance(event, AlarmEnd)}
    alarms = [event for event in events if isinstance(event, Alarm)]
    found = [_found(run, indices, watch, alarm, ends[alarm.episode]) for alarm in alarms]
    return SequenceDiagnosis(seq, len(indices) - first, finish, tuple(sorted(found, key=lambda alarm: alarm.onset)))


def _found(run: Run, indices: NDArray[np.int64], watch: HealthWatch, alarm: Alarm, end: int) -> Found:
    tokens = run.tokens_at(indices)
    ids, pieces = tokens.all_ids, tokens.pieces
    monitor = watch.monitors[alarm.kind]
    return Found(
        alarm.kind, alarm.severity, alarm.onset, alarm.pos, end, alarm.message, alarm.data,
        pieces.text(ids[max(0, alarm.onset - _BEFORE) : alarm.onset]),
        pieces.text(ids[alarm.onset : alarm.onset + _AFTER]),
        _moved(run, indices, alarm), monitor.advice,
    )  # fmt: skip


def _moved(run: Run, indices: NDArray[np.int64], alarm: Alarm) -> dict[str, dict[str, Any]]:
    """The layer, and the head, that left their past first; positions are rows of a lineage, from 0 on."""
    with np.errstate(all="ignore"):
        layers = {"norm": np.log(run.scalars_at("norm", indices)), "change": -run.scalars_at("cosine", indices)}
        found = {"layer": first_moved(layers, run.layers, alarm.onset, alarm.pos)}
        if "head_norm" in run.scalar_names:
            heads = {"norm": np.log(run.scalars_at("head_norm", indices))}
            found["head"] = first_moved(heads, run.layers, alarm.onset, alarm.pos, HEAD_FAR)
    return {
        name: {**one, "pos": int(run.positions_at(indices[[one.pop("row")]])[0])}
        for name, one in found.items()
        if one is not None
    }
