"""Journal records as pandas frames, and which rows a caller's ``tokens=`` means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sotscope.errors import StoreError
from sotscope.store import layout


def frame(records: NDArray[Any]) -> pd.DataFrame:
    """One column a field of the records; their tag, and fields that are vectors, are left out."""
    names = [name for name in (records.dtype.names or ())[1:] if records.dtype[name].subdtype is None]
    return pd.DataFrame({name: records[name] for name in names})


def words(table: pd.DataFrame, **columns: str) -> pd.DataFrame:
    """The frame with the codes of these columns (column to kind of code) turned into words."""
    for column, kind in columns.items():
        table[column] = np.array(layout.CODES[kind], object).take(table[column].to_numpy())
    return table


def spans(tokens: slice | int | None, rows: int) -> tuple[int, int, int]:
    """Start, stop and step of ``tokens`` in ``rows`` rows. Raises StoreError for a row that is not there."""
    if isinstance(tokens, int | np.integer):
        if not -rows <= tokens < rows:
            raise StoreError(f"row {tokens} is out of range; there are {rows} rows.")
        start = int(tokens) % rows
        return start, start + 1, 1
    start, stop, stride = (tokens or slice(None)).indices(rows)
    if stride < 1:
        raise StoreError("tokens= takes slices with a positive step.")
    return start, max(start, stop), stride
