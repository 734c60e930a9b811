"""`periodic`: every so many tokens, one that the model chooses without drafts."""

from __future__ import annotations

from typing import ClassVar

from sotscope.decode.contracts import UNLIMITED, Context, Gate
from sotscope.errors import DecodeError
from sotscope.events import Step


class Periodic(Gate):
    """A plain step once ``every`` tokens (32 to 64 are sensible) were committed since the last one.

    Tokens since then are counted, since blocks jump over multiples of a number. Any step without drafts is a plain
    one, whoever made it so. Raises DecodeError for ``every`` below 1.
    """

    name: ClassVar[str] = "periodic"

    def __init__(self, every: int = 48) -> None:
        if every < 1:
            raise DecodeError(f"gate periodic: every = {every}; give 1 or more.")
        self._every = every
        self._last = 0

    def window(self, context: Context) -> int:
        self._last = min(self._last, context.new_tokens)  # another text begins with no tokens
        return 0 if context.new_tokens - self._last >= self._every else UNLIMITED

    def observe(self, context: Context, step: Step) -> None:
        if not step.drafts:
            self._last = context.new_tokens
