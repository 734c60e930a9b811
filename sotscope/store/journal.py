"""The commit log: the truth about a run. Everything small in the store is derived from it.

A step is written as its records (sequence, rows, drafts, step) followed by one commit record, in one write. The
commit's crc32c covers all of these bytes; a second one covers the state bytes of the step. A reader takes nothing
beyond the last commit that checks.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray
from pydantic import ValidationError

from sotscope.errors import StoreError
from sotscope.store import layout

MAGIC = b"SOTJRNL\x01"


def header_bytes(spec: layout.RunSpec, attributes: dict[str, Any]) -> bytes:
    """Magic, length, JSON (spec, codes, attributes) and its crc32c."""
    body = json.dumps({"spec": spec.model_dump(), "codes": layout.CODES, "attributes": attributes}).encode()
    return MAGIC + len(body).to_bytes(4, "little") + body + crc32c(body).to_bytes(4, "little")


def read_header(path: Path) -> tuple[layout.RunSpec, dict[str, Any], int]:
    """The spec, the attributes and the length of the header. Raises StoreError when it does not check."""
    with open(path, "rb") as file:
        start = file.read(len(MAGIC) + 4)
        if start[: len(MAGIC)] != MAGIC:
            raise StoreError(f"{path} is not a sotscope journal (its first bytes differ).")
        # a damaged length must not ask for more memory than there is file
        size = min(int.from_bytes(start[len(MAGIC) :], "little"), os.fstat(file.fileno()).st_size)
        body, crc = file.read(size), file.read(4)
    if len(body) < size or crc32c(body).to_bytes(4, "little") != crc:
        raise StoreError(f"the header of {path} is damaged; without it the run cannot be read.")
    try:
        data = json.loads(body)
        seen = data["spec"]["format"]
        if seen != layout.FORMAT:
            raise StoreError(f"{path} has store format {seen}, this sotscope reads {layout.FORMAT}; update it.")
        return layout.RunSpec.model_validate(data["spec"]), dict(data["attributes"]), len(start) + size + 4
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise StoreError(f"the header of {path} does not fit this sotscope: {where}: {first['msg']}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"the header of {path} is not a run's ({error!r}).") from error


@dataclass(frozen=True)
class Commit:
    """One commit that checks: how many rows, drafts, steps and event bytes there are after it."""

    rows: int
    drafts: int
    steps: int
    events_bytes: int
    pieces_bytes: int
    time_ns: int
    states_crc: int


NOTHING = Commit(0, 0, 0, 0, 0, 0, 0)


class JournalReader:
    """Follows a journal as it grows; holds the records of all commits that check.

    ``damage`` says where and why reading stopped before the end, or is empty. A torn tail (a writer that died in the
    middle of a step) is not damage; ``tail_bytes`` says how long it is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec, self.attributes, self._offset = read_header(path)
        self._dtypes = {
            layout.ROW: self.spec.row_dtype,
            layout.DRAFT: self.spec.draft_dtype,
            layout.STEP: layout.STEP_DTYPE,
            layout.SEQUENCE: layout.SEQUENCE_DTYPE,
            layout.COMMIT: layout.COMMIT_DTYPE,
        }
        self._records: dict[int, _Growing] = {tag: _Growing(dtype) for tag, dtype in self._dtypes.items()}
        self.commits: list[Commit] = []
        self.damage = ""
        self.tail_bytes = 0

    @property
    def rows(self) -> NDArray[Any]:
        return self._records[layout.ROW].view()

    @property
    def drafts(self) -> NDArray[Any]:
        return self._records[layout.DRAFT].view()

    @property
    def steps(self) -> NDArray[Any]:
        return self._records[layout.STEP].view()

    @property
    def sequences(self) -> NDArray[Any]:
        """One record a sequence, the last word on each, in the order they began: a published row stays its own."""
        latest = {int(record["seq_id"]): record for record in self._records[layout.SEQUENCE].view()}
        return np.array(list(latest.values()), layout.SEQUENCE_DTYPE)

    @property
    def last(self) -> Commit:
        return self.commits[-1] if self.commits else NOTHING

    def commit_at(self, rows: int) -> Commit:
        """The last commit with no more than ``rows`` rows."""
        index = bisect_right(self.commits, rows, key=lambda commit: commit.rows)
        return self.commits[index - 1] if index else NOTHING

    def advance(self) -> int:
        """Read what has been appended since; returns the number of new commits."""
        self.damage = ""  # looked at anew: some file systems show a growing file's new pages late
        with open(self.path, "rb") as file:
            file.seek(self._offset)
            data = file.read()
        before = len(self.commits)
        position = 0
        while (end := self._block(data, position)) > position:
            position = end
        self._offset += position
        self.tail_bytes = len(data) - position
        return len(self.commits) - before

    def _block(self, data: bytes, start: int) -> int:
        """Take one step (records up to and with its commit) from ``data[start:]``; returns where it ends."""
        position = start
        pending: dict[int, list[tuple[int, int]]] = {}
        while position < len(data):
            tag = data[position]
            dtype = self._dtypes.get(tag)
            if dtype is None:
                self._note_damage(data, start, position, f"unknown record tag {tag:#04x}")
                return start
            end = position + dtype.itemsize
            if end > len(data):
                return start
            if tag == layout.COMMIT:
                return end if self._take(data, start, position, end, pending) else start
            spans = pending.setdefault(tag, [])
            if spans and spans[-1][1] == position:
                spans[-1] = (spans[-1][0], end)
            else:
                spans.append((position, end))
            position = end
        return start

    def _take(
        self, data: bytes, start: int, position: int, end: int, pending: dict[int, list[tuple[int, int]]]
    ) -> bool:
        record = np.frombuffer(data, layout.COMMIT_DTYPE, count=1, offset=position)[0]
        if crc32c(data[start : end - 4]) != int(record["crc"]):
            self._note_damage(data, start, end, "the crc32c of the step differs")
            return False
        for tag, spans in pending.items():
            for first, last in spans:
                self._records[tag].extend(np.frombuffer(data, np.uint8, last - first, first))
        self.commits.append(Commit(**{name: int(record[name]) for name in Commit.__dataclass_fields__}))
        return True

    def _note_damage(self, data: bytes, start: int, position: int, what: str) -> None:
        if data.count(0, position) < len(data) - position:  # zeros are room that was never written
            commit, rows = len(self.commits), self.last.rows
            self.damage = f"journal damaged at byte {self._offset + start} (step {commit}, after row {rows}): {what}"


