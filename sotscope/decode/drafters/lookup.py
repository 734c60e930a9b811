"""`lookup`: what followed the last words the last time they stood in the text.

Prompt lookup decoding (Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding; transformers'
``prompt_lookup_num_tokens``): no model, no training; copies and code repeat themselves.
"""

from __future__ import annotations

from torch import Tensor

from sotscope.decode.contracts import Context, Drafter, Proposal, Setup
from sotscope.errors import DecodeError
from sotscope.events import Step

FORGET = 0.95
"""How fast a confidence forgets, a draft."""


class Lookup(Drafter):
    """Continues the longest n-gram (``longest`` to ``shortest`` tokens) at the end of the text as it went on before.

    Its confidence in a match of n tokens is how often such matches were right in this text, so that gates can judge
    it; where the first j drafts are right, the match is n + j tokens long. Raises DecodeError for lengths out of order.
    """

    mode = "lookup"

    def __init__(self, window: int = 15, longest: int = 8, shortest: int = 2) -> None:
        if not 1 <= shortest <= longest or window < 1:
            raise DecodeError(
                f"lookup needs 1 <= shortest <= longest, window >= 1; got {shortest}, {longest}, {window}."
            )
        self.window = window
        self._longest, self._shortest = longest, shortest
        self._context: Context | None = None
        self._reset()

    def _reset(self) -> None:
        self._indexed = 0
        self._ends: list[dict[tuple[int, ...], int]] = [{} for _ in range(self._longest + 1)]
        self._right = {n: 1.0 + n for n in range(self._longest + 1)}  # longer matches start with more trust
        self._seen = {n: 2.0 + n for n in range(self._longest + 1)}
        self._matched = 0

    def _index(self, context: Context) -> None:
        """Remember where each n-gram but the last one ended; only what is new is looked at. A new text starts over."""
        ids = context.ids
        if context is not self._context:
            self._reset()
            self._context = context
        for end in range(max(1, self._indexed), len(ids)):  # the n-gram at the very end has nothing after it yet
            for n in range(self._shortest, min(self._longest, end) + 1):
                self._ends[n][tuple(ids[end - n : end])] = end
        self._indexed = len(ids)

    def propose(self, context: Context, window: int) -> Proposal:
        self._index(context)
        self._matched = 0
        for n in range(min(self._longest, len(context.ids)), self._shortest - 1, -1):
            end = self._ends[n].get(tuple(context.ids[-n:]))
            if end is None or window < 1:
                continue
            self._matched = n
            ids = context.ids[end : end + window]
            lengths = [self._length(slot) for slot in range(len(ids))]
            return Proposal(ids=ids, probabilities=[self._right[m] / self._seen[m] for m in lengths])
        return Proposal()

    def observe(self, context: Context, step: Step, truth: Tensor | None) -> None:
        """Count how matches of each length did."""
        looked_at = [draft for draft in step.drafts if draft.reason not in ("after_miss", "after_end")]
        for slot, draft in enumerate(looked_at if self._matched else []):
            n = self._length(slot)
            self._right[n] = FORGET * self._right[n] + draft.accepted
            self._seen[n] = FORGET * self._seen[n] + 1

    def _length(self, slot: int) -> int:
        """Of the match before ``slot``, if the slots before it are right."""
        return min(self._longest, self._matched + slot)


def make(setup: Setup) -> Lookup:
    given = setup.settings.lookup
    return Lookup(given.window, given.longest, given.shortest)
