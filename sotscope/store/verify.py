"""Is a run what its journal says? Checks every step, and can publish anew what the journal holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from sotscope.errors import StoreError
from sotscope.store import layout
from sotscope.store.arrays import ArraySpec, Publisher, array_specs
from sotscope.store.hot import as_bytes
from sotscope.store.journal import JournalReader
from sotscope.store.lock import is_held
from sotscope.store.safety import check_hierarchy


@dataclass
class Verdict:
    """``problems`` are sentences, empty for a sound run; ``rows`` and ``steps`` are what the journal vouches for."""

    path: str
    rows: int = 0
    steps: int = 0
    published_rows: int = 0
    complete: bool = False
    repaired: bool = False
    problems: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not self.problems


def verify(path: str | Path, *, repair: bool = False) -> Verdict:
    """Check the journal, the crc32c of every step's states, and the published arrays against the journal.

    ``repair`` publishes the arrays and shapes anew from the journal; it deletes nothing. Raises StoreError when the
    path is no run, or when a writer is still at work and ``repair`` is asked for.
    """
    path = Path(path)
    if not (path / layout.JOURNAL).is_file():
        raise StoreError(f"{path} is not a sotscope run (it has no {layout.JOURNAL}).")
    held = is_held(path / layout.JOURNAL)
    if repair and held:
        raise StoreError(f"{path} is being recorded; wait until its writer has ended.")
    verdict = Verdict(str(path))
    published = _published(path, verdict)  # before the journal, which may have grown when it is read
    try:
        journal = JournalReader(path / layout.JOURNAL)
        journal.advance()
        if repair:
            _repair(path, journal, complete=verdict.complete and not journal.damage)
            verdict = Verdict(str(path), repaired=True)
            published = _published(path, verdict)
    except OSError as error:
        raise StoreError(f"cannot {'repair' if repair else 'read'} {path}: {error.strerror}.") from error
    verdict.rows, verdict.steps = len(journal.rows), len(journal.steps)
    if journal.damage:
        verdict.problems.append(journal.damage)
    elif verdict.complete and journal.tail_bytes:
        verdict.problems.append(
            f"the last {journal.tail_bytes} bytes of the journal do not check, though it was closed"
        )
    _check_states(path, journal, verdict)
    if published is not None:
        _check_published(path, journal, published, verdict, recording=held)
    return verdict


def _published(path: Path, verdict: Verdict) -> dict[str, Any] | None:
    """The root document, or None and a problem when there is none that may be opened."""
    try:
        root = check_hierarchy(path / layout.STATES)
    except StoreError as error:
        verdict.problems.append(str(error))
        return None
    verdict.published_rows = root["attributes"]["committed"]
    verdict.complete = root["attributes"]["complete"]
    return root


def _check_states(path: Path, journal: JournalReader, verdict: Verdict) -> None:
    arrays = [a for a in array_specs(journal.spec) if a.big]
    hot = [array.open(path / layout.STATES) for array in arrays]
    start = 0
    for number, commit in enumerate(journal.commits):
        if commit.rows > start:
            crc = 0
            try:
                for array in hot:
                    crc = crc32c(as_bytes(array.read(start, commit.rows)), crc)
            except StoreError as error:
                verdict.problems.append(str(error))
                return
            if crc != commit.states_crc:
                verdict.problems.append(f"states of rows {start}-{commit.rows - 1} (commit {number}): crc32c differs")
        start = commit.rows


def _check_published(
    path: Path, journal: JournalReader, root: dict[str, Any], verdict: Verdict, *, recording: bool
) -> None:
    """Lengths of all arrays, and the values of the small ones, against the journal."""
    records = {
        "token": journal.rows,
        "step": journal.steps,
        "draft": journal.drafts,
        "sequence": journal.sequences,
    }
    children = root["consolidated_metadata"]["metadata"]
    late: set[str] = set()
    for array in array_specs(journal.spec):
        if not array.axis:
            continue
        shape = children.get(array.path, {}).get("shape", [0])
        length, known = shape[0], len(records[array.axis])
        if shape[1:] != list(array.row) or (array.axis == "token" and length != verdict.published_rows):
            verdict.problems.append(f"published array {array.path} has shape {shape}; --repair publishes it anew")
        elif length > known:
            verdict.problems.append(f"{length} {array.axis}s of {array.path} are published, the journal has {known}")
        else:
            if length < known and not recording:
                late.add(f"{known - length} {array.axis}s")
            if array.field:
                _check_values(path, array, records[array.axis][:length][array.field], verdict)
    if late:
        verdict.problems.append(
            f"committed, but not published: {', '.join(sorted(late))} (the writer died); --repair does"
        )


def _check_values(path: Path, array: ArraySpec, expected: NDArray[Any], verdict: Verdict) -> None:
    try:
        found = array.open(path / layout.STATES).read(0, len(expected))
    except StoreError as error:
        verdict.problems.append(str(error))
        return
    # how a sequence ended may be committed and not yet published
    if array.axis != "sequence" and not np.array_equal(found, expected, equal_nan=found.dtype.kind == "f"):
        verdict.problems.append(f"published array {array.path} differs from the journal; --repair rewrites it")


def _repair(path: Path, journal: JournalReader, *, complete: bool) -> None:
    publisher = Publisher(path, journal)
    try:
        publisher.lay_out()
        publisher.publish(complete=complete)
        publisher.publish_children()
    finally:
        publisher.close()
