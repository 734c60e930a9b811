"""`gru` and `gru_parallel`: a recurrent cell rolls one state forward, with or without the drafted tokens.

With feedback it is ReDrafter's shape (Cheng et al. 2024, arXiv 2403.09919): the last row's states start the cell, each
token moves it on. Without, a learned vector stands in for the tokens nobody knows yet, and all slots share a head call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from sotscope.decode.predictors.contracts import Mix, Norm, Predictor, PredictorConfig, unit, within


class Gru(Predictor):
    alone: ClassVar[bool] = True

    @classmethod
    def inner_size(cls, dim: int, intermediate: int) -> int:
        """The cell is read once a slot, so it is kept narrower than an MLP of the base."""
        return (4 * dim) // 3

    def __init__(self, config: PredictorConfig) -> None:
        super().__init__(config)
        self.start = nn.Linear(config.states * config.dim, config.inner)
        self.cell = nn.GRUCell(config.dim, config.inner)
        self.project = nn.Linear(config.inner, config.dim, bias=False)
        self.mix = Mix(config.dim, config.inner)
        self.out = Norm(config.dim)
        if not self.feedback:
            self.blank = nn.Parameter(torch.randn(config.slots - 1, config.dim) * 0.1)

    def _input(self, embed: Tensor, slot: int) -> Tensor:
        if slot and not self.feedback:
            return self.blank[min(slot, len(self.blank)) - 1].expand_as(embed)
        return unit(embed)

    def _state(self, cell: Tensor) -> Tensor:
        return self.out(self.mix(self.project(cell)))  # type: ignore[no-any-return]

    def unroll(self, states: Tensor, embeds: Tensor, rows: Sequence[Tensor]) -> list[Tensor]:
        batch = len(states)
        before = rows[0]
        cell = torch.tanh(self.start(unit(states[:, before]).flatten(-2)))
        out = []
        for slot, wanted in enumerate(rows):
            given = self._input(embeds[:, wanted, slot], slot)
            cell = self.cell(given.flatten(0, 1), cell[:, within(wanted, before)].flatten(0, 1))
            cell = cell.view(batch, len(wanted), -1)
            before = wanted
            out.append(self._state(cell))
        return out

    def absorb(self, memory: tuple[Tensor, Tensor] | None, states: Tensor, embeds: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(self.start(unit(states[-1]).flatten())), embeds[-1]

    def first(self, memory: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, int]]:
        return self._move(memory[0], memory[1], 0)

    def then(self, carry: tuple[Tensor, int], embed: Tensor) -> tuple[Tensor, tuple[Tensor, int]]:
        return self._move(carry[0], embed, carry[1])

    def _move(self, cell: Tensor, embed: Tensor, slot: int) -> tuple[Tensor, tuple[Tensor, int]]:
        cell = self.cell(self._input(embed, slot)[None], cell[None])[0]
        return self._state(cell), (cell, slot + 1)


class GruParallel(Gru):
    feedback: ClassVar[bool] = False