class _Growing:
    """A structured array that doubles its room, so that following a long run does not copy it again and again.

    It is filled as bytes: numpy copies structured records field by field.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._data: NDArray[np.uint8] = np.empty(64 * dtype.itemsize, np.uint8)
        self._used = 0

    def extend(self, raw: NDArray[np.uint8]) -> None:
        need = self._used + len(raw)
        if need > len(self._data):
            grown = np.empty(max(need, 2 * len(self._data)), np.uint8)
            grown[: self._used] = self._data[: self._used]
            self._data = grown
        self._data[self._used : need] = raw
        self._used = need

    def view(self) -> NDArray[Any]:
        return self._data[: self._used].view(self._dtype)


class JournalWriter:
    """Appends steps to the journal. One write a step, so that a torn step is always a torn tail."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def begin(self, header: bytes) -> None:
        """Write the header. Raises OSError when the disk does."""
        self._write(header)

    def append(self, records: list[NDArray[Any]], commit: NDArray[Any]) -> None:
        """Write the records and then ``commit [1]``, whose crc is filled in here. Raises OSError when the disk does."""
        body = b"".join(record.tobytes() for record in records)
        tail = commit.tobytes()[:-4]
        crc = crc32c(tail, crc32c(body))
        self._write(body + tail + crc.to_bytes(4, "little"))

    def _write(self, content: bytes) -> None:
        data = memoryview(content)
        while data:
            data = data[os.write(self._handle, data) :]
