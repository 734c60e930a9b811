"""Centred kernel alignment of sets of states, and blocks of neighbouring layers that are alike.

Linear CKA: Kornblith et al. 2019 (arXiv 1905.00414). Debiased with the unbiased estimate of HSIC (Song et al. 2012, as
in Nguyen et al. 2021, arXiv 2010.15327): without it, any two sets of fewer rows than dimensions look alike.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from sotscope.analysis.contracts import Pool
from sotscope.analysis.moments import Layer

FEWEST = 4
"""Rows that the unbiased estimate needs."""
SAME = 1e-6
"""Dimensions that vary by less than this part of their size do not vary, as far as float32 can tell."""
BLOCK = 1 << 16
"""Numbers of a vector that are multiplied at a time, in float64."""


def vector(rows: NDArray[np.float64], debiased: bool = True) -> NDArray[np.float32]:
    """The centred Gram matrix of ``rows [token, dim]`` as a unit vector [pair]: dot products of two are their CKA.

    NaN where the rows do not vary, or are too few.
    """
    count = len(rows)
    pairs = count * (count - 1) // 2
    nothing = np.full(pairs if debiased else pairs + count, np.nan, np.float32)
    if count < (FEWEST if debiased else 2):
        return nothing
    centred = rows - rows.mean(0)
    if (np.abs(centred).max(0) <= SAME * np.abs(rows).max(0)).all():
        return nothing
    centred /= np.abs(centred).max()
    gram = centred @ centred.T
    if debiased:
        np.fill_diagonal(gram, 0)
        means = gram.sum(1) / (count - 2)
        gram += means.sum() / (count - 1) - means[:, None] - means
        flat = gram[np.triu(np.ones(gram.shape, bool), 1)]
    else:  # the rows are centred, so the matrix is; off the diagonal every number counts twice
        gram[np.diag_indices(count)] /= np.sqrt(2)
        flat = gram[np.triu(np.ones(gram.shape, bool))]
    length = float(np.linalg.norm(flat))
    return (flat / length).astype(np.float32) if length > 0 else nothing


def layer_vectors(layers: list[Layer], debiased: bool, pool: Pool) -> NDArray[np.float32]:
    """[layer, pair] the ``vector`` of each layer."""
    return np.stack(list(pool.map(partial(_vector, debiased=debiased), layers, "similarity of layers")))


def _vector(layer: Layer, debiased: bool) -> NDArray[np.float32]:
    return vector(layer.all(), debiased)


def cka(ours: NDArray[np.float32], theirs: NDArray[np.float32]) -> NDArray[np.float64]:
    """[layer, other layer] from the ``vector``s [layer, pair] of both; 0 for unrelated states, 1 for equal ones."""
    total = np.zeros((len(ours), len(theirs)))
    for begin in range(0, ours.shape[1], BLOCK):
        a = ours[:, begin : begin + BLOCK].astype(np.float64)
        b = a if theirs is ours else theirs[:, begin : begin + BLOCK].astype(np.float64)
        total += a @ b.T
    return total


def blocks(similar: NDArray[np.float64], least: float) -> list[tuple[int, int]]:
    """The fewest runs (first, last) of neighbours in which any two are at least so ``similar [layer, layer]``."""
    found: list[tuple[int, int]] = []
    first = 0
    for i in range(1, len(similar) + 1):
        # a run that is alike stays so when shortened: to go as far as one can gives the fewest
        if i == len(similar) or not (similar[i, first:i] >= least).all():
            found.append((first, i - 1))
            first = i
    return found
