"""What a forward of each width costs, for the gates that weigh it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from sotscope.events import Step

SMOOTH = 0.1
"""Weight of the newest observation in a running mean."""


class Clock:
    """Milliseconds of a forward by width, from a table measured beforehand, scaled by what the run itself shows.

    ``widths`` maps a width (tokens fed) to milliseconds; widths between two known ones are interpolated, beyond the
    last one the last counts on in proportion.
    """

    def __init__(self, widths: Mapping[int, float]) -> None:
        self._table = [0.0, *_filled(widths)]
        self.scale = 1.0
        self._steps = 0

    @property
    def widest(self) -> int:
        return len(self._table) - 1

    def forward_ms(self, width: int) -> float:
        last = self.widest
        return self.scale * (self._table[width] if width <= last else self._table[last] * width / last)

    def observe(self, step: Step) -> None:
        width = 1 + len(step.drafts)
        if step.reason in ("prefill", "last_row") or not step.forward_ns or width > self.widest:
            return
        self._steps += 1
        seen = step.forward_ns / 1e6 / self._table[width]
        self.scale += max(SMOOTH, 1 / self._steps) * (seen - self.scale)


def _filled(widths: Mapping[int, float]) -> list[float]:
    known = sorted(widths)
    if not known or known[0] != 1:
        raise ValueError("the table of widths must begin with 1.")
    out = [widths[1]]
    for low, high in pairwise(known):
        step = (widths[high] - widths[low]) / (high - low)
        out += [widths[low] + step * (width - low) for width in range(low + 1, high + 1)]
    return out


def best_window(survival: Sequence[float], clock: Clock, *, spent: float = 0.0, slot_ms: float = 0.0) -> int:
    """The window with the most tokens a millisecond.

    ``survival [slot]``: how likely all drafts up to it are right. ``spent`` ms have been paid already, ``slot_ms`` a
    drafted token are still to pay.
    """
    best, best_rate = 0, 1.0 / (clock.forward_ms(1) + spent)
    tokens = 1.0
    for k, alive in enumerate(survival, 1):
        tokens += alive
        rate = tokens / (clock.forward_ms(k + 1) + spent + slot_ms * k)
        if rate > best_rate:
            best, best_rate = k, rate
    return best
