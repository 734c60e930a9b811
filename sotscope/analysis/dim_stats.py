"""What each dimension of one layer does over the rows that count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from sotscope.analysis.histogram import histogram_entropy
from sotscope.analysis.moments import Layer


@dataclass(frozen=True)
class DimStats:
    """[dim] each, NaN without rows; ``stability`` is NaN where a dimension is constant or no token follows another."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("mean", "variance", "entropy", "stability", "median_size")

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    entropy: NDArray[np.float64]
    stability: NDArray[np.float64]
    median_size: NDArray[np.float64]
    rank_agreement: float
    """Spearman correlation of the variances in the first and the second half of the rows."""
    rank_reliability: float
    """The same of every other row and the rest: how far ranks agree where only chance parts them."""
    rows: int
    sampled: int


def dim_stats(task: tuple[Layer, NDArray[np.bool_], NDArray[np.bool_]], bins: int) -> DimStats:
    """Statistics of a layer; with it come ``pair [row]``, whether a row follows on the one before it, and
    ``sample [row]``, whether it goes into medians and histograms.
    """
    layer, pair, sample = task
    width, rows = layer.width, len(layer)
    mean = layer.mean()
    sums, counts = np.zeros((2, 2, 2, width)), np.zeros((2, 2))
    together, apart = np.zeros(width), np.zeros(width)
    picked, before, at = [np.empty((0, width))], np.zeros((1, width)), 0
    for piece in layer.pieces():
        here = slice(at, at + len(piece))
        picked.append(piece[sample[here]])
        piece -= mean
        late, odd = np.arange(at, at + len(piece)) >= rows // 2, np.arange(at, at + len(piece)) % 2
        for part in np.ndindex(2, 2):
            rows_of = piece[(late == part[0]) & (odd == part[1])]
            sums[part] += rows_of.sum(0), np.square(rows_of).sum(0)
            counts[part] += len(rows_of)
        earlier, follows = np.concatenate([before, piece[:-1]])[pair[here]], piece[pair[here]]
        together += (earlier * follows).sum(0)
        apart += (np.square(earlier) + np.square(follows)).sum(0)
        before, at = piece[-1:], at + len(piece)
    states = np.concatenate(picked)
    return DimStats(
        mean=mean,
        variance=sums[:, :, 1].sum((0, 1)) / rows if rows else mean,
        entropy=histogram_entropy(states, bins),
        # 1 - sum (x[t] - x[t-1])^2 / sum (x[t]^2 + x[t-1]^2): von Neumann's ratio, between -1 and 1
        stability=np.divide(2 * together, apart, out=np.full(width, np.nan), where=apart > 0),
        median_size=np.median(np.abs(states), 0) if rows else mean,
        rank_agreement=_agreement(sums.sum(1), counts.sum(1)),
        rank_reliability=_agreement(sums.sum(0), counts.sum(0)),
        rows=rows,
        sampled=len(states),
    )


def _agreement(halves: NDArray[np.float64], counts: NDArray[np.float64]) -> float:
    """Spearman correlation of two variances [dim], from ``halves [2, (sum, sum of squares), dim]``."""
    if counts.min() < 2:
        return np.nan
    variance = halves[:, 1] / counts[:, None] - np.square(halves[:, 0] / counts[:, None])
    if min(np.ptp(variance[0]), np.ptp(variance[1])) == 0:
        return np.nan
    return float(spearmanr(*variance).statistic)
