"""How far each row of one layer is from the row before it, and from itself in the layer below."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sotscope.analysis.moments import Layer

MEASURES = ("velocity", "acceleration", "step", "cosine", "cosine_centred", "layer_cosine", "layer_cosine_centred")
TINY = 1e-6
"""A state closer to the mean than this share of its size is the mean, and has no direction about it."""


@dataclass
class Task:
    """A layer over the rows that count in it; ``pair [row]``: whether a row follows on the one before it."""

    layer: Layer
    pair: NDArray[np.bool_]
    below: Layer | None = None
    """The layer below over the rows that count there."""
    under: Layer | None = None
    """... and over the rows of ``layer``."""


def measure(task: Task) -> NDArray[np.float64]:
    """[measure, row]: MEASURES, NaN where there is no such pair."""
    layer, pair, below = task.layer, task.pair, task.below
    mean, weight = _centre(layer)
    mean_below = below.mean() if below else mean
    out = np.full((len(MEASURES), len(layer)), np.nan)
    before, at = np.full((2, layer.width), np.nan), 0
    for piece, under in zip(layer.pieces(), task.under.pieces() if task.under else repeat(None), strict=False):
        states = np.concatenate([before, piece])
        step = np.diff(states, axis=0)
        here = slice(at, at + len(piece))
        out[0, here] = _norm(step[1:])
        out[1, here] = _norm(np.diff(step, axis=0))
        out[2, here] = np.sqrt((step[1:] ** 2) @ weight)
        out[3, here], out[4, here] = _cosines(states[1:-1], piece, mean, mean)
        if under is not None:
            out[5, here], out[6, here] = _cosines(under, piece, mean_below, mean)
        before, at = states[-2:], at + len(piece)
    out[:5, ~pair] = np.nan
    out[1, 1:][~pair[:-1]] = np.nan
    if below:
        out[5:, ~np.isin(layer.at, below.at)] = np.nan
    return out


def _centre(layer: Layer) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[dim] the mean, and weights with which all dimensions count alike in a step, however large they are."""
    total, square = np.zeros(layer.width), np.zeros(layer.width)
    for piece in layer.pieces():
        total += piece.sum(0)
        square += np.einsum("td,td->d", piece, piece)
    count = max(1, len(layer))
    used = square > 0
    return total / count, np.where(used, count / np.where(used, square, 1.0), 0.0) / max(1, int(used.sum()))


def _norm(states: NDArray[np.float64]) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.sqrt(np.einsum("td,td->t", states, states))
    return found


def _cosines(
    a: NDArray[np.float64], b: NDArray[np.float64], mean_a: NDArray[np.float64], mean_b: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[token] raw and about the means; NaN where a state has no direction."""
    size_a, size_b = _norm(a), _norm(b)
    raw = _cosine(a, b, size_a, size_b, 0 * size_a, 0 * size_b)
    a, b = a - mean_a, b - mean_b
    return raw, _cosine(a, b, _norm(a), _norm(b), TINY * size_a, TINY * size_b)


def _cosine(a: Any, b: Any, size_a: Any, size_b: Any, least_a: Any, least_b: Any) -> NDArray[np.float64]:
    sure = (size_a > least_a) & (size_b > least_b)
    found = np.einsum("td,td->t", a, b) / np.where(sure, size_a * size_b, np.nan)
    clipped: NDArray[np.float64] = np.clip(found, -1, 1)
    return clipped
