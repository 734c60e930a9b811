"""`lag`: the states stay where they were although the input changed."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sotscope.health.contracts import Monitor, Row, Signal, Subject
from sotscope.health.monitors.past import WARM, check_options


class Lag(Monitor):
    """Alarms where, in the upper half of the layers, states change less than ``share`` of what is usual, in ``rows`` of
    rows that follow each other, although each was given another token than the row before.

    Change is 1 - cosine to the row before; usual is the baseline's median, or without one the mean of the run so far.
    A layer lags by itself, the row where at least half of them do. Evidence: ``layer`` (the first that lags),
    ``cosine`` and ``usual`` (means over those that lag), ``layers`` (how many), ``rows``. Raises HealthError for a
    ``share`` that is not between 0 and 1, or ``rows`` below 1.
    """

    name: ClassVar[str] = "lag"
    advice: ClassVar[str] = (
        "--recover refresh recomputes the cache from the tokens; look whether an intervention (freeze, interpolate, "
        "skip) holds the states"
    )

    def __init__(self, subject: Subject, share: float = 0.2, rows: int = 6) -> None:
        check_options(
            self.name, "share between 0 and 1, rows >= 1", fits=0 < share < 1 and rows >= 1, got=(share, rows)
        )
        self._half = len(subject.layers) // 2
        self._layers = subject.layers[self._half :]
        self._share, self._rows = share, rows
        known = subject.baseline.of("cosine", self._layers) if subject.baseline else np.full(len(self._layers), np.nan)
        self._known = 1 - known
        self._own = np.zeros(len(self._layers))
        self._changes = 0
        self._limit = share * self._known
        self._token = -1
        self._wrong = 0
        self._onset = -1

    def observe(self, row: Row) -> Signal | None:
        other, self._token = row.token != self._token, row.token
        if not other:
            return None  # the same input again: nothing need change
        change = 1 - row.cosine[self._half :]
        slow = change < self._limit
        if row.given or 2 * np.count_nonzero(slow) < len(slow):
            self._wrong = 0
            if self._changes < WARM or row.pos % 4 == 0:
                self._learn(change)
            return None
        self._onset = row.pos if self._wrong == 0 else self._onset
        self._wrong += 1
        if self._wrong < self._rows:
            return None
        cosine, usual = float(1 - change[slow].mean()), float(1 - self._limit[slow].mean() / self._share)
        layer = self._layers[int(np.argmax(slow))]
        return Signal(
            "warning",
            f"{self._wrong} new tokens hardly change the states of {int(slow.sum())} layers (from layer {layer} on): "
            f"cosine to the row before {cosine:.4f}, usually {usual:.2f}",
            self._onset,
            {"layer": layer, "cosine": cosine, "usual": usual, "layers": int(slow.sum()), "rows": self._wrong},
        )  # fmt: skip

    def _learn(self, change: NDArray[np.float32]) -> None:
        """The mean change of the run so far, where the baseline knows nothing."""
        missing = np.isnan(change)
        if missing.all() or not np.isnan(self._known).any():
            return
        self._changes += 1
        self._own += (np.where(missing, self._own, change) - self._own) / self._changes
        if self._changes >= WARM:
            self._limit = self._share * np.where(np.isnan(self._known), self._own, self._known)
