"""The accept rules: which drafted token becomes part of the sequence, and what is chosen where it does not.

``Exact`` keeps the model's own output: greedy equality, or rejection sampling (Leviathan et al. 2023, arXiv
2211.17192; Chen et al. 2023, arXiv 2302.01318) when tokens are sampled. Random draws are a function of (seed,
sequence, position, purpose), so that branches, resumed runs and other block widths repeat exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SAMPLE, ACCEPT, RESAMPLE = 0, 1, 2
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


class Exact:
    """Lossless: greedy output equals `ar`, sampled output has the model's distribution."""

    def __init__(self, *, sample: bool, draws: Draws) -> None:
        self._sample = sample
        self._draws = draws

    def decide(self, slot: Slot) -> tuple[int, bool]:
        if not self._sample:
            token = int(slot.scores.argmax())
            return token, token == slot.draft
        p = torch.softmax(slot.scores.double(), -1).cpu().numpy()
        if slot.draft is None:
            return self._draw(p, slot, SAMPLE), False
        q = np.zeros_like(p)
        if slot.distribution is None:
            q[slot.draft] = 1.0
        else:
            q[: len(slot.distribution)] = slot.distribution
        u = self._draws.uniform(slot.seq, slot.position, ACCEPT)
        if u * q[slot.draft] < p[slot.draft]:
            return slot.draft, True
        rest = np.maximum(p - q, 0.0)
        total = rest.sum()
        # where q is p but for rounding nothing is left to draw from
        return self._draw(rest / total if total > 0 else p, slot, RESAMPLE), False

    def _draw(self, p: NDArray[np.float64], slot: Slot, purpose: int) -> int:
        u = self._draws.uniform(slot.seq, slot.position, purpose)
        return min(int(np.searchsorted(np.cumsum(p), u, side="right")), int(np.flatnonzero(p)[-1]))


class Believe:
    """Lossy by design: the draft is taken as it is (``forced``: the text is given, not chosen)."""

    def decide(self, slot: Slot) -> tuple[int, bool]:
        if slot.draft is None:
            return int(slot.scores.argmax()), False
        return slot.draft, True
