"""The contract of state predictors: from captured states and the tokens that followed to the next states.

Row i has the captured ``states[i] [state, dim]`` and the embedding of the token chosen there (``embeds[i] [dim]``,
token i + 1). Slot s of row i is the predicted lm_head input of row i + 1 + s, the row that will feed that token.
Predictors that feed tokens back need the token of slot s before they can predict slot s + 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class PredictorConfig:
    """What fixes a predictor's shapes; saved beside its weights."""

    kind: str
    dim: int
    layers: tuple[int, ...]
    """Blocks whose output (`resid`) is read; the lm_head's input (`final`) is always read too."""
    slots: int = 5
    heads: int = 1
    kv_heads: int = 1
    head_dim: int = 64
    inner: int = 1024
    rope_theta: float = 10_000.0
    context_rows: int = 1
    """How many past rows it looks at."""

    @property
    def states(self) -> int:
        return len(self.layers) + 1

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Predictor(nn.Module, ABC):
    """One architecture. ``unroll`` is how it is trained, ``absorb`` and ``first`` / ``then`` how it drafts.

    The two ways give the same states (a contract test compares them). Architectures without token feedback
    (``feedback`` False) ignore the embeddings given to ``then``, so that all slots can share one head call.
    """

    feedback: ClassVar[bool] = True
    alone: ClassVar[bool] = False
    """Whether a row is predicted from nothing but itself, so that it can be trained on rows from anywhere."""
    looks_back: ClassVar[int] = 1
    """How many past rows it looks at, unless its config says otherwise."""

    def __init__(self, config: PredictorConfig) -> None:
        super().__init__()
        self.config = config

    @classmethod
    def inner_size(cls, dim: int, intermediate: int) -> int:
        """Width of its inner layers for a base with states of ``dim`` numbers and MLPs ``intermediate`` wide."""
        return intermediate

    @abstractmethod
    def unroll(self, states: Tensor, embeds: Tensor, rows: Sequence[Tensor]) -> list[Tensor]:
        """Each slot of some rows, true tokens fed back.

        ``states [batch, row, state, dim]``, ``embeds [batch, row, slot, dim]`` (the token chosen at the row and those
        after it); ``rows[slot] [n]`` are the rows wanted of a slot, all of them also wanted of the slot before.
        Returns [batch, n, dim] for each slot. Where ``alone`` is True, rows need not belong together.
        """

    def rollout(self, states: Tensor, embeds: Tensor, slots: int) -> Tensor:
        """All slots of all rows: [batch, row, slot, dim]. ``embeds [batch, row + slots - 1, dim]``."""
        count = states.shape[1]
        every = torch.arange(count, device=states.device)
        fed = torch.stack([embeds[:, slot : slot + count] for slot in range(slots)], 2)
        return torch.stack(self.unroll(states, fed, [every] * slots), 2)

    @abstractmethod
    def absorb(self, memory: Any, states: Tensor, embeds: Tensor) -> Any:
        """Take committed rows in: ``states [row, state, dim]``, ``embeds [row, dim]``. ``memory`` None: the first."""

    @abstractmethod
    def first(self, memory: Any) -> tuple[Tensor, Any]:
        """The state of slot 0 [dim], and what ``then`` needs. ``memory`` itself is left as it is."""

    @abstractmethod
    def then(self, carry: Any, embed: Tensor) -> tuple[Tensor, Any]:
        """The state of the next slot [dim], after the token of the slot before (``embed [dim]``)."""

    def start_from(self, block: nn.Module, norm: nn.Module) -> None:
        """Copy what fits from the base's last block and final norm: training then starts closer."""


class Entrance(nn.Module):
    """States of several layers and a token's embedding become one vector: x = W [norm(fuse(states)); norm(embed)]."""

    def __init__(self, config: PredictorConfig, out: int | None = None) -> None:
        super().__init__()
        self.fuse = nn.Linear(config.states * config.dim, config.dim, bias=False)
        self.enter = nn.Linear(2 * config.dim, out or config.dim, bias=False)

    def fused(self, states: Tensor) -> Tensor:
        """[..., state, dim] to [..., dim]; every state scaled to unit size, for layers differ a thousandfold."""
        return self.fuse(unit(states).flatten(-2))  # type: ignore[no-any-return]

    def forward(self, fused: Tensor, embed: Tensor) -> Tensor:
        return self.enter(torch.cat([unit(fused), unit(embed)], -1))  # type: ignore[no-any-return]


class Mix(nn.Module):
    """A pre-norm SwiGLU MLP on a residual, as in Llama."""

    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.norm = Norm(dim)
        self.gate = nn.Linear(dim, inner, bias=False)
        self.up = nn.Linear(dim, inner, bias=False)
        self.down = nn.Linear(inner, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))  # type: ignore[no-any-return]


class Norm(nn.Module):
    """RMS norm (Zhang and Sennrich 2019, arXiv 1910.07467) in the type of its input, also where weights are wider."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), eps=1e-5)


def unit(x: Tensor) -> Tensor:
    """Each vector scaled to a root mean square of 1."""
    return nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6)


def within(rows: Tensor, of: Tensor) -> Tensor:
    """Where ``rows`` are in ``of`` (sorted)."""
    return torch.searchsorted(of, rows)
