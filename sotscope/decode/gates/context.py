"""`context`: never draft past the model's context or the tokens that may still be chosen."""

from __future__ import annotations

from typing import ClassVar

from sotscope.decode.contracts import Context, Gate


class ContextLimit(Gate):
    """A step of width w feeds positions up to ``len(ids) - 1 + window`` and commits up to ``window + 1`` tokens."""

    name: ClassVar[str] = "context"

    def window(self, context: Context) -> int:
        room = context.context_length - len(context.ids)
        return max(0, min(room, context.remaining - 1))
