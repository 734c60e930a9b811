"""Drafters with a known hit rate: oracle (all right), anti (all wrong), mix (every third wrong)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from sotscope.decode.contracts import Context, Drafter, Proposal


class Scripted(Drafter):
    """Proposes a known continuation, ``corrupt(position, token)`` of it. ``mode`` is the word written into the run."""

    def __init__(
        self,
        continuation: Sequence[int],
        window: int,
        corrupt: Callable[[int, int], int],
        mode: str = "other",
    ) -> None:
        self.continuation = list(continuation)
        self.window = window
        self.mode = mode
        self._corrupt = corrupt

    def propose(self, context: Context, window: int) -> Proposal:
        start = context.new_tokens
        known = self.continuation[start : start + window]
        ids = [self._corrupt(start + slot, token) for slot, token in enumerate(known)]
        return Proposal(ids=ids, probabilities=[1.0] * len(ids), entropies=[0.0] * len(ids))


def oracle(continuation: Sequence[int], window: int, mode: str = "other") -> Scripted:
    """Always right: ``continuation`` is what greedy `ar` decodes."""
    return Scripted(continuation, window, lambda position, token: token, mode)


def anti(continuation: Sequence[int], window: int, vocab: int, mode: str = "other") -> Scripted:
    """Always wrong: each token plus one."""
    return Scripted(continuation, window, lambda position, token: (token + 1) % vocab, mode)


def mix(continuation: Sequence[int], window: int, vocab: int, mode: str = "other") -> Scripted:
    """Every third token wrong."""
    return Scripted(
        continuation,
        window,
        lambda position, token: (token + 1) % vocab if position % 3 == 2 else token,
        mode,
    )


@torch.inference_mode()
def greedy(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    """The ``count`` tokens that uncached greedy decoding adds: slow, and independent of the decode loop."""
    ids = list(prompt)
    for _ in range(count):
        logits = model(torch.tensor([ids], device=model.device), use_cache=False).logits[0, -1]
        ids.append(int(logits.argmax()))
    return ids[len(prompt) :]
