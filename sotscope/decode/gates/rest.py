"""What gates share that make plain steps for a while."""

from __future__ import annotations

from sotscope.decode.contracts import UNLIMITED, Context, Gate


class Resting(Gate):
    """Nothing is drafted until the text has ``_resume_at`` new tokens. Another text begins without a rest."""

    def __init__(self) -> None:
        self._context: Context | None = None
        self._begin()

    def _begin(self) -> None:
        self._resume_at = 0

    def window(self, context: Context) -> int:
        if context is not self._context:
            self._context = context
            self._begin()
        return 0 if context.new_tokens < self._resume_at else UNLIMITED
