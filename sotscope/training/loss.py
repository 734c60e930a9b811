"""The loss over a reduced vocabulary, in pieces that stay in the processor's cache.

With 8,000 words the logits of a batch would be gigabytes; here each piece's gradient with respect to the predicted
state is worked out at once and its logits are dropped.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

PIECE = 256
"""Rows at a time."""


class HeadLoss(torch.autograd.Function):
    """Cross-entropy of softmax(W state) with a mixture of the model's own distribution and the token that came.

    ``state [n, dim]``; ``goal [row, vocab]`` are the model's own distributions (``goals``) and ``at [n]`` which row of
    them counts (``goal`` None: the token that came is all there is); ``target [n]`` is that token's place in the
    reduced vocabulary (-1: not in it); ``weight [n]``; ``head [vocab, dim]``; ``share``: how much of the mixture is the
    model's distribution (distillation, Hinton et al. 2015, arXiv 1503.02531). The value is the weighted sum of
    -log p(token that came) where it is in the vocabulary; the gradient is that of the mixture.
    """

    @staticmethod
    def forward(
        ctx: Any,
        state: Tensor,
        goal: Tensor | None,
        at: Tensor,
        target: Tensor,
        weight: Tensor,
        head: Tensor,
        share: float,
    ) -> Tensor:
        gradient = torch.empty_like(state)
        total = torch.zeros(())
        for begin in range(0, len(state), PIECE):
            part = slice(begin, begin + PIECE)
            p = torch.softmax(torch.matmul(state[part].to(head.dtype), head.T), -1)
            known = (target[part] >= 0).nonzero()[:, 0]
            word = target[part][known]
            total -= (p[known, word].float().clamp(min=1e-6).log() * weight[part][known]).sum()
            if goal is not None:
                kept = torch.ones(len(p), dtype=p.dtype)
                kept[known] = share
                p.addcmul_(goal[at[part]], kept[:, None], value=-1.0)
            p[known, word] -= 1 - share
            pull = torch.matmul(p, head).to(state.dtype) * weight[part, None].to(state.dtype)
            gradient[part] = pull if goal is not None else pull * (target[part] >= 0)[:, None]
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0].to(gradient.dtype), None, None, None, None, None, None


@torch.no_grad()
def goals(states: Tensor, head: Tensor) -> Tensor:
    """The model's own distributions over the reduced vocabulary [row, vocab], from its true states [row, dim]."""
    out = torch.empty(len(states), len(head), dtype=head.dtype)
    for begin in range(0, len(states), PIECE):
        part = slice(begin, begin + PIECE)
        torch.softmax(torch.matmul(states[part].to(head.dtype), head.T), -1, out=out[part])
    return out
