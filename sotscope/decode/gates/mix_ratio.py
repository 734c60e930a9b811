"""`mix_ratio`: drafted and plain tokens take turns (7:3), for policies that believe drafts."""

from __future__ import annotations

from typing import ClassVar

from sotscope.decode.contracts import Context, Gate
from sotscope.errors import DecodeError


class MixRatio(Gate):
    """Of every ``drafted + plain`` tokens the first ``drafted`` may come from steps with drafts, the others do not.

    Raises DecodeError for ``drafted`` below 2 (a step with drafts makes at least two tokens) or ``plain`` below 1.
    """

    name: ClassVar[str] = "mix_ratio"

    def __init__(self, drafted: int = 7, plain: int = 3) -> None:
        if drafted < 2 or plain < 1:
            raise DecodeError(f"gate mix_ratio needs drafted >= 2 and plain >= 1; got {drafted} and {plain}.")
        self._drafted, self._plain = drafted, plain

    def window(self, context: Context) -> int:
        at = context.new_tokens % (self._drafted + self._plain)
        return max(0, self._drafted - at - 1)  # the step adds a token of the model's own to its drafts
