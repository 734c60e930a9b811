"""Uncompressed zarr chunk files that are written in place and read by memory map.

Each chunk file is created at full size with ``ftruncate`` (sparse), so it is a valid zarr chunk from its first byte;
rows are then written with one ``pwrite`` each run of rows. Rows never change once they are committed.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sotscope.errors import StoreError


def _spans(start: int, stop: int, chunk_rows: int) -> Iterator[tuple[int, int, int]]:
    """Chunk index and the row range inside that chunk, for every chunk that ``[start, stop)`` touches."""
    while start < stop:
        chunk, first = divmod(start, chunk_rows)
        last = min(chunk_rows, first + stop - start)
        yield chunk, first, last
        start += last - first


class HotArray:
    """One array below ``states.zarr``: rows of shape ``row``, ``chunk_rows`` of them a chunk file."""

    def __init__(self, folder: Path, dtype: np.dtype[Any], row: tuple[int, ...], chunk_rows: int) -> None:
        self.folder = folder
        self.dtype = dtype
        self.row = row
        self.chunk_rows = chunk_rows
        self.row_bytes = math.prod(row) * dtype.itemsize
        self._open: tuple[int, int] | None = None
        self._maps: dict[int, NDArray[Any]] = {}

    def chunk_path(self, chunk: int) -> Path:
        return self.folder.joinpath("c", str(chunk), *("0" for _ in self.row))

    def _file(self, chunk: int) -> int:
        if self._open is not None and self._open[0] == chunk:
            return self._open[1]
        self.close()
        path = self.chunk_path(chunk)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        size = self.chunk_rows * self.row_bytes
        if os.fstat(handle).st_size != size:
            os.ftruncate(handle, size)
        self._open = (chunk, handle)
        return handle

    def write(self, start: int, rows: NDArray[Any]) -> None:
        """Write ``rows [n, *row]`` at row ``start``. Raises OSError when the disk does."""
        data = np.ascontiguousarray(rows).view(np.uint8).reshape(-1).data
        done = 0
        for chunk, first, last in _spans(start, start + len(rows), self.chunk_rows):
            size = (last - first) * self.row_bytes
            _write_all(self._file(chunk), data[done : done + size], first * self.row_bytes)
            done += size

    def sync(self) -> None:
        if self._open is not None:
            os.fsync(self._open[1])

    def close(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    def _map(self, chunk: int) -> NDArray[Any]:
        if chunk not in self._maps:
            path = self.chunk_path(chunk)
            size = self.chunk_rows * self.row_bytes
            try:
                with open(path, "rb") as file:
                    buffer = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
            except (FileNotFoundError, ValueError) as error:
                raise StoreError(f"{path} is missing or too short; `sotscope verify` tells what is lost.") from error
            self._maps[chunk] = np.frombuffer(buffer, self.dtype).reshape(self.chunk_rows, *self.row)
        return self._maps[chunk]

    def read(self, start: int, stop: int, inner: tuple[Any, ...] = ()) -> NDArray[Any]:
        """Rows ``[start, stop)`` as a new array; ``inner`` indexes the axes after the token axis."""
        parts = [
            self._map(chunk)[(slice(first, last), *inner)]
            for chunk, first, last in _spans(start, stop, self.chunk_rows)
        ]
        if not parts:
            return np.empty((0, *self.row), self.dtype)[(slice(None), *inner)]
        return np.concatenate(parts) if len(parts) > 1 else parts[0].copy()


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
