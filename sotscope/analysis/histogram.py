"""How evenly the numbers of a dimension lie: the entropy of its histogram. Imports no scipy: the live page needs it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RANGE = (0.5, 99.5)
"""Percentiles between which the bins of a histogram lie."""


def histogram_entropy(states: NDArray[np.float64], bins: int) -> NDArray[np.float64]:
    """[dim] entropy in nats of a histogram of each column of ``states [token, dim]``, ``bins`` wide steps between the
    0.5th and the 99.5th percentile; numbers beyond count in the outermost. 0 for constant columns.
    """
    rows, width = states.shape
    if not rows:
        return np.full(width, np.nan)
    low, high = np.percentile(states, RANGE, axis=0)
    step = np.where(high > low, high - low, 1.0) / bins
    place = np.clip(np.floor((states - low) / step), 0, bins - 1).astype(np.int64) + bins * np.arange(width)
    shares = np.bincount(place.ravel(), minlength=bins * width).reshape(width, bins) / rows
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    found: NDArray[np.float64] = -(shares * logs).sum(1)
    return found + 0.0  # no negative zero
