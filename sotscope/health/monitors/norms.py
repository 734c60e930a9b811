"""`norms`: states explode or vanish."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sotscope.health.contracts import Monitor, Row, Signal, Subject
from sotscope.health.monitors.past import Normal, check_options, logs


class Norms(Monitor):
    """Alarms where the norms of many layers are far from normal in ``rows`` rows in a row.

    Far is more than ``far`` robust standard deviations of the log norm, and at least ``times`` as large or as small,
    compared with the baseline or with the run's own past. Many are a share of ``share`` of the layers, and at least 2
    where there are 2: a sink (Xiao et al. 2023, arXiv 2309.17453) is one row, a massive activation (Sun et al. 2024,
    arXiv 2402.17762) few layers or one row, and neither alarms.

    Evidence: ``layer`` (the first one), ``worst``, its ``factor`` to the normal norm, ``norm``, ``layers`` (how many),
    ``against``. Raises HealthError for ``far`` of 0 or less, ``times`` of 1 or less, a ``share`` outside 0 to 1, or
    ``rows`` below 1.
    """

    name: ClassVar[str] = "norms"
    advice: ClassVar[str] = (
        "--recover rescale puts norms back to the running median, refresh recomputes the cache; look at the first "
        "layer named, and switch interventions off one by one"
    )

    def __init__(
        self, subject: Subject, far: float = 10.0, times: float = 3.0, share: float = 0.2, rows: int = 4
    ) -> None:
        check_options(
            self.name, "far > 0, times > 1, share from 0 to 1, rows >= 1",
            fits=far > 0 and times > 1 and 0 <= share <= 1 and rows >= 1, got=(far, times, share, rows),
        )  # fmt: skip
        self._layers, self._rows = subject.layers, rows
        count = len(subject.layers)
        self._many = min(count, max(2, math.ceil(share * count)))
        known = subject.baseline
        self._normal = Normal(
            far, math.log(times),
            known.of("log_norm", subject.layers) if known else None,
            known.of("log_norm_spread", subject.layers) if known else None,
        )  # fmt: skip
        self._wrong = 0
        self._onset = -1

    def observe(self, row: Row) -> Signal | None:
        size = logs(row.norm)
        if not self._normal.ready:
            self._normal.learn(size)
            return None
        off = self._normal.off(size)
        beyond = np.abs(off) > 1
        if np.count_nonzero(beyond) < self._many or (why := self._why(row, off)) is None:
            if row.pos % 4 == 0:
                self._normal.learn(size)
            self._wrong = 0
            return None
        if row.given:
            return None
        self._onset = row.pos if self._wrong == 0 else self._onset
        self._wrong += 1
        return self._signal(row, *why) if self._wrong >= self._rows else None

    def _why(self, row: Row, off: NDArray[np.float64]) -> tuple[str, NDArray[np.bool_], NDArray[Any]] | None:
        """Against what, which layers, and by how many limits, if that many went one way."""
        for against, by in zip(("the baseline", "its own past"), off, strict=True):
            for layers in (by > 1, by < -1):
                if np.count_nonzero(layers & row.present) >= self._many:
                    return against, layers & row.present, by
        return None

    def _signal(self, row: Row, against: str, layers: NDArray[np.bool_], by: NDArray[np.float64]) -> Signal:
        worst = int(np.argmax(np.where(layers, np.abs(by), 0)))
        factor = self._normal.factor(against == "its own past", worst, float(row.norm[worst]))
        grown = by[worst] > 0
        first = self._layers[int(np.argmax(layers))]
        times = factor if grown else 1 / max(factor, 1e-30)
        return Signal(
            "critical" if times > 10 else "warning",
            f"states {'explode' if grown else 'vanish'}: {int(layers.sum())} of {len(self._layers)} layers, from layer "
            f"{first} on; in layer {self._layers[worst]} the norm is {times:.3g} times "
            f"{'larger' if grown else 'smaller'} than in {against}",
            self._onset,
            {
                "layer": first, "worst": self._layers[worst], "factor": factor, "norm": float(row.norm[worst]),
                "layers": int(layers.sum()), "against": against,
            },
        )  # fmt: skip
