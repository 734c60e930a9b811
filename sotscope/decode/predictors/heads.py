"""`heads`: one residual block a slot on one state, all decoded in one head call.

Medusa's heads (Cai et al. 2024, arXiv 2401.10774; zero-initialised blocks), with the token that is already known as
a second input, as in Hydra (Ankner et al. 2024, arXiv 2402.05109), and one vocabulary head shared by all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from sotscope.decode.predictors.contracts import Entrance, Mix, Norm, Predictor, PredictorConfig, within


class Heads(Predictor):
    feedback: ClassVar[bool] = False
    alone: ClassVar[bool] = True

    def __init__(self, config: PredictorConfig) -> None:
        super().__init__(config)
        self.entrance = Entrance(config)
        self.mix = Mix(config.dim, config.inner)
        self.blocks = nn.ModuleList(_zero(nn.Linear(config.dim, config.dim)) for _ in range(config.slots))
        self.out = Norm(config.dim)

    def _slot(self, trunk: Tensor, slot: int) -> Tensor:
        return self.out(trunk + nn.functional.silu(self.blocks[slot](trunk)))  # type: ignore[no-any-return]

    def unroll(self, states: Tensor, embeds: Tensor, rows: Sequence[Tensor]) -> list[Tensor]:
        first = rows[0]
        trunk = self.mix(self.entrance(self.entrance.fused(states[:, first]), embeds[:, first, 0]))
        return [self._slot(trunk[:, within(wanted, first)], slot) for slot, wanted in enumerate(rows)]

    def absorb(self, memory: Tensor | None, states: Tensor, embeds: Tensor) -> Tensor:
        return self.mix(self.entrance(self.entrance.fused(states[-1]), embeds[-1]))  # type: ignore[no-any-return]

    def first(self, memory: Tensor) -> tuple[Tensor, tuple[Tensor, int]]:
        return self._slot(memory, 0), (memory, 1)

    def then(self, carry: tuple[Tensor, int], embed: Tensor) -> tuple[Tensor, tuple[Tensor, int]]:
        trunk, slot = carry
        return self._slot(trunk, slot), (trunk, slot + 1)


def _zero(block: nn.Linear) -> nn.Linear:
    nn.init.zeros_(block.weight)
    nn.init.zeros_(block.bias)
    return block
