"""Uncompressed zarr chunk files that are written in place and read by memory map.

Each chunk file is created at full size with ``ftruncate`` (sparse), so it is a valid zarr chunk from its first byte;
rows are then written with one ``pwrite`` each run of rows. Rows never change once they are committed.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sotscope.errors import StoreError

MAPS = 16
"""Chunk files that are kept mapped."""


def _spans(start: int, stop: int, chunk_rows: int) -> Iterator[tuple[int, int, int]]:
    """Chunk index and the row range inside that chunk, for every chunk that ``[start, stop)`` touches."""
    while start < stop:
        chunk, first = divmod(start, chunk_rows)
        last = min(chunk_rows, first + stop - start)
        yield chunk, first, last
        start += last - first


class HotArray:
    """One array below ``states.zarr``: rows of shape ``row``, ``chunk_rows`` of them a chunk file.

    ``durable``: a chunk is synced before the next one is begun.
    """

    def __init__(
        self, folder: Path, dtype: np.dtype[Any], row: tuple[int, ...], chunk_rows: int, *, durable: bool = False
    ) -> None:
        self.folder = folder
        self.dtype = dtype
        self.row = row
        self.chunk_rows = chunk_rows
        self.row_bytes = math.prod(row) * dtype.itemsize
        self.durable = durable
        self._open: tuple[int, int] | None = None
        self._written: tuple[int, int] | None = None
        self._maps: dict[int, NDArray[Any]] = {}

    def chunk_path(self, chunk: int) -> Path:
        return self.folder.joinpath("c", str(chunk), *("0" for _ in self.row))

    def _file(self, chunk: int) -> int:
        if self._open is not None and self._open[0] == chunk:
            return self._open[1]
        if self.durable:
            self.sync()
        self.close()
        path = self.chunk_path(chunk)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        size = self.chunk_rows * self.row_bytes
        found = os.fstat(handle)
        if found.st_size != size:
            os.ftruncate(handle, size)
        self._open = (chunk, handle)
        self._written = (chunk, found.st_ino)
        return handle

    def check_in_place(self) -> None:
        """Raise OSError when the chunk being written is no longer the file of that name: what we write is lost then."""
        written = self._written
        if written is not None:
            path = self.chunk_path(written[0])
            if os.stat(path).st_ino != written[1]:
                raise OSError(f"{path} was replaced by another program")

    def write(self, start: int, rows: NDArray[Any]) -> None:
        """Write ``rows [n, *row]`` at row ``start``. Raises OSError when the disk does."""
        self.write_bytes(start, as_bytes(rows))

    def write_bytes(self, start: int, data: memoryview) -> None:
        """Write whole rows, given as their bytes, at row ``start``. Raises OSError when the disk does."""
        while data:
            chunk, first = divmod(start, self.chunk_rows)
            rows = min(len(data) // self.row_bytes, self.chunk_rows - first)
            _write_all(self._file(chunk), data[: rows * self.row_bytes], first * self.row_bytes)
            data = data[rows * self.row_bytes :]
            start += rows

    def sync(self) -> None:
        if self._open is not None:
            os.fsync(self._open[1])

    def close(self) -> None:
        if self._open is not None:
            handle, self._open = self._open[1], None
            os.close(handle)

    def _map(self, chunk: int) -> NDArray[Any]:
        found = self._maps.get(chunk)
        if found is None:
            path = self.chunk_path(chunk)
            size = self.chunk_rows * self.row_bytes
            try:
                with open(path, "rb") as file:
                    buffer = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
            except (OSError, ValueError, OverflowError) as error:
                raise StoreError(f"{path} is missing or too short; `sotscope verify` tells what is lost.") from error
            while len(self._maps) >= MAPS:  # pages of a map count as memory of the process while it is open
                with suppress(KeyError, StopIteration, RuntimeError):  # another thread was faster
                    self._maps.pop(next(iter(self._maps)))
            found = np.frombuffer(buffer, self.dtype).reshape(self.chunk_rows, *self.row)
            self._maps[chunk] = found
        return found

    def read(self, start: int, stop: int, inner: tuple[Any, ...] = ()) -> NDArray[Any]:
        """Rows ``[start, stop)`` as a new array; ``inner`` indexes the axes after the token axis."""
        if stop <= start or not self.row_bytes:
            return np.empty((max(0, stop - start), *self.row), self.dtype)[(slice(None), *inner)]
        parts = [
            self._map(chunk)[(slice(first, last), *inner)]
            for chunk, first, last in _spans(start, stop, self.chunk_rows)
        ]
        return np.concatenate(parts) if len(parts) > 1 else parts[0].copy()

    def take(self, rows: NDArray[np.int64], inner: tuple[Any, ...] = ()) -> NDArray[Any]:
        """The rows with these indices, in this order; reads neighbours together and nothing in between."""
        if not len(rows):
            return self.read(0, 0, inner)
        runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
        return np.concatenate([self.read(int(run[0]), int(run[-1]) + 1, inner) for run in runs])


def as_bytes(rows: NDArray[Any]) -> memoryview:
    """The bytes of an array, without a copy where it is contiguous."""
    return np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data


def _write_all(handle: int, data: memoryview, offset: int) -> None:
    """pwrite until all is written (a short write is legal); seek and write where there is no pwrite."""
    while data:
        if hasattr(os, "pwrite"):
            count = os.pwrite(handle, data, offset)
        else:  # pragma: no cover - Windows
            os.lseek(handle, offset, os.SEEK_SET)
            count = os.write(handle, data)
        data = data[count:]
        offset += count
