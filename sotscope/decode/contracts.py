"""The contracts of decoding: context, proposal, drafter, gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass
class Context:
    """What is known when a step begins: all tokens so far, the last of which has not been fed yet."""

    ids: list[int]
    prompt_length: int
    max_new_tokens: int
    context_length: int
    seq: int = 0
    step: int = 0

    @property
    def new_tokens(self) -> int:
        return len(self.ids) - self.prompt_length

    @property
    def remaining(self) -> int:
        """How many tokens may still be chosen."""
        return self.max_new_tokens - self.new_tokens


@dataclass(frozen=True)
class Proposal:
    """Tokens drafted to follow the context.

    ``probabilities [slot]`` are the drafter's own for each token (1.0 for a greedy drafter), ``distributions
    [slot, vocab]`` its whole distribution where tokens were drawn from one. ``then`` is the token to commit after the
    last slot without asking the model (``forced`` only).
    """

    ids: Sequence[int] = ()
    probabilities: Sequence[float] = ()
    entropies: Sequence[float] = ()
    distributions: NDArray[np.float32] | None = None
    then: int | None = None

    def __len__(self) -> int:
        return len(self.ids)


class Drafter(Protocol):
    """Proposes tokens. ``mode`` is the word the run says for its rows; ``policy`` names how its drafts are judged.

    ``window`` is how many tokens it proposes when nothing limits it; ``may_reject`` says whether drafts can be
    refused, so that the cache must be able to roll back.
    """

    mode: str
    policy: str
    window: int
    may_reject: bool

    def propose(self, context: Context, window: int) -> Proposal:
        """At most ``window`` tokens; fewer, or none, when it has nothing to say."""


class Gate(Protocol):
    """A rule that shortens the draft window, to 0 for a plain step."""

    name: ClassVar[str]

    def window(self, context: Context) -> int: ...
