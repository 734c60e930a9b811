"""`guard`: drafting stops where it does not pay, by the clock, and is tried again later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sotscope.decode.contracts import UNLIMITED, Context, Gate
from sotscope.decode.gates.clock import Clock
from sotscope.events import Step

TRIAL = 24
"""Drafted steps before a verdict: what a step brings varies from 1 to 16 tokens, so fewer say little."""
REST = 24
"""Tokens without drafts after the first bad verdict; each further one doubles it, up to ``LONGEST``."""
LONGEST = 192
SMOOTH = 0.05
MARGIN = 1.03
"""How much dearer than a plain forward a token may be: a verdict on noise costs more than drafts that nearly pay."""


class Guard(Gate):
    """Compares milliseconds a token of steps with drafts with those of a plain forward (``widths``, as for `cost`)."""

    name: ClassVar[str] = "guard"

    def __init__(self, widths: Mapping[int, float]) -> None:
        self._clock = Clock(widths)
        self._drafted = 0
        self._ms = 0.0
        self._tokens = 0.0
        self._rest = REST
        self._resume_at = 0
        self._context: Context | None = None

    def window(self, context: Context) -> int:
        if context is not self._context:  # another text: its tokens are counted from 0
            self._context, self._resume_at = context, 0
        return 0 if context.new_tokens < self._resume_at else UNLIMITED

    def observe(self, context: Context, step: Step) -> None:
        self._clock.observe(step)
        if step.window < 1 or step.reason not in ("drafted", "plain"):
            return  # a step that was not free to draft says nothing
        ms = (step.draft_ns + step.forward_ns + step.accept_ns) / 1e6
        self._drafted += 1
        weight = max(SMOOTH, 1 / self._drafted)
        self._ms += weight * (ms - self._ms)
        self._tokens += weight * (step.rows - self._tokens)
        if self._drafted < TRIAL:
            return
        if self._ms / self._tokens > MARGIN * self._clock.forward_ms(1):
            self._resume_at = context.new_tokens + self._rest
            self._rest = min(LONGEST, 2 * self._rest)
            self._drafted = 0
            self._ms = self._tokens = 0.0
        else:
            self._rest = REST
