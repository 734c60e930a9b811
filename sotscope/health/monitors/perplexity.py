"""`perplexity`: the chosen tokens have become much less likely than before."""

from __future__ import annotations

import math
from collections import deque
from typing import ClassVar

from sotscope.health.baseline import QUANTILES
from sotscope.health.contracts import Monitor, Row, Signal, Subject
from sotscope.health.monitors.past import WARM, check_options


class Perplexity(Monitor):
    """Alarms where the mean surprise (negative log-probability, nats) of the last ``window`` chosen tokens is over
    ``factor`` times that of the run before them, over ``least`` nats, and over what one healthy token in a thousand of
    the baseline has. One token counts for twice that limit at most, so that a single odd word is no spike.

    Evidence: ``perplexity`` (exp of the mean), ``before``, ``surprise``,
    ``limit``. Raises HealthError for a ``window`` below 1, a ``factor`` of 1 or less, or ``least`` of 0 or less.
    """

    name: ClassVar[str] = "perplexity"
    advice: ClassVar[str] = (
        "look at the words there with sotscope show; lower the temperature, use --policy exact, or go back to before "
        "them (--recover rollback)"
    )

    def __init__(self, subject: Subject, window: int = 8, factor: float = 2.0, least: float = 3.0) -> None:
        check_options(
            self.name, "window >= 1, factor > 1, least > 0",
            fits=window >= 1 and factor > 1 and least > 0, got=(window, factor, least),
        )  # fmt: skip
        known = subject.baseline.surprise[QUANTILES.index(0.999)] if subject.baseline else least
        self._least = max(least, known) if known == known else least
        self._window, self._factor = window, factor
        self._recent: deque[tuple[int, float]] = deque()
        self._sum = 0.0
        self._past = 0.0
        self._count = 0

    def observe(self, row: Row) -> Signal | None:
        surprise = -row.logprob
        if not math.isfinite(surprise):
            return None
        before = self._past / max(1, self._count)
        limit = max(self._least, self._factor * before)
        surprise = min(surprise, 2 * limit)
        self._recent.append((row.pos + 1, surprise))
        self._sum += surprise
        if len(self._recent) > self._window:
            _, old = self._recent.popleft()
            self._sum -= old
            self._past += old
            self._count += 1
        if row.given or self._count < WARM:
            return None
        now = self._sum / self._window
        if now <= limit:
            return None
        first = next(place for place, value in self._recent if value > before)
        return Signal(
            "warning",
            f"the last {self._window} tokens are a surprise to the model itself: perplexity "
            f"{math.exp(now):.3g}, before {math.exp(before):.3g}",
            first, {"perplexity": math.exp(now), "before": math.exp(before), "surprise": now, "limit": limit},
        )  # fmt: skip
