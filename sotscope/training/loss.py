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

    ``state [n, dim]`` are predicted, ``truth [n, dim]`` the model's own; ``target [n]`` is the place of the token that
    came in the reduced vocabulary (-1: not in it); ``weight [n]``; ``head [vocab, dim]``; ``share`` is how much of the
    mixture is softmax(W truth) (distillation, Hinton et al. 2015, arXiv 1503.02531). The value is the weighted sum of
    -log p(token that came) where it is in the vocabulary; the gradient is that of the mixture.
    """

    @staticmethod
    def forward(
        ctx: Any, state: Tensor, truth: Tensor, target: Tensor, weight: Tensor, head: Tensor, share: float
    ) -> Tensor:
        gradient = torch.empty_like(state)
        total = torch.zeros(())
        for begin in range(0, len(state), PIECE):
            part = slice(begin, begin + PIECE)
            p = torch.softmax(torch.matmul(state[part].to(head.dtype), head.T), -1)
            known = target[part] >= 0
            rows, word = known.nonzero()[:, 0], target[part][known]
            total -= (p[rows, word].float().clamp(min=1e-6).log() * weight[part][known]).sum()
            if share:
                goal = torch.softmax(torch.matmul(truth[part].to(head.dtype), head.T), -1)
                # without its token a row has the model's distribution alone to learn from
                p.addcmul_(goal, torch.where(known, share, 1.0).to(p.dtype)[:, None], value=-1.0)
            p[rows, word] -= 1 - share
            pull = torch.matmul(p, head).to(state.dtype) * weight[part, None].to(state.dtype)
            gradient[part] = pull if share else pull * known[:, None]
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0].to(gradient.dtype), None, None, None, None, None


def native_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the device multiplies it natively, else float32."""
    half = device.type != "cpu" or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if half else torch.float32
