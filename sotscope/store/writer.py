"""Writes a run: rows of states, the journal, events and pieces.

The decode loop hands over one step at a time. While the disk keeps up, the step is written there and then: waking a
thread costs more than the write, and takes a core from the model. When a write was slow, or when an accelerator
computes meanwhile, a thread writes; steps then wait in a ring that is bounded in bytes, and when it is full the loop
waits. How long it waited is reported (``stalled_ms``). When the disk fails, the recording ends with an alarm,
everything committed stays readable, and later steps are dropped without an error.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from sotscope.errors import StoreError
from sotscope.events import Alarm, Branch, Piece, Step
from sotscope.store import layout
from sotscope.store.arrays import ArraySpec, Publisher, array_specs
from sotscope.store.hot import HotArray, as_bytes
from sotscope.store.journal import JournalReader, JournalWriter, header_bytes
from sotscope.store.lines import LineFile, PieceFile
from sotscope.store.lock import try_lock
from sotscope.store.records import Rows as Rows
from sotscope.store.records import draft_records, row_records, sequence_record, step_record
from sotscope.store.ring import Ring
from sotscope.store.runs import make_run_folder

PUBLISH_EVERY_S = 0.5
CHILDREN_EVERY_S = 5.0
SLOW_S = 0.005
"""A write that takes longer is left to the thread the next time."""


@dataclass
class _Item:
    records: list[NDArray[Any]] = field(default_factory=list)
    states: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    rows: int = 0
    drafts: int = 0
    steps: int = 0
    events: list[str] = field(default_factory=list)
    tokens: tuple[int, ...] = ()
    nbytes: int = 0

    @property
    def held(self) -> int:
        """Bytes of memory it takes while it waits; a run without sites has records only."""
        return self.nbytes + sum(record.nbytes for record in self.records)


class RunWriter:
    """The only writer of a run. ``create`` makes the folder; ``close`` ends it; use as a context manager.

    ``piece_of`` turns a token id into its Piece (asked once an id), ``ring_bytes`` bounds the memory of waiting steps,
    ``durable`` syncs every step to the device (kill -9 needs no sync: the kernel keeps the pages), ``background``
    leaves all writing to the thread (an accelerator computes meanwhile).
    """

    def __init__(
        self,
        path: Path,
        spec: layout.RunSpec,
        *,
        attributes: Mapping[str, Any] | None = None,
        piece_of: Callable[[int], Piece] | None = None,
        ring_bytes: int = 256 << 20,
        durable: bool = False,
        background: bool = False,
        on_alarm: Callable[[Alarm], None] | None = None,
    ) -> None:
        self.path = path.absolute()  # the program may change its directory while it records
        self.spec = spec
        self.failure: Exception | None = None
        self._durable = durable
        self._on_alarm = on_alarm
        self._ring: Ring[_Item] = Ring(ring_bytes)
        self._failing = threading.Lock()
        self._writing = threading.RLock()  # re-entrant: whoever hears an alarm may add an event
        self._background = background
        self._slow = False
        self._stalled_here = 0.0
        self._closed = False
        self._written = 0
        self._counts = {"rows": 0, "drafts": 0, "steps": 0}
        self._create(dict(attributes or {}), piece_of)
        self._stop_publishing = threading.Event()
        self._threads = [
            threading.Thread(target=self._write_loop, name="sotscope-writer", daemon=True),
            threading.Thread(target=self._publish_loop, name="sotscope-publisher", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # -- what the recorder calls -------------------------------------------------------------------------------

    def sequence(self, branch: Branch) -> None:
        """Say that a sequence exists, or how it ended. The last word on a sequence counts."""
        self._put(_Item(records=[sequence_record(branch)]))

    def event(self, kind: str, **data: Any) -> None:
        """Add one line to events.jsonl, committed by itself."""
        line = json.dumps({"kind": kind, "time": time.time(), **data}, default=str)
        self._put(_Item(events=[line]))

    def commit(self, step: Step, rows: Rows, *, capture_ns: int = 0, rss: int = 0, device_bytes: int = 0) -> None:
        """Commit one step with its rows. Returns at once unless the ring is full.

        The arrays of ``rows`` belong to the writer from here on.
        """
        last = step_record(step, capture_ns, rss, device_bytes)
        self._put(
            _Item(
                records=[row_records(self.spec, step, rows), draft_records(self.spec, step), last],
                states=rows.states,
                rows=step.rows,
                drafts=len(step.drafts),
                steps=1,
                tokens=(
                    *step.token_ids,
                    *step.next_ids,
                    *rows.top_id.ravel().tolist(),
                    *(d.token for d in step.drafts),
                ),
                nbytes=rows.nbytes,
            )
        )

    def flush(self) -> None:
        """Wait until everything handed over so far is in the journal (or the disk has failed)."""
        self._ring.flush()

    def publish(self) -> None:
        """Flush, and make the small arrays and all shapes visible now."""
        self.flush()
        self._publish()

    @property
    def rows(self) -> int:
        """How many are committed to the journal."""
        return self._counts["rows"]

    @property
    def bytes_written(self) -> int:
        return self._written

    @property
    def stalled_ms(self) -> float:
        """How long the decode loop has waited for the disk."""
        return self._ring.stalled_ms + self._stalled_here

    def close(self, *, complete: bool = True) -> None:
        """Write what waits, publish, and let the lock go. Safe to call twice, also after an interrupted call."""
        if self._closed:
            return
        self._ring.close()
        self._threads[0].join()
        self._stop_publishing.set()
        self._threads[1].join()
        self._publish(complete=complete and self.failure is None, children=True)
        self._files.close()
        self._closed = True

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(complete=kind is None)

    # -- the disk ----------------------------------------------------------------------------------------------

    def _create(self, attributes: dict[str, Any], piece_of: Callable[[int], Piece] | None) -> None:
        make_run_folder(self.path)
        self._files = ExitStack()
        try:
            self._lay_out(attributes, piece_of)
        except BaseException as error:
            self._files.close()
            shutil.rmtree(self.path, ignore_errors=True)  # it is ours and holds no row
            if isinstance(error, OSError):
                raise StoreError(f"cannot create {self.path}: {error.strerror}; choose another --out.") from error
            raise

    def _lay_out(self, attributes: dict[str, Any], piece_of: Callable[[int], Piece] | None) -> None:
        """Everything a reader needs, and the journal last, locked: a run that can be found can be opened."""
        journal = self.path / layout.JOURNAL
        hidden = journal.with_name(f".{layout.JOURNAL}.new")
        self._journal_handle = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._files.callback(os.close, self._journal_handle)
        if not try_lock(self._journal_handle):
            raise StoreError(f"{self.path} is being written by another process; choose another --out.")
        self._inode = os.fstat(self._journal_handle).st_ino
        self._journal = JournalWriter(self._journal_handle)
        self._journal.begin(header_bytes(self.spec, attributes))
        self._events = LineFile(self.path / layout.EVENTS)
        self._files.callback(self._events.close)
        self._pieces = PieceFile(self.path / layout.PIECES, piece_of)
        self._files.callback(self._pieces.close)
        specs: dict[str, ArraySpec] = {array.path: array for array in array_specs(self.spec)}
        self._arrays: dict[str, HotArray] = {
            site.name: specs[site.name].open(self.path / layout.STATES, durable=self._durable)
            for site in self.spec.sites
        }
        for array in self._arrays.values():
            self._files.callback(array.close)
        reader = JournalReader(hidden)
        self._publisher = Publisher(self.path, reader)
        self._files.callback(self._publisher.close)
        self._publisher.lay_out()
        self._publisher.publish(complete=False)
        self._publisher.publish_children()
        os.rename(hidden, journal)
        reader.path = journal

    def _put(self, item: _Item) -> None:
        if not self._written_here(item) and not self._ring.put(item, item.held):
            raise StoreError(f"{self.path} is closed; nothing can be added to it.")

    def _written_here(self, item: _Item) -> bool:
        """Write the item in the caller's thread, if nothing is before it and the disk keeps up."""
        if not self._writing.acquire(blocking=False):
            return False
        try:
            if self._slow or self._background or not self._ring.idle:
                return False
            seconds = self._try(item)
            self._stalled_here += seconds * 1e3 if seconds > SLOW_S else 0.0
            return True
        finally:
            self._writing.release()

    def _write_loop(self) -> None:
        for item in self._ring.items():
            with self._writing:
                self._try(item)

    def _try(self, item: _Item) -> float:
        """Write one item, unless the disk has failed; returns the seconds it took. Raises nothing but a Ctrl-C."""
        start = time.perf_counter()
        if self.failure is None:
            try:
                self._write(item)
            except Exception as error:  # noqa: BLE001 - neither the decode loop nor the thread may die of it
                self._fail(error)
            except BaseException:
                self._recount()
                raise
        seconds = time.perf_counter() - start
        self._slow = seconds > SLOW_S
        return seconds

    def _recount(self) -> None:
        """After a Ctrl-C in the middle of a write: go on from what the journal holds, as a reader would see it."""
        last = self._publisher.last_commit()
        self._counts = {"rows": last.rows, "drafts": last.drafts, "steps": last.steps}
        self._events.cut(last.events_bytes)
        self._pieces.cut(last.pieces_bytes)

    def _write(self, item: _Item) -> None:
        """States first, then pieces and events, then the records with their commit: in this order, whatever happens."""
        crc = 0
        for site in self.spec.sites if item.rows else ():
            states, array = item.states[site.name], self._arrays[site.name]
            if states.dtype != array.dtype or states.shape != (item.rows, *array.row):
                raise ValueError(f"{site.name}: {states.dtype} {states.shape} is not {array.dtype} {array.row}")
            data = as_bytes(states)
            crc = crc32c(data, crc)  # first: what it reads is then in the cache for the write
            array.write_bytes(self._counts["rows"], data)
        self._pieces.add(item.tokens)
        self._events.append(item.events)
        counts = {name: count + getattr(item, name) for name, count in self._counts.items()}
        commit = np.zeros(1, layout.COMMIT_DTYPE)
        commit[0] = (
            layout.COMMIT,
            *counts.values(),
            self._events.size,
            self._pieces.size,
            time.time_ns(),
            crc,
            0,
        )
        if self._durable:
            for array in self._arrays.values():
                array.sync()
            self._events.sync()
            self._pieces.sync()
        self._journal.append(item.records, commit)
        if self._durable:
            os.fsync(self._journal_handle)
        self._counts = counts
        self._written += item.nbytes

    def _publish_loop(self) -> None:
        due = time.monotonic() + CHILDREN_EVERY_S
        while not self._stop_publishing.wait(PUBLISH_EVERY_S) and self.failure is None:
            children = time.monotonic() > due
            self._publish(children=children)
            if children:
                due = time.monotonic() + CHILDREN_EVERY_S

    def _publish(self, *, complete: bool = False, children: bool = False) -> None:
        """Publish, unless our files are not the run's any more. Never raises: a failing disk ends the recording."""
        try:
            if os.stat(self.path / layout.JOURNAL).st_ino != self._inode:
                raise OSError(f"{self.path / layout.JOURNAL} was replaced by another program")
            for array in self._arrays.values():
                array.check_in_place()
            self._publisher.publish(complete=complete)
            if children:
                self._publisher.publish_children()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not reach the decode loop
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """The disk failed: keep what is committed, stop recording, never stop decoding."""
        with self._failing:
            if self.failure is not None:
                return
            self.failure = error
        self._ring.give_up()
        if self._on_alarm is not None:
            rows = self._counts["rows"]
            what = str(error) or type(error).__name__
            if isinstance(error, OSError) and error.strerror:
                what = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
            message = f"recording ended after {rows} rows: {what}; decoding goes on unrecorded"
            self._on_alarm(Alarm("disk", message, {"rows": rows, "errno": getattr(error, "errno", None)}))
