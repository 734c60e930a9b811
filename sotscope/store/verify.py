"""Is a run what its journal says? Checks every step, and can publish anew what the journal holds."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sotscope.errors import StoreError
from sotscope.store import layout
from sotscope.store.arrays import Publisher, array_specs
from sotscope.store.journal import JournalReader, crc32c
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
    journal = JournalReader(path / layout.JOURNAL)
    journal.advance()
    verdict = Verdict(str(path), rows=len(journal.rows), steps=len(journal.steps))
    if journal.damage:
        verdict.problems.append(journal.damage)
    _check_states(path, journal, verdict)
    if repair:
        _repair(path, journal)
        verdict.repaired = True
    _check_published(path, journal, verdict, recording=held)
    return verdict


def _check_states(path: Path, journal: JournalReader, verdict: Verdict) -> None:
    arrays = [a for a in array_specs(journal.spec) if a.big]
    hot = [array.open(path / layout.STATES) for array in arrays]
    start = 0
    for number, commit in enumerate(journal.commits):
        if commit.rows > start:
            crc = 0
            try:
                for array in hot:
                    crc = crc32c(array.read(start, commit.rows), crc)
            except StoreError as error:
                verdict.problems.append(str(error))
                return
            if crc != commit.states_crc:
                verdict.problems.append(f"states of rows {start}-{commit.rows - 1} (commit {number}): crc32c differs")
        start = commit.rows


def _check_published(path: Path, journal: JournalReader, verdict: Verdict, *, recording: bool) -> None:
    try:
        root = check_hierarchy(path / layout.STATES)
    except StoreError as error:
        verdict.problems.append(str(error))
        return
    verdict.published_rows = int(root["attributes"].get("committed", 0))
    verdict.complete = bool(root["attributes"].get("complete"))
    if verdict.published_rows > verdict.rows:
        verdict.problems.append(
            f"{verdict.published_rows} rows are published, the journal vouches for {verdict.rows} only"
        )
    elif verdict.published_rows < verdict.rows and not recording:
        verdict.problems.append(
            f"{verdict.rows - verdict.published_rows} committed rows are not published (the writer died); --repair does"
        )
    rows = min(verdict.published_rows, verdict.rows)
    for array in array_specs(journal.spec):
        if array.axis == "token" and array.field and rows:
            published = array.open(path / layout.STATES).read(0, rows)
            if not _same(published, journal.rows[:rows][array.field]):
                verdict.problems.append(f"published array {array.path} differs from the journal; --repair rewrites it")


def _same(left: Any, right: Any) -> bool:
    return bool(np.array_equal(left, right, equal_nan=left.dtype.kind == "f"))


def _repair(path: Path, journal: JournalReader) -> None:
    root = path / layout.STATES / "zarr.json"
    complete = False
    try:
        complete = bool(json.loads(root.read_text())["attributes"]["complete"]) and not journal.damage
    except (OSError, ValueError, KeyError):
        complete = False  # what cannot be read says nothing
    publisher = Publisher(path, journal)
    try:
        publisher.publish(complete=complete)
        publisher.publish_children()
    except OSError as error:
        raise StoreError(f"cannot repair {path}: {error.strerror}.") from error
    finally:
        publisher.close()
