"""Text files of a run that only grow: one JSON object a line, and a length that a commit vouches for."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from sotscope.events import Piece


class LineFile:
    """A file that lines are appended to. Raises OSError when the disk does."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self.size = 0

    def append(self, lines: Iterable[str]) -> None:
        data = memoryview("".join(f"{line}\n" for line in lines).encode())
        while data:
            count = os.write(self._handle, data)
            self.size += count
            data = data[count:]

    def cut(self, size: int) -> None:
        """Take back what no commit vouches for."""
        os.ftruncate(self._handle, size)
        self.size = size

    def sync(self) -> None:
        os.fsync(self._handle)

    def close(self) -> None:
        os.close(self._handle)


class PieceFile(LineFile):
    """The pieces of all tokens seen so far, each once; ``piece_of`` is asked for those that are new."""

    def __init__(self, path: Path, piece_of: Callable[[int], Piece] | None) -> None:
        super().__init__(path)
        self._piece_of = piece_of
        self._known: set[int] = set()

    def cut(self, size: int) -> None:
        super().cut(size)
        self._known.clear()  # which of them were cut is not worth knowing: a piece may stand in the file twice

    def add(self, tokens: tuple[int, ...]) -> None:
        fresh = sorted({token for token in tokens if token >= 0} - self._known)
        if not fresh or self._piece_of is None:
            return
        self.append(_line(self._piece_of(token)) for token in fresh)
        self._known.update(fresh)


def _line(piece: Piece) -> str:
    return json.dumps({"id": piece.id, "raw": piece.raw, "hex": piece.data.hex(), "special": piece.special})
