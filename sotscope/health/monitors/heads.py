"""`heads`: an attention head writes far more, or far less, than it used to."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sotscope.health.contracts import Monitor, Row, Signal, Subject
from sotscope.health.monitors.past import Normal, check_options, logs

EVERY = 4
"""Positions between two looks."""
MASSIVE = 3.0
"""A row whose norm is so many times the run's own in a quarter of the layers is a sink, and no sample of its heads."""


class Heads(Monitor):
    """Alarms where the output norm of the same head is far from normal at ``looks`` looks in a row, one every ``EVERY``
    positions.

    Far is more than ``far`` spreads of the log norm, and at least ``times`` as large or as small, compared with the
    baseline where it knows heads. Else it is compared with the run's own past, and ``times`` twice over: a head that
    copies is quiet until there is something to copy. Rows with massive norms are left out.

    Evidence: ``layer`` and ``head`` (the farthest), ``factor`` to the normal norm, ``heads`` (how many), ``against``.
    Raises HealthError for ``far`` of 0 or less, ``times`` of 1 or less, or ``looks`` below 1.
    """

    name: ClassVar[str] = "heads"
    needs: ClassVar[frozenset[str]] = frozenset({"head_norm"})
    advice: ClassVar[str] = (
        "sotscope analyze RUN heads shows what this head does; does it fade or grow where the text turned? then the "
        "cache may hold something stale: --recover refresh"
    )

    def __init__(self, subject: Subject, far: float = 5.0, times: float = 5.0, looks: int = 4) -> None:
        check_options(
            self.name, "far > 0, times > 1, looks >= 1",
            fits=far > 0 and times > 1 and looks >= 1, got=(far, times, looks),
        )  # fmt: skip
        self._layers, self._looks = subject.layers, looks
        known = subject.baseline
        self._own = known is None or not known.head_log_norm
        if known is None or self._own:
            self._normal = Normal(far, 2 * math.log(times))
        else:
            self._normal = Normal(
                far, math.log(times),
                _of_heads(known.layers, known.head_log_norm, subject.layers),
                _of_heads(known.layers, known.head_log_norm_spread, subject.layers),
            )  # fmt: skip
        self._sizes = Normal(MASSIVE, math.log(MASSIVE))
        self._wrong: NDArray[np.int64] | None = None

    def observe(self, row: Row) -> Signal | None:
        if row.pos % EVERY or row.head_norm is None or self._massive(row):
            return None
        norm = logs(row.head_norm)
        signal = None
        if self._normal.ready and not row.given:
            by = self._normal.off(norm)[int(self._own)]
            beyond = np.abs(by) > 1
            if beyond.any():
                signal = self._count(row, row.head_norm, beyond, by)
            else:
                self._wrong = None
        if self._own and signal is None:
            self._normal.learn(norm)
        return signal

    def _massive(self, row: Row) -> bool:
        size = logs(row.norm)
        if self._sizes.ready and np.count_nonzero(self._sizes.off(size)[1] > 1) >= max(1, 0.25 * len(size)):
            return True
        self._sizes.learn(size)
        return False

    def _count(
        self, row: Row, norm: NDArray[np.float32], beyond: NDArray[np.bool_], by: NDArray[np.float64]
    ) -> Signal | None:
        before = np.zeros(beyond.shape, np.int64) if self._wrong is None else self._wrong
        self._wrong = np.where(beyond, before + 1, 0)
        lasting = self._wrong >= self._looks
        if not lasting.any():
            return None
        place = int(np.argmax(np.where(lasting, np.abs(by), 0)))
        layer, head = np.unravel_index(place, beyond.shape)
        factor = self._normal.factor(self._own, place, float(norm.flat[place]))
        more = by.flat[place] > 0
        return Signal(
            "warning",
            f"head {head} of layer {self._layers[layer]} writes {factor if more else 1 / max(factor, 1e-30):.3g} times "
            f"{'more' if more else 'less'} than {'before' if self._own else 'in the baseline'}",
            row.pos - EVERY * (int(self._wrong.flat[place]) - 1),
            {
                "layer": self._layers[layer], "head": int(head), "factor": factor, "heads": int(lasting.sum()),
                "against": "its own past" if self._own else "the baseline",
            },
        )  # fmt: skip


def _of_heads(known: list[int], numbers: list[list[float]], layers: tuple[int, ...]) -> NDArray[np.float64]:
    """[layer, head] of these layers; NaN for those that are not known."""
    rows = dict(zip(known, numbers, strict=True))
    return np.array([rows.get(layer, [np.nan] * len(numbers[0])) for layer in layers], np.float64)
