"""Batched text of a model, for training: fast, left-padded, and not the decode loop (nothing of it is recorded)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

TOP_K = 50
"""Sampled text is drawn from this many likeliest tokens: with all of them a small model wanders off."""


@torch.inference_mode()
def continue_batch(
    model: Any,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    stop: frozenset[int],
    *,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
    repetition_penalty: float = 1.0,
) -> list[list[int]]:
    """Up to ``new_tokens`` tokens after each prompt, the token of ``stop`` that ended it included.

    ``temperature`` 0 is greedy. ``repetition_penalty`` makes every token that is in the prompt or the text less likely,
    as transformers does (Keskar et al. 2019, arXiv 1909.05858). Rows that have ended leave the batch.
    """
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    cache: Any = DynamicCache(config=model.config)
    out: list[list[int]] = [[] for _ in prompts]
    alive = list(range(len(prompts)))
    fed, positions = ids, (mask.cumsum(-1) - 1).clamp(min=0)
    used = _used(prompts, model) if repetition_penalty != 1 else None
    for _ in range(new_tokens):
        logits = model(
            fed, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True, logits_to_keep=1
        ).logits[:, -1]
        scores = logits.float()
        if used is not None:
            scores = torch.where(used, _penalised(scores, repetition_penalty), scores)
        chosen = _choose(scores, temperature, generator)
        for row, token in zip(alive, chosen.tolist(), strict=True):
            out[row].append(token)
        going = [i for i, row in enumerate(alive) if out[row][-1] not in stop]
        if not going:
            break
        if len(going) < len(alive):
            keep = torch.tensor(going)
            cache.batch_select_indices(keep)
            mask, positions, chosen = mask[keep], positions[keep], chosen[keep]
            used = None if used is None else used[keep]
            alive = [alive[i] for i in going]
        fed = chosen[:, None]
        if used is not None:
            used.scatter_(1, fed, value=True)
        mask = torch.cat([mask, mask.new_ones(len(alive), 1)], 1)
        positions = positions[:, -1:] + 1
    return out


def _used(prompts: Sequence[Sequence[int]], model: Any) -> Tensor:
    """Which tokens are in each prompt [prompt, vocab]."""
    used = torch.zeros(len(prompts), model.config.get_text_config().vocab_size, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        used[row, list(prompt)] = True
    return used


def _penalised(scores: Tensor, penalty: float) -> Tensor:
    return torch.where(scores < 0, scores * penalty, scores / penalty)


def _choose(logits: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    if temperature <= 0:
        return logits.argmax(-1)
    best, ids = logits.topk(min(TOP_K, logits.shape[-1]), -1)
    drawn = torch.multinomial(torch.softmax(best / temperature, -1), 1, generator=generator)
    return ids.gather(-1, drawn)[:, 0]
