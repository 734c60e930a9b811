"""`perplexity`: plain steps for a while where the model itself finds the text surprising."""

from __future__ import annotations

import math
from typing import ClassVar

from sotscope.decode.contracts import Context
from sotscope.decode.gates.rest import Resting
from sotscope.errors import DecodeError
from sotscope.events import Step

RECENT = 4
"""Tokens that make a spike."""


class PerplexitySpike(Resting):
    """When the perplexity of the last ``RECENT`` tokens is over ``factor`` times that of the last ``window``, the next
    ``rest`` tokens are decoded by plain steps.

    Perplexity is exp of the mean negative log-probability under the model. Raises DecodeError for a ``window`` that
    is not longer than ``RECENT``, a ``factor`` of 1 or less, or a ``rest`` below 1.
    """

    name: ClassVar[str] = "perplexity"
    needs_logprobs: ClassVar[bool] = True

    def __init__(self, window: int = 16, factor: float = 2.0, rest: int = 8) -> None:
        super().__init__()
        if not (window > RECENT and 1 < factor < math.inf and rest >= 1):
            raise DecodeError(
                f"gate perplexity needs window > {RECENT}, factor > 1, rest >= 1; got {window}, {factor}, {rest}."
            )
        self._window, self._factor, self._rest = window, factor, rest

    def observe(self, context: Context, step: Step) -> None:
        if context.new_tokens >= self._resume_at and self._spike(context.logprobs[-self._window :]):
            self._resume_at = context.new_tokens + self._rest

    def _spike(self, logprobs: list[float]) -> bool:
        if len(logprobs) < self._window:
            return False
        usual, now = (-math.fsum(part) / len(part) for part in (logprobs, logprobs[-RECENT:]))
        return now - usual > math.log(self._factor)  # as logarithms: exp of an unlikely token's would overflow
