"""Makes a baseline of the rows of healthy texts. Knows no model and no run: it takes rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from sotscope.errors import HealthError
from sotscope.health.baseline import QUANTILES, Baseline
from sotscope.health.contracts import Row, Subject
from sotscope.health.monitors.past import logs
from sotscope.health.monitors.repetition import Repetition
from sotscope.robust import MAD_TO_SIGMA

LEAST = 256
"""Healthy rows below which medians and quantiles say nothing."""
DIGITS = 4
_TAIL = 2.326
"""Standard deviations at which one number in a hundred lies beyond, for normal numbers."""


class Collector:
    """Gathers generated rows, text by text; texts that go round in a cycle are left out and counted.

    Of a row only logarithms of norms, cosines and two numbers are kept: a few kilobytes. Medians and quantiles are
    exact, and a sink or a row that is not finite moves none of them.
    """

    def __init__(self, layers: Sequence[int]) -> None:
        self.layers = tuple(layers)
        self.rows = self.prompts = self.left_out = 0
        self._norm: list[NDArray[np.float32]] = []
        self._cosine: list[NDArray[np.float32]] = []
        self._heads: list[NDArray[np.float32]] = []
        self._doubt: list[tuple[float, float]] = []

    def add(self, rows: Iterable[Row]) -> bool:
        """The rows of one text, in order. False if it was left out: it loops, or nothing of it was generated."""
        loop = Repetition(Subject(self.layers))
        kept: list[Row] = []
        for row in rows:
            if loop.observe(row) is not None:
                self.left_out += 1
                return False
            if not row.given and not row.nonfinite[row.present].any():
                kept.append(row)
        if not kept:
            self.left_out += 1
            return False
        self.prompts += 1
        self.rows += len(kept)
        for row in kept:
            self._norm.append(np.where(row.present, logs(row.norm), np.nan).astype(np.float32))
            self._cosine.append(np.where(row.present, row.cosine, np.nan).astype(np.float32))
            self._doubt.append((row.entropy, -row.logprob))
            if row.head_norm is not None:
                self._heads.append(logs(row.head_norm).astype(np.float32))
        return True

    def baseline(self, model: str, fingerprint: str, also: Sequence[str] = ()) -> Baseline:
        """What was normal in all of them. Raises HealthError in one line for too few rows."""
        if self.rows < LEAST:
            raise HealthError(
                f"{self.rows} healthy rows of {self.prompts} texts are too few for a baseline ({LEAST}); give more "
                "prompts, or more tokens each (--max-new-tokens)."
            )
        norm, norm_spread = _middle(self._norm)
        cosine, cosine_spread = _middle(self._cosine)
        seen = np.isfinite(norm)  # not layers that were always skipped
        heads = heads_spread = np.zeros((len(seen), 0))
        if len(self._heads) == self.rows:
            heads, heads_spread = _middle(self._heads, tails=True)
        entropy, surprise = np.array(self._doubt, np.float64).T
        return Baseline(
            model=model, fingerprint=fingerprint, also=list(also), rows=self.rows, prompts=self.prompts,
            layers=[layer for layer, one in zip(self.layers, seen, strict=True) if one],
            log_norm=_plain(norm[seen]), log_norm_spread=_plain(norm_spread[seen]),
            cosine=_plain(cosine[seen]), cosine_spread=_plain(cosine_spread[seen]),
            head_log_norm=_plain(heads[seen]) if heads.size else [],
            head_log_norm_spread=_plain(heads_spread[seen]) if heads.size else [],
            entropy=_quantiles(entropy), surprise=_quantiles(surprise),
        )  # fmt: skip


def _middle(rows: list[NDArray[np.float32]], *, tails: bool = False) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Median and spread over the rows [row, ...]; NaN where there is nothing. ``tails``: the spread by how far the
    outermost hundredths lie."""
    numbers = np.stack(rows).astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a layer that was always skipped
        middle = np.nanmedian(numbers, 0)
        if tails:
            low, high = np.nanquantile(numbers, (0.01, 0.99), axis=0)
            return middle, np.maximum(high - middle, middle - low) / _TAIL
        return middle, MAD_TO_SIGMA * np.nanmedian(np.abs(numbers - middle), 0)


def _quantiles(numbers: NDArray[np.float64]) -> list[float]:
    known = numbers[np.isfinite(numbers)]
    if not len(known):
        raise HealthError("these rows have no entropy or log-probability; a baseline needs rows that were decoded.")
    return _plain(np.quantile(known, QUANTILES))


def _plain(numbers: NDArray[np.float64]) -> list:  # type: ignore[type-arg]
    found: list = np.round(numbers, DIGITS).tolist()  # type: ignore[type-arg]
    return found
