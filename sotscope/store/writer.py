"""Writes a run: rows of states, the journal, events and pieces; a thread of its own does the disk work.

The decode loop hands over one step at a time. Steps wait in a ring that is bounded in bytes: when the disk is slower
than the model, the loop waits, and how long it waited is reported (``stalled_ms``). When the disk fails, the
recording ends with an alarm, everything committed stays readable, and later steps are dropped without an error.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections import deque
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
from sotscope.store.lock import try_lock

PUBLISH_EVERY_S = 0.4
CHILDREN_EVERY_S = 5.0


@dataclass
class Rows:
    """Captured rows of a step: ``states[site] [row, ...]``, ``scalars[name] [row, ...]``, ``present [row, layer]``."""

    states: Mapping[str, NDArray[Any]]
    scalars: Mapping[str, NDArray[Any]]
    present: NDArray[np.bool_]
    top_id: NDArray[np.int32]
    top_logprob: NDArray[np.float32]
    segments: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.states.values())


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
    ``durable`` syncs every step to the device (kill -9 needs no sync: the kernel keeps the pages).
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
        on_alarm: Callable[[Alarm], None] | None = None,
    ) -> None:
        self.path = path
        self.spec = spec
        self.stalled_ms = 0.0
        self.failure: Exception | None = None
        self._piece_of = piece_of
        self._durable = durable
        self._on_alarm = on_alarm
        self._ring_bytes = ring_bytes
        self._row_dtype = spec.row_dtype
        self._waiting: deque[_Item] = deque()
        self._waiting_bytes = 0
        self._ready = threading.Condition()
        self._closing = False
        self._written = 0
        self._counts = {"rows": 0, "drafts": 0, "steps": 0}
        self._known_pieces: set[int] = set()
        self._create(dict(attributes or {}))
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
        record = np.zeros(1, layout.SEQUENCE_DTYPE)
        record[0] = (
            layout.SEQUENCE,
            branch.seq,
            branch.prompt_length,
            branch.parent,
            branch.parent_pos,
            layout.encode("finish", branch.finish),
        )
        self._put(_Item(records=[record]))

    def event(self, kind: str, **data: Any) -> None:
        """Add one line to events.jsonl, committed by itself."""
        line = json.dumps({"kind": kind, "time": time.time(), **data}, default=str)
        self._put(_Item(events=[line]))

    def commit(self, step: Step, rows: Rows, *, capture_ns: int = 0, rss: int = 0, device_bytes: int = 0) -> None:
        """Commit one step with its rows. Returns at once unless the ring is full.

        The arrays of ``rows`` belong to the writer from here on.
        """
        drafts = np.array([_draft_record(step.index, draft) for draft in step.drafts], layout.DRAFT_DTYPE)
        self._put(
            _Item(
                records=[
                    self._row_records(step, rows),
                    drafts,
                    _step_record(step, capture_ns, rss, device_bytes),
                ],
                states=rows.states,
                rows=step.rows,
                drafts=len(drafts),
                steps=1,
                tokens=(*step.token_ids, *step.next_ids, *rows.top_id.ravel().tolist()),
                nbytes=rows.nbytes,
            )
        )

    def flush(self) -> None:
        """Wait until everything handed over so far is in the journal (or the disk has failed)."""
        with self._ready:
            self._ready.wait_for(lambda: not self._waiting or self.failure is not None)

    def publish(self) -> None:
        """Flush, and make the small arrays and all shapes visible now."""
        self.flush()
        self._publish()

    @property
    def bytes_written(self) -> int:
        return self._written

    def close(self, *, complete: bool = True) -> None:
        """Write what waits, publish, and let the lock go. Safe to call twice."""
        with self._ready:
            if self._closing:
                return
            self._closing = True
            self._ready.notify_all()
        self._threads[0].join()
        self._stop_publishing.set()
        self._threads[1].join()
        self._publish(complete=complete and self.failure is None, children=True)
        self._files.close()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(complete=kind is None)

    # -- the disk ----------------------------------------------------------------------------------------------

    def _create(self, attributes: dict[str, Any]) -> None:
        make_run_folder(self.path)
        self._files = ExitStack()
        try:
            self._lay_out(attributes)
        except BaseException as error:
            self._files.close()
            shutil.rmtree(self.path, ignore_errors=True)  # it is ours and holds no row
            if isinstance(error, OSError):
                raise StoreError(f"cannot create {self.path}: {error.strerror}; choose another --out.") from error
            raise

    def _lay_out(self, attributes: dict[str, Any]) -> None:
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
        self._events = self._files.enter_context(open(self.path / layout.EVENTS, "ab", buffering=0))  # noqa: SIM115
        self._pieces = self._files.enter_context(open(self.path / layout.PIECES, "ab", buffering=0))  # noqa: SIM115
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
        with self._ready:
            if self.failure is not None:
                return
            if self._closing:
                raise StoreError(f"{self.path} is closed; nothing can be added to it.")
            if self._waiting and self._waiting_bytes + item.held > self._ring_bytes:
                start = time.perf_counter()
                self._ready.wait_for(
                    lambda: (
                        not self._waiting
                        or self._waiting_bytes + item.held <= self._ring_bytes
                        or self.failure is not None
                    )
                )
                self.stalled_ms += (time.perf_counter() - start) * 1e3
            self._waiting.append(item)
            self._waiting_bytes += item.held
            self._ready.notify_all()

    def _write_loop(self) -> None:
        while True:
            with self._ready:
                self._ready.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                item = self._waiting[0]
            if self.failure is None:
                try:
                    self._write(item)
                except Exception as error:  # noqa: BLE001 - a thread that dies would leave the decode loop waiting
                    self._fail(error)
            with self._ready:
                self._waiting.popleft()
                self._waiting_bytes -= item.held
                self._ready.notify_all()

    def _write(self, item: _Item) -> None:
        """States first, then pieces and events, then the records with their commit: in this order, whatever happens."""
        crc = 0
        for site in self.spec.sites if item.rows else ():
            states, array = item.states[site.name], self._arrays[site.name]
            if states.dtype != array.dtype or states.shape != (item.rows, *array.row):
                raise ValueError(f"{site.name}: {states.dtype} {states.shape} is not {array.dtype} {array.row}")
            data = as_bytes(states)
            crc = crc32c(data.data, crc)  # first: what it reads is then in the cache for the write
            array.write_bytes(self._counts["rows"], data)
        self._write_pieces(item.tokens)
        if item.events:
            self._append(self._events.fileno(), "".join(f"{line}\n" for line in item.events))
        counts = {name: count + getattr(item, name) for name, count in self._counts.items()}
        commit = np.zeros(1, layout.COMMIT_DTYPE)
        commit[0] = (
            layout.COMMIT,
            *counts.values(),
            self._events.tell(),
            self._pieces.tell(),
            time.time_ns(),
            crc,
            0,
        )
        if self._durable:
            for array in self._arrays.values():
                array.sync()
            os.fsync(self._events.fileno())
            os.fsync(self._pieces.fileno())
        self._journal.append(item.records, commit)
        if self._durable:
            os.fsync(self._journal_handle)
        self._counts = counts
        self._written += item.nbytes

    def _append(self, handle: int, text: str) -> None:
        data = memoryview(text.encode())
        while data:
            data = data[os.write(handle, data) :]

    def _write_pieces(self, tokens: tuple[int, ...]) -> None:
        fresh = sorted({token for token in tokens if token >= 0} - self._known_pieces)
        if not fresh or self._piece_of is None:
            return
        lines = []
        for token in fresh:
            piece = self._piece_of(token)
            lines.append(
                json.dumps({"id": piece.id, "raw": piece.raw, "hex": piece.data.hex(), "special": piece.special})
            )
        self._append(self._pieces.fileno(), "".join(f"{line}\n" for line in lines))
        self._known_pieces.update(fresh)

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
        with self._ready:
            if self.failure is not None:
                return
            self.failure = error
            self._ready.notify_all()
        if self._on_alarm is not None:
            rows = self._counts["rows"]
            what = str(error) or type(error).__name__
            if isinstance(error, OSError) and error.strerror:
                what = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
            message = f"recording ended after {rows} rows: {what}; decoding goes on unrecorded"
            self._on_alarm(Alarm("disk", message, {"rows": rows, "errno": getattr(error, "errno", None)}))

    # -- records -----------------------------------------------------------------------------------------------

    def _row_records(self, step: Step, rows: Rows) -> NDArray[Any]:
        records = np.zeros(step.rows, self._row_dtype)
        records["tag"] = layout.ROW
        records["token_id"] = step.token_ids
        records["next_id"] = step.next_ids
        records["seq_id"] = step.seq
        records["pos"] = np.arange(step.pos, step.pos + step.rows)
        records["step"] = step.index
        records["mode"] = layout.encode("mode", step.mode)
        records["segment"] = rows.segments
        records["present"] = rows.present
        records["top_id"] = rows.top_id
        records["top_logprob"] = rows.top_logprob
        for scalar in self.spec.scalars:
            records[f"scalar_{scalar.name}"] = rows.scalars[scalar.name]
        return records


def _draft_record(step: int, draft: Any) -> tuple[Any, ...]:
    return (
        layout.DRAFT,
        step,
        draft.slot,
        draft.target,
        draft.token,
        draft.probability,
        draft.entropy,
        draft.accepted,
        layout.encode("draft_reason", draft.reason),
        draft.cosine,
        draft.relative_error,
    )


def _step_record(step: Step, capture_ns: int, rss: int, device_bytes: int) -> NDArray[Any]:
    record = np.zeros(1, layout.STEP_DTYPE)
    record[0] = (
        layout.STEP,
        step.index,
        step.seq,
        step.pos,
        step.rows,
        layout.encode("mode", step.mode),
        step.window,
        step.accepted,
        layout.encode("step_reason", step.reason),
        step.draft_ns,
        step.forward_ns,
        step.accept_ns,
        capture_ns,
        rss,
        device_bytes,
    )
    return record


def make_run_folder(path: Path) -> None:
    """Make the folder of a run, mode 0700; a runs folder made on the way gets a .gitignore (prompts are private).

    Raises StoreError when it exists already, or cannot be made.
    """
    parent = path.parent
    try:
        if not parent.exists():
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # another recording may make it just now
            (parent / ".gitignore").write_text("*\n")
        path.mkdir(mode=0o700)
    except FileExistsError:
        raise StoreError(f"{path} exists already; choose another --out, or remove it first.") from None
    except OSError as error:
        raise StoreError(f"cannot create {path}: {error.strerror}; choose another --out.") from error
