"""`tcn`: a temporal convolution over the last rows, fed with its own output beyond them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from sotscope.decode.predictors.contracts import Entrance, Mix, Norm, Predictor, PredictorConfig, within


class Tcn(Predictor):
    """Kernel ``context_rows`` wide; the newest row is tap 0."""

    looks_back: ClassVar[int] = 4

    def __init__(self, config: PredictorConfig) -> None:
        super().__init__(config)
        self.entrance = Entrance(config)
        self.taps = nn.ModuleList(nn.Linear(config.dim, config.dim, bias=False) for _ in range(config.context_rows))
        self.mix = Mix(config.dim, config.inner)
        self.out = Norm(config.dim)

    def unroll(self, states: Tensor, embeds: Tensor, rows: Sequence[Tensor]) -> list[Tensor]:
        base = self.entrance(self.entrance.fused(states), embeds[:, :, 0])
        own: list[Tensor] = []
        hidden, before = base, torch.arange(states.shape[1], device=states.device)
        out = []
        for slot, wanted in enumerate(rows):
            kept = within(wanted, before)
            own = [x[:, kept] for x in own]
            if slot:
                own.insert(0, self.entrance(hidden[:, kept], embeds[:, wanted, slot]))
            moved = own[0] if slot else base[:, wanted]
            for age, tap in enumerate(self.taps):
                moved = moved + tap(own[age] if age < slot else _later(base, age - slot)[:, wanted])
            hidden, before = self.mix(moved), wanted
            out.append(self.out(hidden))
        return out

    def absorb(self, memory: Tensor | None, states: Tensor, embeds: Tensor) -> Tensor:
        """The inputs of the last rows [row, dim], oldest first."""
        x = self.entrance(self.entrance.fused(states), embeds)
        return (x if memory is None else torch.cat([memory, x]))[-self.config.context_rows :]

    def first(self, memory: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        return self._move(memory)

    def then(self, carry: tuple[Tensor, Tensor], embed: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        hidden, window = carry
        return self._move(torch.cat([window, self.entrance(hidden, embed)[None]])[-self.config.context_rows :])

    def _move(self, window: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        moved = window[-1]
        for age, row in enumerate(window.flip(0)):
            moved = moved + self.taps[age](row)
        hidden = self.mix(moved)
        return self.out(hidden), (hidden, window)


def _later(x: Tensor, by: int) -> Tensor:
    """[batch, row, dim] shifted to later rows; zeros before the first."""
    return x if by == 0 else nn.functional.pad(x, (0, 0, by, 0))[:, : x.shape[1]]
