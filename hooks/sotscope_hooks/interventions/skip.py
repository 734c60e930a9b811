"""`skip`: a block that hardly changes the state is left out."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from sotscope.capture.interventions import Place, Recurrent
from sotscope.errors import HealthError


class Skip(Recurrent):
    """The block's output is its input, where the mean cosine of both in the last ``rows`` rows was ``above`` or more
    (``always``: everywhere). Selective update, as in Skip RNN (Campos et al. 2018), judged by committed rows alone.

    The block is computed all the same, so that later rows find its keys and values: this shows what the layer does, it
    saves no time.
    """

    name: ClassVar[str] = "skip"
    sites: ClassVar[tuple[str, ...]] = ("resid",)
    pairs: ClassVar[bool] = True

    def __init__(self, place: Place, above: float = 0.98, rows: int = 8, always: bool = False) -> None:
        if not -1 <= above <= 1:
            raise HealthError(f"intervention skip: above = {above} is not a cosine, -1 to 1.")
        if rows < 1:
            raise HealthError(f"intervention skip needs rows >= 1; got {rows}.")
        self._above = above
        self._rows = rows
        self._always = always

    def voids(self, earlier: Skip) -> bool:
        return True  # after the first, the second finds nothing to judge

    def row(self, state: Tensor, memory: Tensor | None, pos: int) -> tuple[Tensor, Tensor]:
        entered, gave = state
        cosine = torch.cosine_similarity(entered, gave, dim=0)[None]
        known = cosine[:0] if memory is None else memory
        alike = known.mean() >= self._above  # False while no row is known: its mean is NaN
        changed = entered if self._always else torch.where(alike, entered, gave)
        return changed, torch.cat((known, cosine))[-self._rows :]
