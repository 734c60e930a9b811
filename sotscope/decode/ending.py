"""When a text is at its end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from sotscope.decode.contracts import Context
from sotscope.errors import DecodeError

StopWhen = Callable[[list[int]], bool]
"""Asked for every committed token, also inside a block, with all ids up to it: does the text end here?"""


class Ending:
    """The rules of one sequence: stop strings (kept in the text, as transformers does) and a rule of the caller's own,
    beside those that hold for all. Raises DecodeError for stop strings that cannot be looked for."""

    def __init__(self, stop: Sequence[str], stop_when: StopWhen | None, tokenizer: Any) -> None:
        self._stop = tuple(stop)
        self._stop_when = stop_when
        if self._stop and (tokenizer is None or "" in self._stop):
            raise DecodeError("stop strings need a tokenizer and at least one character each.")

    def reason(
        self, context: Context, tokens: Sequence[int], text: str, fresh: str, *, eos: Collection[int], given: bool
    ) -> str:
        """Why the sequence ends with the last of ``tokens``, or empty. Asked for each one, also inside a block.

        ``fresh`` is what the last token added to ``text``; ``given``: the text is forced, and ends where it ends.
        """
        total = context.new_tokens + len(tokens)
        full = "context_limit" if len(context.ids) + len(tokens) > context.context_length else ""
        asked = self._stop_when is not None and self._stop_when([*context.ids, *tokens])
        if given:
            return "end_of_text" if total >= context.max_new_tokens else full
        if tokens[-1] in eos:
            return "eos"
        if any(stop in text[-(len(stop) + len(fresh)) :] for stop in self._stop):
            return "stop_string"
        if total >= context.max_new_tokens:
            return "max_new_tokens"
        return "criteria" if asked else full
