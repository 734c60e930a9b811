"""The principal components of one layer, its intrinsic dimension, and what is lost when it is compressed.

The covariance is summed in float64 about the exact mean, piece by piece, so that memory does not grow with the rows
and the result does not depend on the pieces; its eigenvalues are those of ``sklearn.decomposition.PCA``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from sotscope.analysis.moments import Layer

LEVELS = 255
"""Steps of 8 bits."""
DISCARD = 0.1
"""TwoNN leaves out the largest ratios: Facco et al. 2017 leave out a tenth."""
FEWEST = 10
"""Different rows that TwoNN takes at least."""
EQUAL = 1e-6
"""Rows closer than this share of the usual distance are equal but for rounding."""
ROUNDING = 1e-12
"""Eigenvalues below this share of the largest are rounding."""


@dataclass(frozen=True)
class Spectrum:
    """``values [component]`` are variances along the components, largest first; at most min(rows, dim) of them.

    ``energy`` is the sum of squares of all states; ``noise`` that of the error of 8 bits a number.
    """

    rows: int
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    values: NDArray[np.float64]
    top: NDArray[np.float64]
    """[dim] the first component, a unit vector."""
    energy: float
    noise: float
    vectors: NDArray[np.float64] | None = None
    """[dim, component], only where they were asked for."""

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def half(self) -> int:
        """Half of the components, rounded up."""
        return -(-self.count // 2)

    @property
    def variance(self) -> float:
        """Summed over the dimensions, with rows - 1 below the line, as scikit-learn has it."""
        return float(self.values.sum())

    @property
    def shares(self) -> NDArray[np.float64]:
        """[component] of the variance; zeros where there is none."""
        return self.values / (self.variance or 1.0)

    def needed(self, share: float) -> int:
        """Components that hold at least ``share`` of the variance; 0 where there is none."""
        if not self.variance:
            return 0
        return 1 + int(np.searchsorted(np.cumsum(self.shares), share * (1 - 1e-12)))

    @property
    def participation(self) -> float:
        """(sum of variances)^2 / sum of squared variances: 1 for one direction, dim for equal ones; NaN for none."""
        return float(1 / np.square(self.shares).sum()) if self.variance else np.nan

    @property
    def top_dim(self) -> int:
        """The dimension the first component leans on most; -1 where there is no variance."""
        return int(np.abs(self.top).argmax()) if self.variance else -1

    @property
    def top_dim_share(self) -> float:
        return float(np.square(self.top).max()) if self.variance else np.nan

    def lost(self, kept: int) -> float:
        """L2 norm of what the components after the first ``kept`` hold, over that of the states about their mean."""
        return float(np.sqrt(self.values[kept:].sum() / self.variance)) if self.variance else 0.0

    def error(self, kept: int) -> float:
        """The same over the L2 norm of the states themselves."""
        return _root(self.values[kept:].sum() * (self.rows - 1), self.energy)

    @property
    def lost_8bit(self) -> float:
        return _root(self.noise, self.variance * (self.rows - 1))

    @property
    def error_8bit(self) -> float:
        return _root(self.noise, self.energy)


def _root(part: float, whole: float) -> float:
    return float(np.sqrt(part / whole)) if whole > 0 else 0.0


def spectrum(layer: Layer, vectors: bool = False) -> Spectrum:
    """The components of ``layer``; their ``vectors`` on request."""
    width, rows = layer.width, len(layer)
    mean, low, high = layer.mean(), np.full(width, np.inf), np.full(width, -np.inf)
    for piece in layer.pieces():
        low, high = np.minimum(low, piece.min(0)), np.maximum(high, piece.max(0))
    scatter, energy, noise = np.zeros((width, width)), 0.0, 0.0
    for piece in layer.pieces():
        energy += float(np.square(piece).sum())
        noise += float(np.square(eight_bit(piece, low, high) - piece).sum())
        piece -= mean
        scatter += piece.T @ piece
    found, axes = np.linalg.eigh(scatter / max(1, rows - 1))
    most = min(rows, width)
    values, axes = found[::-1][:most], axes[:, ::-1]
    values = np.where(values > ROUNDING * values[:1].max(initial=0), values, 0.0)
    return Spectrum(rows, mean, low, high, values, axes[:, 0], energy, noise, axes[:, :most] if vectors else None)


def leading_row(layer: Layer, found: Spectrum) -> tuple[int, float]:
    """The row that reaches furthest along the first component, and its share of that component's variance."""
    if not found.variance:
        return -1, np.nan
    along = np.concatenate([np.square((piece - found.mean) @ found.top) for piece in layer.pieces()])
    return int(layer.at[along.argmax()]), float(along.max() / along.sum())


def eight_bit(states: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.float64]:
    """``states [token, dim]`` as 8 bits a number give them back: 255 equal steps from ``low [dim]`` to ``high``."""
    step = (high - low) / LEVELS
    found: NDArray[np.float64] = np.rint((states - low) / np.where(step > 0, step, 1.0)) * step + low
    return found


def twonn(states: NDArray[np.float64]) -> tuple[float, int]:
    """The intrinsic dimension of ``states [token, dim]`` and how many rows it was estimated from; NaN for too few.

    The slope through the origin of -log(1 - F(mu)) against log(mu), mu being the ratio of the distances to the second
    and the first neighbour, F its empirical distribution (Facco et al. 2017). Equal rows count once.
    """
    states = np.unique(states, axis=0)
    if len(states) < FEWEST:
        return np.nan, len(states)
    states = states - states.mean(0)
    around = NearestNeighbors(n_neighbors=2, algorithm="brute").fit(states).kneighbors(return_distance=False)
    # from the states themselves: distances by way of products lose what close neighbours differ in
    first, second = np.sort([np.sqrt(np.square(states - states[near]).sum(1)) for near in around.T], axis=0)
    apart = first > EQUAL * np.sqrt(np.square(states).sum(1).mean())
    count = int(apart.sum())
    if count < FEWEST:
        return np.nan, count
    ratio = np.log(np.sort(second[apart] / first[apart]))[: int(count * (1 - DISCARD))]
    level = -np.log(1 - np.arange(len(ratio)) / count)
    size = float(ratio @ ratio)
    return (float(ratio @ level) / size if size > 0 else np.nan), count
