"""`tcn`: a temporal convolution over the last rows, fed with its own output beyond them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sotscope.decode.predictors.contracts import Entrance, Mix, Norm, Predictor, PredictorConfig


class Tcn(Predictor):
    """Kernel ``context_rows`` wide; the newest row is tap 0."""

    def __init__(self, config: PredictorConfig) -> None:
        super().__init__(config)
        self.entrance = Entrance(config)
        self.taps = nn.ModuleList(nn.Linear(config.dim, config.dim, bias=False) for _ in range(config.context_rows))
        self.mix = Mix(config.dim, config.inner)
        self.out = Norm(config.dim)

    def rollout(self, states: Tensor, embeds: Tensor, slots: int) -> Tensor:
        rows = states.shape[1]
        base = hidden = self.entrance.fused(states)
        own: list[Tensor] = []
        out = []
        for slot in range(slots):
            x = self.entrance(hidden, embeds[:, slot : slot + rows])
            base = x if slot == 0 else base
            own = own if slot == 0 else [x, *own]
            moved = x
            for age, tap in enumerate(self.taps):
                source = own[age] if age < slot else _later(base, age - slot)
                moved = moved + tap(source)
            hidden = self.mix(moved)
            out.append(self.out(hidden))
        return torch.stack(out, 2)

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
