"""The accept rules: which drafted token becomes part of the sequence, and what is chosen where it does not.

``Exact`` keeps the model's own output. A draft that the drafter was certain of is taken if it is what `ar` would have
chosen there, greedily or with the number drawn for its position: the text is that of `ar`, whatever is drafted. A draft
drawn from a distribution of the drafter's own goes through rejection sampling (Leviathan et al. 2023, arXiv 2211.17192;
Chen et al. 2023, arXiv 2302.01318): the text has the model's distribution. Random draws are a function of (seed,
sequence, position, purpose), so that branches, resumed runs and other block widths repeat exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sotscope.errors import DecodeError
from sotscope.events import POLICIES

SAMPLE, ACCEPT, RESAMPLE, DRAFT, REMEDY = 0, 1, 2, 3, 4
"""Purposes of a draw."""


@dataclass(frozen=True)
class Draws:
    """Uniform numbers that depend on nothing but where they are used."""

    seed: int

    def uniform(self, seq: int, position: int, purpose: int) -> float:
        """One number in [0, 1) for the token at ``position`` of sequence ``seq``."""
        return float(np.random.default_rng((self.seed, seq, position, purpose)).random())


@dataclass(frozen=True)
class Slot:
    """One position to decide: the model's processed ``scores [vocab]``, and the draft for it, if there is one."""

    scores: Tensor
    seq: int
    position: int
    draft: int | None = None
    distribution: NDArray[np.float32] | None = None
    """The drafter's distribution [vocab] that ``draft`` was drawn from; None: it was certain of it."""


class Policy(Protocol):
    def decide(self, slot: Slot) -> tuple[int, bool]:
        """The token to commit, and whether it is the draft, accepted."""


class Chooser:
    """What `ar` chooses: the likeliest token, or one drawn with the number that belongs to its position."""

    def __init__(self, *, sample: bool, draws: Draws) -> None:
        self.sample = sample
        self.draws = draws

    def choose(self, slot: Slot) -> int:
        if not self.sample:
            return int(slot.scores.argmax())
        return self.draw(probabilities(slot.scores), slot, SAMPLE)

    def draw(self, p: NDArray[np.float64], slot: Slot, purpose: int) -> int:
        u = self.draws.uniform(slot.seq, slot.position, purpose)
        return min(int(np.searchsorted(np.cumsum(p), u, side="right")), int(np.flatnonzero(p)[-1]))


class Exact(Chooser):
    """Lossless: output equals `ar`; where drafts were drawn from a distribution, it has the model's distribution."""

    def decide(self, slot: Slot) -> tuple[int, bool]:
        if slot.draft is None or slot.distribution is None or not self.sample:
            token = self.choose(slot)
            return token, token == slot.draft
        p = probabilities(slot.scores)
        q = np.zeros_like(p)
        q[: len(slot.distribution)] = slot.distribution
        u = self.draws.uniform(slot.seq, slot.position, ACCEPT)
        if u * q[slot.draft] < p[slot.draft]:
            return slot.draft, True
        rest = np.maximum(p - q, 0.0)
        total = rest.sum()
        # where q is p but for rounding nothing is left to draw from
        return self.draw(rest / total if total > 0 else p, slot, RESAMPLE), False


class Typical(Chooser):
    """Lossy: a draft is taken if the model finds it likely for its own uncertainty there.

    Medusa's typical acceptance (Cai et al. 2024, arXiv 2401.10774): p(draft) > min(epsilon, alpha * exp(-H)), H the
    entropy of the model's distribution in nats.
    """

    def __init__(self, *, sample: bool, draws: Draws, epsilon: float = 0.3, alpha: float = 0.09) -> None:
        super().__init__(sample=sample, draws=draws)
        if not (0 < epsilon <= 1 and 0 < alpha <= 1):
            raise DecodeError(f"typical acceptance needs 0 < epsilon, alpha <= 1; got {epsilon}, {alpha}.")
        self._epsilon, self._alpha = epsilon, alpha

    def decide(self, slot: Slot) -> tuple[int, bool]:
        if slot.draft is not None:
            log_p = torch.log_softmax(slot.scores.double(), -1)
            p = log_p.exp()
            entropy = float(-(p * log_p.clamp(min=-1e9)).sum())
            if float(p[slot.draft]) > min(self._epsilon, self._alpha * float(np.exp(-entropy))):
                return slot.draft, True
        token = self.choose(slot)
        return token, token == slot.draft


class Believe(Chooser):
    """Lossy by design: the draft is taken as it is (``none``; and ``forced``, where the text is given)."""

    def decide(self, slot: Slot) -> tuple[int, bool]:
        return (self.choose(slot), False) if slot.draft is None else (slot.draft, True)


def make_policy(name: str, *, sample: bool, draws: Draws, **options: Any) -> Exact | Typical | Believe:
    """The policy called ``name``. Raises DecodeError for another name or parameters out of range."""
    if name in ("none", "forced"):
        return Believe(sample=sample, draws=draws)
    if name == "typical":
        return Typical(sample=sample, draws=draws, **options)
    if name == "exact":
        return Exact(sample=sample, draws=draws)
    raise DecodeError(f"policy {name!r} is not one of {', '.join(POLICIES)}.")


def probabilities(scores: Tensor) -> NDArray[np.float64]:
    """softmax of ``scores [vocab]`` in double precision."""
    p: NDArray[np.float64] = torch.softmax(scores.double(), -1).cpu().numpy()
    return p
