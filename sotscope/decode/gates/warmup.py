"""`warmup`: the first tokens are the model's own, one by one."""

from __future__ import annotations

from typing import ClassVar

from sotscope.decode.contracts import UNLIMITED, Context, Gate
from sotscope.errors import DecodeError


class WarmUp(Gate):
    """No drafts for the first ``plain_first`` new tokens. Raises DecodeError for a negative number."""

    name: ClassVar[str] = "warmup"

    def __init__(self, plain_first: int = 8) -> None:
        if plain_first < 0:
            raise DecodeError(f"gate warmup: plain_first = {plain_first}; give 0 or more.")
        self._plain_first = plain_first

    def window(self, context: Context) -> int:
        return 0 if context.new_tokens < self._plain_first else UNLIMITED
