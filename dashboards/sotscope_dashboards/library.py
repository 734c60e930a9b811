"""The runs of one folder, by opaque ids: a browser never names a path.

Opens and deletes folders that a scan of the runs folder finds, and nothing else: no symlink that leads out of it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sotscope.errors import StoreError
from sotscope.store import layout
from sotscope.store.lock import is_held
from sotscope.store.reader import Run, open_run
from sotscope_dashboards.style import visible
from sotscope_dashboards.summary import Stamp, check_links, stamp_of, summary

OPEN_RUNS = 8
"""Runs that are kept open; the one that was looked at longest ago goes first."""
GONE = "There is no such run here any more; it was moved or deleted."


class Library:
    """Runs in ``folder`` and in the folders right below it. Safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.refused: list[str] = []
        """What the last listing left out, and why: one sentence each."""
        self._key = str(self.folder).encode()  # the same next time: links keep working. The guard is what keeps out
        self._lock = threading.Lock()
        self._names: dict[str, str] = {}
        self._entries: dict[str, tuple[Stamp, dict[str, Any]]] = {}
        self._open: OrderedDict[str, _Kept] = OrderedDict()

    def entries(self) -> list[dict[str, Any]]:
        """One dict a run, newest first: id, name, model, mode, rows, bytes, state, started, prompt, problem.

        ``state`` is recording, complete, interrupted or damaged; ``started`` is in seconds since 1970; ``problem`` is
        one line, mostly empty.
        """
        self._scan()
        names = self._names
        entries = [self._entry(id_, name) for id_, name in names.items()]
        self._entries = {id_: known for id_, known in self._entries.copy().items() if id_ in names}
        return sorted(entries, key=lambda entry: (-entry["started"], entry["name"]))

    def open(self, id_: str) -> Run:
        """The run with this id, followed live and kept open. Raises StoreError for one that is gone or broken."""
        path = self._path(id_)
        with self._lock:
            kept = self._open.get(id_)
            if kept is not None and kept.is_at(path):
                self._open.move_to_end(id_)
                return kept.run
        check_links(path)
        made = _Kept(path)  # not under the lock: others need not wait for a long run
        with self._lock:
            self._forget(id_)
            self._open[id_] = made
            if len(self._open) > OPEN_RUNS:
                self._forget(next(iter(self._open)))
        return made.run

    def delete(self, id_: str) -> None:
        """Remove the run's folder. Raises StoreError for one that is being recorded, or that is no run's folder."""
        path = self._path(id_)
        name = path.name
        if path.is_symlink():
            raise StoreError(f"{name} is a symbolic link; remove it by hand.")
        if not (path / layout.JOURNAL).is_file():
            raise StoreError(f"{name} is no sotscope run (it has no {layout.JOURNAL}); remove it by hand.")
        if is_held(path / layout.JOURNAL):
            raise StoreError(f"{name} is being recorded; stop that first.")
        with self._lock:
            self._forget(id_)
        try:
            shutil.rmtree(path)
        except OSError as error:
            raise StoreError(f"cannot delete {name}: {error.strerror}.") from error

    def id_of(self, path: str | Path) -> str:
        """The id of the run at ``path``. Raises StoreError for a path that this library does not hold."""
        try:
            relative = Path(path).resolve().relative_to(self.folder)
        except ValueError:
            raise StoreError(f"{path} is not in {self.folder}.") from None
        inside = self.folder / relative
        if len(relative.parts) not in (1, 2) or not inside.is_dir() or self._why_not(inside):
            raise StoreError(f"{path} is not a run that the page can show.")
        id_ = self._id(relative.as_posix())
        if id_ not in self._names:
            self._names = {**self._names, id_: relative.as_posix()}  # never changed in place: others iterate over it
        return id_

    def _forget(self, id_: str) -> None:
        kept = self._open.pop(id_, None)
        if kept is not None:
            kept.close()

    # -- which there are ---------------------------------------------------------------------------------------

    def _id(self, name: str) -> str:
        return hmac.new(self._key, name.encode(), hashlib.sha256).hexdigest()[:16]

    def _path(self, id_: str) -> Path:
        """Only what was found has an id, and it is looked at again: a link may have been put there."""
        if id_ not in self._names:
            self._scan()
        name = self._names.get(id_)
        path = self.folder / (name or "")
        if name is None or not path.exists():
            raise StoreError(GONE)
        why = self._why_not(path)
        if why:
            raise StoreError(why)
        return path

    def _scan(self) -> None:
        """Look which runs there are."""
        names, refused = {}, []
        for path in _candidates(self.folder):
            why = self._why_not(path)
            if why:
                refused.append(why)
            else:
                name = path.relative_to(self.folder).as_posix()
                names[self._id(name)] = name
        self._names, self.refused = names, refused

    def _why_not(self, path: Path) -> str:
        """Why a path is not shown; empty if it is."""
        name = path.relative_to(self.folder).as_posix()
        if not name.isprintable() or "\\" in name:
            shown = visible(name.encode(errors="replace").decode())
            return f"{shown!r} is not opened: its name has characters that cannot be shown."
        if not path.resolve().is_relative_to(self.folder):
            return f"{name} is not opened: a symbolic link leads out of this folder."
        return ""

    def _entry(self, id_: str, name: str) -> dict[str, Any]:
        """The summary, from memory where the run has not changed and nobody writes it."""
        path = self.folder / name
        stamp = stamp_of(path)
        known = self._entries.get(id_)
        if known is None or known[0] != stamp or known[1]["state"] == "recording":
            known = stamp, {"id": id_, "name": name, **summary(path, lambda: self.open(id_))}
            self._entries[id_] = known
        return known[1]


class _Kept:
    """An open run. Its journal is held open, too: so no run that takes its path can have the same file number."""

    def __init__(self, path: Path) -> None:
        self.run = open_run(path, live=True)
        self._journal = os.open(path / layout.JOURNAL, os.O_RDONLY)

    def is_at(self, path: Path) -> bool:
        try:
            return os.path.samestat(os.fstat(self._journal), os.stat(path / layout.JOURNAL))
        except OSError:
            return False

    def close(self) -> None:
        os.close(self._journal)


def _candidates(folder: Path) -> Iterator[Path]:
    """Folders that are runs, or are called like one, in ``folder`` and one level below it."""
    for path in _folders(folder):
        if _is_run(path):
            yield path
        else:
            yield from (inner for inner in _folders(path) if _is_run(inner))


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:  # not there yet, or not ours to read
        return []


def _is_run(path: Path) -> bool:
    return path.suffix == layout.SUFFIX or (path / layout.JOURNAL).is_file()
