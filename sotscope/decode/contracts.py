"""The contracts of decoding: context, proposal, drafter, gate, and where drafters get states from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sotscope.config import DecodeConfig
from sotscope.decode.history import History
from sotscope.errors import DecodeError
from sotscope.events import LOSSY, Step

UNLIMITED = 1 << 30
"""A window, or a context length, without a limit."""


@dataclass
class Context:
    """What is known when a step begins: all tokens so far, the last of which has not been fed yet."""

    ids: list[int]
    prompt_length: int
    max_new_tokens: int
    context_length: int
    seq: int = 0
    step: int = 0
    text: str = ""
    """What the new tokens say so far."""
    logprobs: list[float] = field(default_factory=list)
    """Log-probability of each new token under the model; filled only while a gate asks for it."""
    history: History | None = None
    """States of the last committed rows; None while no drafter looks at states."""
    draw: Callable[[int], float] | None = None
    """Where drafts are to be drawn: the uniform number for drafting the token at a position. None: the likeliest."""
    temperature: float = 1.0

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

    ``probabilities [slot]`` are the drafter's own for each token (1.0 for a drafter that is certain), ``distributions
    [slot, vocab]`` its whole distribution where tokens were drawn from one, ``states [slot, dim]`` the predicted
    lm_head inputs they were read from. ``then`` is the token to commit after the last slot without asking the model
    (``forced`` only), ``mode`` who proposed, where that is not the drafter that was asked (``combine``).
    """

    ids: Sequence[int] = ()
    probabilities: Sequence[float] = ()
    entropies: Sequence[float] = ()
    distributions: NDArray[np.float32] | None = None
    states: Tensor | None = None
    then: int | None = None
    mode: str = ""

    def __len__(self) -> int:
        return len(self.ids)

    def check(self, window: int, vocab: int) -> None:
        """Raises DecodeError for more tokens than ``window``, tokens that the model lacks, numbers that are none."""
        if len(self) > window:
            raise DecodeError(f"proposed {len(self)} tokens for a window of {window}")
        numbers = [*self.probabilities, *self.entropies]
        if not all(-1e-6 <= number < float("inf") for number in numbers):  # False for NaN too
            raise DecodeError("its probabilities are not finite")
        if not all(0 <= token < vocab for token in self.ids):
            raise DecodeError(f"proposed a token outside the model's {vocab}")

    def first(self, count: int) -> Proposal:
        """Only the first ``count`` slots."""
        if count >= len(self):
            return self
        return Proposal(
            ids=self.ids[:count],
            probabilities=self.probabilities[:count],
            entropies=self.entropies[:count],
            distributions=None if self.distributions is None else self.distributions[:count],
            states=None if self.states is None else self.states[:count],
            then=self.ids[count] if self.then is not None else None,
            mode=self.mode,
        )


class Drafter(ABC):
    """Proposes tokens. ``mode`` is the word the run says for its rows.

    ``policy`` is "" where the run's policy judges its drafts, else the name of its own; ``window`` is how many tokens
    it proposes when nothing limits it; ``may_reject`` says whether drafts can be refused, so that the cache must be
    able to roll back. ``layers`` are the blocks whose states it reads (None: it reads no states), ``context_rows`` of
    how many rows.
    """

    mode: str
    policy: str = ""
    window: int = 0
    may_reject: bool = True
    layers: tuple[int, ...] | None = None
    context_rows: int = 0

    @abstractmethod
    def propose(self, context: Context, window: int) -> Proposal:
        """At most ``window`` tokens; fewer, or none, when it has nothing to say."""

    def observe(self, context: Context, step: Step, truth: Tensor | None) -> None:  # noqa: B027 - most need not
        """Learn what became of its drafts. ``truth [row, dim]`` are the true lm_head inputs of the step's rows."""

    def knows(self, token: int) -> bool:
        """Whether ``token`` is in the draft vocabulary."""
        return True


class Gate(ABC):
    """A rule that shortens the draft window, to 0 for a plain step. What it does not override limits nothing."""

    name: ClassVar[str]
    needs_logprobs: ClassVar[bool] = False
    """Whether it reads ``context.logprobs``, which cost a softmax over the vocabulary a step."""

    def window(self, context: Context) -> int:
        """How many tokens may be drafted now."""
        return UNLIMITED

    def trim(self, context: Context, proposal: Proposal) -> int:
        """How many of the drafted tokens are worth a look by the model."""
        return UNLIMITED

    def observe(self, context: Context, step: Step) -> None:  # noqa: B027 - most need not
        """Learn from a committed step."""


class StateSource(Protocol):
    """Watches the forwards of the model for the states drafters read. Made by ``sotscope.capture``."""

    def open(self, layers: Sequence[int]) -> None:
        """Watch these blocks (and always the lm_head's input) from now on; anything watched before is let go."""

    def close(self) -> None: ...

    def rows(self, count: int) -> Tensor:
        """The first rows of the last forward, [row, state, dim]; the last state is the lm_head's input."""


class Effects(Protocol):
    """Measures what interventions do to the first row of a step. Made by ``sotscope.capture``."""

    def without(self, position: int, forward: Callable[[], Tensor]) -> None:
        """Before the step: ``forward`` feeds its first token alone, takes it back, and returns logits [1, vocab]."""

    def effect(self, logits: Tensor) -> Mapping[str, float]:
        """After it: numbers by name, of the first row of ``logits [row, vocab]``."""


@dataclass
class Parts:
    """What decides a step: who drafts, how drafts are judged, what limits them."""

    drafter: Drafter
    policy: str = "exact"
    gates: Sequence[Gate] = ()
    window: int = UNLIMITED
    options: dict[str, Any] = field(default_factory=dict)
    """Parameters of the policy."""

    @property
    def judge(self) -> str:
        """The policy that counts: the drafter's own, else the run's."""
        return self.drafter.policy or self.policy

    @property
    def lossy(self) -> bool:
        """Whether drafts are taken that `ar` might not have chosen. A given text (`forced`) is no guess."""
        return self.judge in LOSSY and self.drafter.window > 0


@dataclass(frozen=True)
class Setup:
    """What a drafter is made from. Entries of the catalog are functions ``make(setup) -> Drafter``.

    ``name`` and ``fingerprint`` are the base model's; ``find`` gives the folder of the trained drafter for a mode
    (or raises), ``load`` another model with its tokenizer by name.
    """

    model: Any
    tokenizer: Any
    settings: DecodeConfig
    name: str = ""
    fingerprint: str = ""
    find: Callable[[str], Path] = lambda mode: Path(mode)
    load: Callable[[str], tuple[Any, Any]] = lambda name: (None, None)
