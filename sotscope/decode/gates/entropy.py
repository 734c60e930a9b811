"""`entropy`: drafts end where the drafter is unsure of its token."""

from __future__ import annotations

import math
from typing import ClassVar

from sotscope.decode.contracts import UNLIMITED, Context, Proposal
from sotscope.decode.gates.rest import Resting
from sotscope.errors import DecodeError
from sotscope.events import Step


class EntropyThreshold(Resting):
    """Cuts a proposal at the first slot whose entropy is over ``threshold`` nats.

    When the very first slot was over it ``in_a_row`` times in a row, the next ``rest`` tokens are decoded by plain
    steps. A drafter that gives no entropies is not limited. Raises DecodeError for a ``threshold`` that is not above
    0, or ``in_a_row`` or ``rest`` below 1.
    """

    name: ClassVar[str] = "entropy"

    def __init__(self, threshold: float = 2.3, in_a_row: int = 3, rest: int = 16) -> None:
        super().__init__()
        if not (0 < threshold < math.inf and in_a_row >= 1 and rest >= 1):
            raise DecodeError(
                f"gate entropy needs threshold > 0, in_a_row >= 1, rest >= 1; got {threshold}, {in_a_row}, {rest}."
            )
        self._threshold, self._in_a_row, self._rest = threshold, in_a_row, rest

    def _begin(self) -> None:
        super()._begin()
        self._unsure = 0

    def trim(self, context: Context, proposal: Proposal) -> int:
        over = (slot for slot, entropy in enumerate(proposal.entropies) if entropy > self._threshold)
        cut = next(over, UNLIMITED)
        self._unsure = self._unsure + 1 if cut == 0 else 0
        return cut

    def observe(self, context: Context, step: Step) -> None:
        if self._unsure >= self._in_a_row:
            self._unsure = 0
            self._resume_at = context.new_tokens + self._rest
