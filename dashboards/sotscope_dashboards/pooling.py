"""Many cells as few: pooled by the largest size, so that a single outlier stays visible."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

COLUMNS, ROWS = 512, 64


@dataclass(frozen=True)
class Grid:
    """``cells [row, column]`` of groups of ``height`` rows and ``width`` columns; NaN where nothing is finite."""

    cells: NDArray[np.float64]
    width: int
    height: int
    nonfinite: int
    """Numbers that were NaN or infinite."""

    @property
    def said(self) -> str:
        """What the reader must know; empty where a cell is one number."""
        parts = []
        if self.width > 1:
            parts.append(f"{self.width} tokens a cell (the farthest from 0 shows)")
        if self.height > 1:
            parts.append(f"{self.height} layers a cell")
        if self.nonfinite:
            parts.append(f"{self.nonfinite} numbers are NaN or infinite (blank)")
        return " · ".join(parts)


def pool(values: NDArray[np.floating]) -> Grid:
    """``values [column, row]`` (token, layer) as a grid of at most ROWS x COLUMNS cells."""
    finite = np.isfinite(values)
    clean = np.where(finite, values, np.nan).astype(np.float64)
    width, height = max(1, -(-values.shape[0] // COLUMNS)), max(1, -(-values.shape[1] // ROWS))
    cells = _farthest(_farthest(clean, width, 0), height, 1)
    return Grid(cells.T, width, height, int((~finite).sum()))


def _farthest(values: NDArray[np.float64], group: int, axis: int) -> NDArray[np.float64]:
    """Of every ``group`` numbers along ``axis`` the one with the largest size; NaN where all are."""
    if group == 1:
        return values
    values = np.moveaxis(values, axis, 0)
    missing = -len(values) % group
    padded = np.concatenate([values, np.full((missing, *values.shape[1:]), np.nan)])
    blocks = padded.reshape(-1, group, *values.shape[1:])
    size = np.where(np.isnan(blocks), -1.0, np.abs(blocks))
    found = np.take_along_axis(blocks, size.argmax(1)[:, None], 1)[:, 0]
    return np.moveaxis(found, 0, axis)
