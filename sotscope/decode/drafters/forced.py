"""`forced`: a given text is believed word for word, so that models, dtypes or servers can be compared on it."""

from __future__ import annotations

from collections.abc import Sequence

from sotscope.decode.contracts import Context, Drafter, Proposal, Setup
from sotscope.errors import DecodeError


class Forced(Drafter):
    """Proposes the tokens of a given continuation, ``window`` a step; all are committed as they are.

    Raises DecodeError for an empty text.
    """

    mode = "forced"
    policy = "forced"
    may_reject = False

    def __init__(self, ids: Sequence[int], window: int = 32) -> None:
        if not ids:
            raise DecodeError("the text to force is empty; give --force some words.")
        self.ids = list(ids)
        self.window = window

    def propose(self, context: Context, window: int) -> Proposal:
        rest = self.ids[context.new_tokens :]
        ids = rest[: min(window, len(rest) - 1)]
        return Proposal(ids=ids, probabilities=[1.0] * len(ids), entropies=[0.0] * len(ids), then=rest[len(ids)])


def make(setup: Setup) -> Forced:
    if setup.settings.force is None or setup.tokenizer is None:
        raise DecodeError("mode forced needs a text (--force) and a tokenizer.")
    ids = setup.tokenizer(setup.settings.force, add_special_tokens=False)["input_ids"]
    return Forced(ids) if setup.settings.window is None else Forced(ids, window=setup.settings.window)
