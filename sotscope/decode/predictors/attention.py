"""`attention`: one causal layer over the rows so far, fed with its own output where there is no row yet.

After EAGLE (Li et al. 2024, arXiv 2401.15077) and EAGLE-3 (2025, arXiv 2503.01840): states of several layers in, the
drafter's own hidden state in their place beyond the last row, trained on its own rollouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sotscope.decode.predictors.contracts import Entrance, Mix, Norm, Predictor, PredictorConfig, within


@dataclass
class Memory:
    """Keys and values [kv_head, row, head_dim] of absorbed rows, the last row's input, and how many rows there were."""

    keys: Tensor
    values: Tensor
    last: Tensor
    count: int


class Attention(Predictor):
    looks_back: ClassVar[int] = 256
    frequency: Tensor

    def __init__(self, config: PredictorConfig) -> None:
        super().__init__(config)
        d, h = config.dim, config.head_dim
        self.entrance = Entrance(config)
        self.norm = Norm(d)
        self.q = nn.Linear(d, config.heads * h, bias=False)
        self.k = nn.Linear(d, config.kv_heads * h, bias=False)
        self.v = nn.Linear(d, config.kv_heads * h, bias=False)
        self.o = nn.Linear(config.heads * h, d, bias=False)
        self.mix = Mix(d, config.inner)
        self.out = Norm(d)
        frequency = config.rope_theta ** -(torch.arange(0, h, 2).float() / h)
        self.register_buffer("frequency", frequency, persistent=False)

    def start_from(self, block: nn.Module, norm: nn.Module) -> None:
        attn, mlp = getattr(block, "self_attn", None), getattr(block, "mlp", None)
        pairs: list[tuple[Any, Any, str]] = [
            (self.q, attn, "q_proj"),
            (self.k, attn, "k_proj"),
            (self.v, attn, "v_proj"),
            (self.o, attn, "o_proj"),
            (self.mix.gate, mlp, "gate_proj"),
            (self.mix.up, mlp, "up_proj"),
            (self.mix.down, mlp, "down_proj"),
            (self.norm, block, "input_layernorm"),
            (self.mix.norm, block, "post_attention_layernorm"),
        ]
        found: list[tuple[Any, Any]] = [(own, getattr(owner, name, None)) for own, owner, name in pairs]
        found.append((self.out, norm))
        for own, theirs in found:
            weight = getattr(theirs, "weight", None)
            if weight is not None and weight.shape == own.weight.shape:
                own.weight.data.copy_(weight.data)

    # -- training: all rows at once ------------------------------------------------------------------------------

    def unroll(self, states: Tensor, embeds: Tensor, rows: Sequence[Tensor]) -> list[Tensor]:
        batch, count = states.shape[:2]
        fused = self.entrance.fused(states)
        every = torch.arange(count, device=states.device)
        x = self.entrance(fused, embeds[:, :, 0])
        queries, base_keys, base_values = self._qkv(x, every)
        own: list[tuple[Tensor, Tensor]] = []
        hidden, before = x, every
        out = []
        for slot, wanted in enumerate(rows):
            kept = within(wanted, before)
            own = [(key[:, :, kept], value[:, :, kept]) for key, value in own]
            if slot == 0:
                x, q = x[:, kept], queries[:, :, kept]
            else:
                x = self.entrance(hidden[:, kept], embeds[:, wanted, slot])
                q, key, value = self._qkv(x, wanted + slot)
                own.append((key, value))
            seen = self._attend(q, base_keys, base_values, own, self._unseen(wanted, every))
            hidden = self.mix(x + self.o(seen.transpose(1, 2).reshape(batch, len(wanted), -1)))
            before = wanted
            out.append(self.out(hidden))
        return out

    def _unseen(self, wanted: Tensor, every: Tensor) -> Tensor:
        """[row, key]: rows that are later, or too long ago."""
        age = wanted[:, None] - every[None]
        return (age < 0) | (age >= self.config.context_rows)

    def _attend(
        self, q: Tensor, keys: Tensor, values: Tensor, own: list[tuple[Tensor, Tensor]], unseen: Tensor
    ) -> Tensor:
        """Over the true rows and, behind them, over the row's own predictions so far."""
        scores = torch.matmul(q, keys.transpose(-1, -2)).masked_fill(unseen, -torch.inf)
        mine = [(q * key).sum(-1, keepdim=True) for key, _ in own]
        weights = torch.softmax(torch.cat([scores, *mine], -1) * self._scale, -1)
        count = keys.shape[2]
        seen = torch.matmul(weights[..., :count], values)
        for i, (_, value) in enumerate(own):
            seen = seen + weights[..., count + i, None] * value
        return seen

    @property
    def _scale(self) -> float:
        return float(self.config.head_dim**-0.5)

    def _qkv(self, x: Tensor, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[batch, head, row, head_dim] each; keys and values repeated for the heads that share them."""
        y = self.norm(x)
        batch, rows = y.shape[:2]
        c = self.config
        q = self._turn(self.q(y).view(batch, rows, c.heads, c.head_dim).transpose(1, 2), place)
        k = self._turn(self.k(y).view(batch, rows, c.kv_heads, c.head_dim).transpose(1, 2), place)
        v = self.v(y).view(batch, rows, c.kv_heads, c.head_dim).transpose(1, 2)
        share = c.heads // c.kv_heads
        return q, k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)

    def _turn(self, x: Tensor, place: Tensor) -> Tensor:
        """Rotary positions (Su et al. 2021, arXiv 2104.09864), halves rotated as in Llama."""
        angle = place[:, None].float() * self.frequency
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    # -- drafting: one row at a time -----------------------------------------------------------------------------

    def absorb(self, memory: Memory | None, states: Tensor, embeds: Tensor) -> Memory:
        count = memory.count if memory is not None else 0
        x = self.entrance(self.entrance.fused(states), embeds)
        keys, values = self._key_value(x, count)
        if memory is not None:
            keys, values = torch.cat([memory.keys, keys], 1), torch.cat([memory.values, values], 1)
        keep = self.config.context_rows
        return Memory(keys[:, -keep:], values[:, -keep:], x[-1], count + len(x))

    def first(self, memory: Memory) -> tuple[Tensor, Memory]:
        return self._step(memory)

    def then(self, carry: Memory, embed: Tensor) -> tuple[Tensor, Memory]:
        x = self.entrance(carry.last, embed)
        key, value = self._key_value(x[None], carry.count)
        keys, values = torch.cat([carry.keys, key], 1), torch.cat([carry.values, value], 1)
        return self._step(Memory(keys, values, x, carry.count + 1))

    def _key_value(self, x: Tensor, place: int) -> tuple[Tensor, Tensor]:
        y = self.norm(x)
        shape = (len(x), self.config.kv_heads, self.config.head_dim)
        places = torch.arange(place, place + len(x), device=x.device)
        return self._turn(self.k(y).view(shape).transpose(0, 1), places), self.v(y).view(shape).transpose(0, 1)

    def _step(self, memory: Memory) -> tuple[Tensor, Memory]:
        """The state after the row whose input is ``memory.last``; what follows starts from the hidden state there."""
        x, c = memory.last, self.config
        place = torch.tensor([memory.count - 1], device=x.device)
        q = self._turn(self.q(self.norm(x)).view(c.heads, 1, c.head_dim), place)
        q = q.view(c.kv_heads, c.heads // c.kv_heads, c.head_dim)
        weights = torch.softmax(torch.matmul(q, memory.keys.transpose(-1, -2)).float() * self._scale, -1)
        x = x + self.o(torch.matmul(weights.to(x.dtype), memory.values).flatten())
        hidden = self.mix(x)
        return self.out(hidden), Memory(memory.keys, memory.values, hidden, memory.count)
