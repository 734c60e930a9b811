"""Numbers and layers as findings say them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from sotscope.plain import ranges

NOTHING_LEFT = "No row is left once sinks and rows that are not finite are set aside."


def called(names: Iterable[Any]) -> str:
    """Layers in a sentence: "layer 3", "layers 3-7, 9", or the name of a site without layers."""
    found = list(names)
    if not all(isinstance(name, int | np.integer) for name in found):
        return ", ".join(map(str, found))
    return f"layer{'s' if len(found) > 1 else ''} {ranges(found)}"


def span(values: Iterable[float], form: str = ".3g") -> str:
    """The smallest to the largest number; one number where they read the same."""
    numbers = np.asarray(list(values), np.float64)
    low, high = (format(float(one), form) for one in (np.nanmin(numbers), np.nanmax(numbers)))
    return low if low == high else f"{low} to {high}"


def lowest(table: pd.DataFrame, column: str) -> Any:
    """The line with the smallest number of ``column``: a tuple with the columns' names."""
    return list(table.itertuples(index=False))[int(np.nanargmin(table[column].to_numpy(float)))]


def highest(table: pd.DataFrame, column: str) -> Any:
    """The line with the largest number of ``column``."""
    return list(table.itertuples(index=False))[int(np.nanargmax(table[column].to_numpy(float)))]
