"""`entropy`: the model is in no doubt for a long while, or in doubt about everything."""

from __future__ import annotations

import math
from collections import deque
from statistics import median
from typing import ClassVar

from sotscope.health.baseline import QUANTILES
from sotscope.health.contracts import Monitor, Row, Signal, Subject
from sotscope.health.monitors.past import check_options


class Entropy(Monitor):
    """Alarms where the entropy of ``floor_rows`` rows in a row stays below ``floor`` nats, and where the median of the
    last ``ceiling_rows`` is above what only one healthy row in a thousand has.

    Without a baseline that is ``ceiling`` nats. Text that is copied is sure for long, too: the floor is a warning.
    Evidence: ``entropy`` (the largest of the window, or its median), ``limit``, ``rows``. Raises HealthError for limits
    of 0 or less, or ``floor_rows`` or ``ceiling_rows`` below 1.
    """

    name: ClassVar[str] = "entropy"
    advice: ClassVar[str] = (
        "a floor: look whether the text repeats or copies, and try a temperature; a ceiling: compare with --mode ar, "
        "and look at what else changed there (interventions, a strange prompt, a temperature that is too high)"
    )

    def __init__(
        self, subject: Subject, floor: float = 0.08, floor_rows: int = 32, ceiling: float = 6.0, ceiling_rows: int = 12
    ) -> None:
        check_options(
            self.name, "floor > 0, floor_rows >= 1, ceiling > 0, ceiling_rows >= 1",
            fits=floor > 0 and floor_rows >= 1 and ceiling > 0 and ceiling_rows >= 1,
            got=(floor, floor_rows, ceiling, ceiling_rows),
        )  # fmt: skip
        known = subject.baseline.entropy[QUANTILES.index(0.999)] if subject.baseline else math.nan
        self._ceiling = ceiling if math.isnan(known) else known
        self._floor, self._floor_rows = floor, floor_rows
        self._sure = 0
        self._highest = 0.0
        self._recent: deque[float] = deque(maxlen=ceiling_rows)

    def observe(self, row: Row) -> Signal | None:
        entropy = row.entropy
        if row.given or math.isnan(entropy):
            self._sure = 0
            self._recent.clear()
            return None
        self._sure, self._highest = (self._sure + 1, max(self._highest, entropy)) if entropy < self._floor else (0, 0.0)
        self._recent.append(entropy)
        if self._sure >= self._floor_rows:
            return Signal(
                "warning", f"no doubt in the last {self._sure} tokens: the entropy stays below {self._floor:g} nats",
                row.pos + 1 - self._sure, {"entropy": self._highest, "limit": self._floor, "rows": self._sure},
            )  # fmt: skip
        rows = len(self._recent)
        if entropy <= self._ceiling or rows < (self._recent.maxlen or 0):
            return None
        if (middle := median(self._recent)) > self._ceiling:
            return Signal(
                "warning", f"doubt about everything: the median entropy of the last {rows} tokens is {middle:.3g} nats",
                row.pos + 1 - rows, {"entropy": middle, "limit": self._ceiling, "rows": rows},
            )  # fmt: skip
        return None
