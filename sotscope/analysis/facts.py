"""Facts of every row and layer that several analyzers need, and the rows that are no fair sample of the others.

A sink is a row whose states are many times the usual norm: the first token, which attention parks on (Xiao et al. 2023,
arXiv 2309.17453), and other carriers of massive activations (Sun et al. 2024, arXiv 2402.17762). One of them dominates
every mean, variance and component, so statistics leave them out unless they are asked for.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sotscope.analysis.contracts import Pool
from sotscope.analysis.view import Chunk, View
from sotscope.robust import MAD_TO_SIGMA

FAR = 12.0
"""Robust standard deviations above the median at which a norm is no chance."""
TIMES = 3.0
"""... and how many times the median it must be, so that very even norms make no sinks."""
SHARE = 0.25
"""... in at least this share of the layers."""
SHOWN = 8
"""Rows that a line names."""
OUTLIER = 20.0
"""A dimension whose median size is so many times that of the median dimension is an outlier dimension."""


@dataclass(frozen=True)
class RowFacts:
    """Per row and layer [token, layer] (one column for a site without layers), in float64.

    ``kurtosis`` is that of the numbers of a state (3 for normal ones), ``dim`` where its largest number sits,
    ``nonfinite`` how many of its numbers are NaN or infinite. Rows with any are NaN in the other facts.
    """

    norm: NDArray[np.float64]
    max_abs: NDArray[np.float64]
    kurtosis: NDArray[np.float64]
    dim: NDArray[np.int64]
    nonfinite: NDArray[np.int64]
    width: int

    @property
    def rms(self) -> NDArray[np.float64]:
        found: NDArray[np.float64] = self.norm / np.sqrt(self.width)
        return found

    @property
    def bad(self) -> NDArray[np.bool_]:
        """[token] True where any layer has a number that is not finite."""
        return np.asarray((self.nonfinite > 0).any(1))

    @property
    def sink(self) -> NDArray[np.bool_]:
        """[token] True for sinks."""
        return sinks(self.norm)

    @property
    def keep(self) -> NDArray[np.bool_]:
        """[token] True for rows that are a fair sample: finite, and no sinks."""
        return ~self.bad & ~self.sink


def percentile(values: NDArray[Any], q: float = 50) -> NDArray[np.float64]:
    """The q-th percentile over the first axis, NaN left out; NaN where nothing is left."""
    if not len(values):
        return np.full(values.shape[1:], np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        found: NDArray[np.float64] = np.nanpercentile(values, q, axis=0)
    return found


def sinks(norm: NDArray[np.float64]) -> NDArray[np.bool_]:
    """[token] True where the norms [token, layer] stand out in many layers: by median and MAD over the tokens."""
    middle = percentile(norm)
    spread = MAD_TO_SIGMA * percentile(np.abs(norm - middle))
    far = (norm > middle + FAR * spread) & (norm > TIMES * middle)  # False for NaN
    return np.asarray(far.mean(1) >= SHARE if norm.shape[1] else np.zeros(len(norm), bool))


def facts(view: View, site: str, pool: Pool) -> RowFacts:
    """The facts of a site, worked out once a view."""
    key = ("facts", site)
    if key not in view.memo:
        parts = list(pool.map(_facts, view.chunks(site), f"rows of {site}"))
        norm, largest, kurtosis, dim, nonfinite = (np.concatenate(column) for column in zip(*parts, strict=True))
        view.memo[key] = RowFacts(norm, largest, kurtosis, dim, nonfinite, view.width(site))
    found: RowFacts = view.memo[key]
    return found


def _facts(chunk: Chunk) -> tuple[NDArray[Any], ...]:
    states = chunk.read()
    spec = chunk.run.spec.site(chunk.site)
    flat = states.reshape(len(states), 1 if spec.layers is None else states.shape[1], -1)
    return row_facts(flat)


def row_facts(states: NDArray[np.float32]) -> tuple[NDArray[Any], ...]:
    """norm, max_abs, kurtosis, dim and nonfinite, each [token, layer], of ``states [token, layer, dim]``."""
    with np.errstate(all="ignore"):
        size = np.abs(states)
        largest = size.max(-1).astype(np.float64)
        # scaled by the largest number, so that no square overflows
        scaled = (states / np.where(largest > 0, largest, 1.0)[..., None]).astype(np.float32)
        square = np.einsum("tld,tld->tl", scaled, scaled, dtype=np.float64)
        centred = scaled - scaled.mean(-1, keepdims=True, dtype=np.float64).astype(np.float32)
        centred *= centred
        second = centred.mean(-1, dtype=np.float64)
        fourth = np.einsum("tld,tld->tl", centred, centred, dtype=np.float64) / states.shape[-1]
        kurtosis = np.where(second > 0, fourth / second**2, np.nan)
        norm = np.sqrt(square) * largest
    nonfinite = np.zeros(norm.shape, np.int64)
    bad = ~np.isfinite(largest)
    nonfinite[bad] = (~np.isfinite(states[bad])).sum(-1)
    for fact in (norm, largest, kurtosis):
        fact[bad] = np.nan
    size[bad] = 0
    return norm, largest, kurtosis, size.argmax(-1), nonfinite


def left_out(found: RowFacts, labels: list[str]) -> list[str]:
    """What a statistic that keeps only ``found.keep`` leaves out, one line a reason."""
    reasons = {"sink: norm far above the others'": found.sink & ~found.bad, "NaN or infinity": found.bad}
    return [named(labels, mask, why) for why, mask in reasons.items() if mask.any()]


def named(labels: list[str], mask: NDArray[np.bool_], why: str) -> str:
    """A line about the rows of ``mask [token]``, which begins with how many they are."""
    at = np.flatnonzero(mask)
    shown = ", ".join(f"{i} {labels[i]!r}" for i in at[:SHOWN])
    more = f" and {len(at) - SHOWN} more" if len(at) > SHOWN else ""
    return f"{len(at)} of {len(mask)} rows ({why}): token {shown}{more}"
