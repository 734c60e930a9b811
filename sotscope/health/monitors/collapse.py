"""`collapse`: the states of the last tokens have become the same, or few."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sotscope.health.contracts import Monitor, Row, Signal, Subject
from sotscope.health.monitors.past import check_options

EVERY = 8
"""Positions between two looks."""
OUTLIER = 10.0
"""A dimension whose size is so many times that of the median dimension is common to all rows, and left out."""
PAST = 8
"""Rows (of every 4th) before the window that make a mean."""
FAR = 3.0
"""A row whose norm is so many times the median of the window is a sink, and left out."""


class Collapse(Monitor):
    """Looks at the last ``window`` generated rows of the watched layers, at every 8th position.

    It alarms where in at least half of these layers one of three things holds:

    - frozen: the median cosine of two rows is over ``same``, outlier dimensions left out (a large constant dimension
      makes all rows look alike);
    - one way: the median cosine of two rows is over ``one_way`` after the mean of the rows before the window is taken
      off as well;
    - few: the effective rank of the centred rows is under ``rank``. It is the participation ratio of their spectrum,
      (sum of eigenvalues)^2 / sum of squares (Gao et al. 2017, bioRxiv 214262), read off the Gram matrix.

    Sinks are left out. Evidence: ``layer`` (the first), ``layers`` (how many), ``cosine``, ``centred_cosine``,
    ``rank`` (of that layer), ``sinks``, ``rows``. Raises HealthError for a ``window`` below 8, a ``rank`` below 1, or
    ``same`` or ``one_way`` outside 0 to 1.
    """

    name: ClassVar[str] = "collapse"
    needs: ClassVar[frozenset[str]] = frozenset({"states"})
    advice: ClassVar[str] = (
        "a loop looks like this too: see repetition; else --recover refresh, then rollback; look whether an "
        "intervention or a low precision makes the states alike"
    )

    def __init__(
        self, subject: Subject, window: int = 32, same: float = 0.97, one_way: float = 0.8, rank: float = 2.5
    ) -> None:
        check_options(
            self.name, "window >= 8, same and one_way between 0 and 1, rank >= 1",
            fits=window >= 8 and 0 < same < 1 and 0 < one_way < 1 and rank >= 1, got=(window, same, one_way, rank),
        )  # fmt: skip
        self._layers, self._window = subject.watched, window
        self._same, self._one_way, self._rank = same, one_way, rank
        self._ring: NDArray[np.float32] | None = None
        self._filled = 0
        self._past: NDArray[np.float64] | None = None
        self._past_rows = 0

    @classmethod
    def lacks(cls, subject: Subject) -> str:
        return "" if subject.watched else "no layer's states are watched"

    def observe(self, row: Row) -> Signal | None:
        states = row.states
        if states is None:
            return None
        if self._ring is None or self._past is None:
            self._ring = np.zeros((self._window, *states.shape), np.float32)
            self._past = np.zeros(states.shape)
        if row.given:
            self._leave(row, states)
            return None
        place = self._filled % self._window
        if self._filled >= self._window:
            self._leave(row, self._ring[place])
        self._ring[place] = states
        self._filled += 1
        if self._filled < self._window or row.pos % EVERY != EVERY - 1:
            return None
        return self._look(row, self._ring)

    def _leave(self, row: Row, states: NDArray[np.float32]) -> None:
        """Every 4th row becomes part of the past. Its direction counts, so that a sink counts as one row."""
        if row.pos % 4 or self._past is None:
            return
        size = np.sqrt(np.vecdot(states, states))[:, None]
        if np.isfinite(size).all():
            self._past += states / np.maximum(size, 1e-30)
            self._past_rows += 1

    def _look(self, row: Row, ring: NDArray[np.float32]) -> Signal | None:
        found = [self._judge(place, ring[:, place]) for place in range(len(self._layers))]
        wrong = [one for one in found if one is not None and one["what"]]
        if not wrong or 2 * len(wrong) < len(found):
            return None
        first = wrong[0]
        how = {
            "frozen": f"are the same (median cosine {first['cosine']:.4f})",
            "one way": f"all point one way (median cosine {first['centred_cosine']:.3f} around the mean of before)",
            "few": f"span {first['rank']:.2g} directions",
        }
        return Signal(
            "critical",
            f"the states of the last {self._window} tokens {how[first['what']]}, from layer {first['layer']} on",
            row.pos + 1 - self._window, {**first, "layers": len(wrong)},
        )  # fmt: skip

    def _judge(self, place: int, states: NDArray[np.float32]) -> dict[str, Any] | None:
        """The numbers of one layer's window ``states [row, dim]``; None where too few rows are left to judge."""
        square = np.vecdot(states, states)
        keep = np.isfinite(square) & (square > 0)
        if keep.any():
            keep &= square <= FAR**2 * np.median(square[keep])
        rows = int(np.count_nonzero(keep))
        if 2 * rows < len(states):
            return None
        unit = states[keep] / np.sqrt(square[keep])[:, None]
        size = np.einsum("td,td->d", unit, unit)
        common = size > OUTLIER**2 * np.median(size)
        unit[:, common] = 0.0
        gram = (unit @ unit.T).astype(np.float64)
        cosine = _median_cosine(gram)
        centred = np.nan
        if self._past is not None and self._past_rows >= PAST:
            mean = (self._past[place] / self._past_rows).astype(np.float32)
            mean[common] = 0.0
            along = (unit @ mean)[:, None]
            centred = _median_cosine(gram - along - along.T + float(mean @ mean))
        rank = _effective_rank(gram)
        what = (
            "frozen" if cosine > self._same
            else "one way" if centred > self._one_way
            else "few" if rank < self._rank
            else ""
        )  # fmt: skip
        return {
            "layer": self._layers[place], "what": what, "cosine": cosine, "centred_cosine": centred, "rank": rank,
            "sinks": len(states) - rows, "rows": rows,
        }  # fmt: skip


def _median_cosine(gram: NDArray[np.float64]) -> float:
    """Of all pairs of rows, from their products [row, row]: one odd row among many does not count."""
    size = np.sqrt(np.maximum(np.diag(gram), 1e-30))
    return float(np.median((gram / size / size[:, None])[np.tri(len(gram), k=-1, dtype=bool)]))


def _effective_rank(gram: NDArray[np.float64]) -> float:
    """Participation ratio of the spectrum of the centred rows, from the products [row, row]; 1 where all are equal."""
    mean = gram.mean(0)
    centred = gram - mean - mean[:, None] + mean.mean()
    squares = float(np.vdot(centred, centred))
    return float(np.trace(centred)) ** 2 / squares if squares > 0 else 1.0
