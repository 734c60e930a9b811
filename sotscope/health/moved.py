"""Which layer and which head moved first around the place where something began to go wrong."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

SPAN = 8
"""Rows whose mean is looked at."""
BEFORE = 16
"""Rows before the onset at which a move may have begun."""
PAST = 32
"""Rows of the past without which nobody knows what is usual."""
LAYER_FAR, HEAD_FAR = 1.75, 4.0
"""Mean distance, in the reach of the past, that makes a move. Heads are many and follow the text: with these limits
1 in 100 places of healthy SmolLM2 texts has a layer that moves, and 7 in 100 a head."""
_EDGE = 0.005
_REACH = 2.05
"""The outermost hundredth of the past lies so many units from its median."""


def first_moved(
    numbers: Mapping[str, NDArray[Any]], layers: Sequence[int], onset: int, last: int, far: float = LAYER_FAR
) -> dict[str, Any] | None:
    """The first thing that was far from its past for ``SPAN`` rows, between ``BEFORE`` rows before row ``onset`` and
    row ``last``; None where nothing was, or where there is too little past.

    ``numbers`` are [row, layer] or [row, layer, head] by name. Gives ``layer`` (and ``head``), ``what`` (the name),
    ``row`` where the first such span begins, ``by`` (the mean distance). Of several in one row the farthest.
    """
    start = max(onset - BEFORE, PAST)
    if start + SPAN > last + 1:
        return None
    found = [
        _first(name, values.astype(np.float64), layers, (start, last + 1), far) for name, values in numbers.items()
    ]
    moves = [move for move in found if move is not None]
    return min(moves, key=lambda move: (move["row"], -abs(move["by"]))) if moves else None


def _first(
    name: str, values: NDArray[np.float64], layers: Sequence[int], where: tuple[int, int], limit: float
) -> dict[str, Any] | None:
    flat = values.reshape(len(values), -1)
    start, stop = where
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # a layer that was always skipped
        low, middle, high = np.nanquantile(flat[1:start], (_EDGE, 0.5, 1 - _EDGE), axis=0)
        spread = np.maximum(np.maximum(high - middle, middle - low) / _REACH, 0.02)
        away = np.clip((flat[start:stop] - middle) / spread, -6, 6)  # one row must not make a span
    spans = np.lib.stride_tricks.sliding_window_view(away, SPAN, axis=0).mean(-1)
    far = np.abs(spans) > limit
    if not far.any():
        return None
    row = int(np.argmax(far.any(1)))
    place = int(np.argmax(np.where(far[row], np.abs(spans[row]), 0)))
    layer, *head = np.unravel_index(place, values.shape[1:])
    heads = {"head": int(head[0])} if head else {}
    return {"what": name, "layer": layers[int(layer)], **heads, "row": start + row, "by": float(spans[row, place])}
