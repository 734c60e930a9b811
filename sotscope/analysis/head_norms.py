"""Norms of attention heads, and whether they keep to their own past or a baseline: by medians and MADs of their logs.

A window of tokens is held against all tokens before it. What is asked is whether the middle of the whole window is as
far away as single tokens hardly ever are; so no independence of neighbouring tokens, which they lack, is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sotscope.analysis.contracts import Pool
from sotscope.analysis.facts import RowFacts, facts, left_out
from sotscope.analysis.view import Chunk, View
from sotscope.errors import AnalysisError
from sotscope.robust import MAD_TO_SIGMA

PAST = 256
"""Tokens that stand for the past, evenly spread over all of it."""
LEAST = 0.02
"""Smallest deviation of a log norm (2 %): a head that hardly varies does not diverge by less."""
SMALL = 1e-3
"""Part of its layer's median norm that is added to every norm, so that the logarithm of a dead head is calm."""


@dataclass(frozen=True)
class HeadNorms:
    """L2 norms of the heads' outputs, ``norm [token, layer, head]``, in float64; not finite in rows that are not."""

    norm: NDArray[np.float64]
    layers: tuple[int, ...]
    keep: NDArray[np.bool_]
    """[token] True for rows that count."""
    left_out: list[str]
    source: str

    @property
    def kept(self) -> NDArray[np.float64]:
        """[kept token, layer, head]"""
        return self.norm[self.keep]

    def floor(self) -> NDArray[np.float64]:
        """[layer, 1] what is added before a logarithm; NaN without rows."""
        kept = self.kept
        middle = np.median(kept, axis=(0, 2)) if len(kept) else np.full(len(self.layers), np.nan)
        return np.maximum(SMALL * middle, np.finfo(np.float64).tiny)[:, None]


def head_norms(view: View, all_rows: bool, pool: Pool) -> HeadNorms:
    """From the scalar ``head_norm``, recorded with the site ``head_out``, or else from that site.

    Raises AnalysisError, with the flag that records them, where there is neither.
    """
    if "head_norm" in view.run.scalar_names:
        layers, source = view.layers, "head_norm"
        norm = view.scalar("head_norm").astype(np.float64)
        found = _facts(view, norm)
    else:
        view.need("head_out")
        layers, source = view.layers_of("head_out") or (), "head_out"
        norm = np.concatenate(list(pool.map(_norms, view.chunks("head_out"), "norms of heads")))
        found = facts(view, "head_out", pool)
    if not layers:
        raise AnalysisError(f"{view.run.path.name} has no heads of layers {view.layers}; select others.")
    lines = left_out(found, view.labels)
    if all_rows:
        lines = lines[-1:] if found.bad.any() else []
    return HeadNorms(norm, layers, ~found.bad if all_rows else found.keep, lines, source)


def _norms(chunk: Chunk) -> NDArray[np.float64]:
    states = chunk.read()
    found: NDArray[np.float64] = np.sqrt(np.einsum("tlhd,tlhd->tlh", states, states, dtype=np.float64))
    return found


def _facts(view: View, norm: NDArray[np.float64]) -> RowFacts:
    """Sinks by the norms of the residual stream (those of the heads' layers without them), without reading states."""
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.sqrt((norm**2).sum(-1))
        if "norm" in view.run.scalar_names:
            size = np.where(np.isfinite(size), view.scalar("norm"), np.nan)
    broken = ~np.isfinite(size)
    size[broken] = np.nan
    return RowFacts(size, size, size, np.zeros(size.shape, np.int64), broken.astype(np.int64), norm.shape[-1])


def robust_z(
    values: NDArray[np.float64], past: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """How far the median of ``values [token, ...]`` is from that of ``past``, in its robust standard deviations; that
    median, and that deviation (no smaller than LEAST).
    """
    middle = np.median(past, axis=0)
    deviation = np.maximum(MAD_TO_SIGMA * np.median(np.abs(past - middle), axis=0), LEAST)
    return (np.median(values, axis=0) - middle) / deviation, middle, deviation


@dataclass(frozen=True)
class Divergence:
    """Of each head, for the window that lies farthest from its past."""

    measure: NDArray[np.float64]
    """From 1 on the head diverges: the smaller of z and the change of the log norm, each in units of its limit."""
    z: NDArray[np.float64]
    times: NDArray[np.float64]
    """The window's norm over the past's."""
    onset: NDArray[np.int64]
    """Which of the kept tokens the first window that diverges begins to do so with; -1: none does."""


def divergence(logs: NDArray[np.float64], window: int, far: float, factor: float) -> Divergence:
    """From log norms ``[kept token, head]`` of at least two windows; ``far`` is the limit of z, ``factor`` of times."""
    heads = logs.shape[1]
    most, best, change, onset = np.full(heads, -1.0), np.zeros(heads), np.zeros(heads), np.full(heads, -1)
    last = len(logs) - window
    for begin in dict.fromkeys([*range(window, last + 1, window), last]):
        past = logs[np.linspace(0, begin - 1, min(begin, PAST)).round().astype(np.int64)]
        z, middle, deviation = robust_z(logs[begin : begin + window], past)
        measure = measured(z, z * deviation, far, factor)
        for head in np.flatnonzero((measure >= 1) & (onset < 0)):
            first = begin - window
            change_here = logs[first : begin + window, head] - middle[head]
            onset[head] = first + _onset(measured(change_here / deviation[head], change_here, far, factor))
        higher = measure > most
        most, best = np.where(higher, measure, most), np.where(higher, z, best)
        change = np.where(higher, z * deviation, change)
    return Divergence(most, best, np.exp(change), onset)


def measured(z: NDArray[np.float64], change: NDArray[np.float64], far: float, factor: float) -> NDArray[np.float64]:
    """The smaller of ``z`` and the ``change`` of the log norm, each in units of its limit."""
    found: NDArray[np.float64] = np.minimum(np.abs(z) / far, np.abs(change) / np.log(factor))
    return found


def _onset(measure: NDArray[np.float64]) -> int:
    """The first token that diverges, with more than half of the quarter of the tokens that begins with it."""
    ahead = max(1, len(measure) // 4)
    beyond = measure >= 1
    following = np.array([beyond[i : i + ahead].mean() for i in range(len(measure))])
    found = np.flatnonzero(beyond & (following > 0.5))
    return int(found[0]) if len(found) else len(measure) // 2
