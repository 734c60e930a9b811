"""The always-on numbers: what a row's states and logits look like, small enough to keep for every token.

All arithmetic is float32 or wider, whatever the states' type (half precision overflows in a norm).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

LAYER_SCALARS = {"norm": "", "max_abs": "", "nonfinite": "values", "cosine": ""}
LOGIT_SCALARS = {"entropy": "nats", "logprob": "nats", "margin": "nats"}
_BLOCK = 64


def layer_scalars(states: NDArray[np.float32], previous: NDArray[np.float32] | None) -> dict[str, NDArray[Any]]:
    """Per row and layer of ``states [row, layer, dim]``: L2 norm, max-abs, count of non-finite values, and the cosine
    to the row before (``previous [layer, dim]`` for the first one; NaN where there is none).
    """
    norm = np.sqrt(np.einsum("tld,tld->tl", states, states))
    before = np.empty_like(states)
    before[1:] = states[:-1]
    before[0] = np.nan if previous is None else previous
    before_norm = np.empty_like(norm)
    before_norm[1:] = norm[:-1]
    before_norm[0] = np.nan if previous is None else np.sqrt(np.einsum("ld,ld->l", previous, previous))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        cosine = np.einsum("tld,tld->tl", states, before) / (norm * before_norm)
    finite = np.isfinite(norm)
    nonfinite = np.zeros(norm.shape, np.int32)
    if not finite.all():
        nonfinite = (~np.isfinite(states)).sum(-1, dtype=np.int32)
        overflown = ~finite & (nonfinite == 0)
        norm[overflown] = np.linalg.norm(states[overflown].astype(np.float64), axis=-1)
    return {
        "norm": norm,
        "max_abs": np.maximum(states.max(-1), -states.min(-1)),
        "nonfinite": nonfinite,
        "cosine": cosine,
    }


@dataclass(frozen=True)
class LogitFacts:
    """What is kept of a row's distribution: scalars [row], the likeliest tokens' ids and log-probabilities [row, k]."""

    scalars: dict[str, NDArray[np.float32]]
    top_id: NDArray[np.int32]
    top_logprob: NDArray[np.float32]


def no_logits(rows: int, k: int) -> LogitFacts:
    """For rows whose logits were not computed: NaN, and -1 for ids."""
    nothing = np.full(rows, np.nan, np.float32)
    return LogitFacts(
        dict.fromkeys(LOGIT_SCALARS, nothing),
        np.full((rows, k), -1, np.int32),
        np.full((rows, k), np.nan, np.float32),
    )


def logit_facts(logits: Tensor, chosen: NDArray[np.int32], k: int) -> LogitFacts:
    """Entropy (nats), log-probability of the ``chosen [row]`` token (NaN for -1), margin between the two likeliest
    tokens (nats), and the ``k`` likeliest, of the model's own ``logits [row, vocab]`` (before any processor).
    """
    parts = [_logit_facts(logits[i : i + 64].float(), chosen[i : i + 64], k) for i in range(0, len(logits), 64)]
    if len(parts) == 1:
        return parts[0]
    return LogitFacts(
        {name: np.concatenate([part.scalars[name] for part in parts]) for name in LOGIT_SCALARS},
        np.concatenate([part.top_id for part in parts]),
        np.concatenate([part.top_logprob for part in parts]),
    )


def _logit_facts(logits: Tensor, chosen: NDArray[np.int32], k: int) -> LogitFacts:
    k_here = min(k, logits.shape[-1])
    values, ids = top_k(logits, k_here)
    weights = (logits - values[:, :1]).exp_()
    total = weights.sum(-1)
    log_total = values[:, 0] + total.log()
    # sum p log p; a logit of -inf has weight 0 and must not give 0 * inf
    expected = torch.linalg.vecdot(weights, logits)
    if not bool(expected.isfinite().all()):
        expected = (weights * logits.clamp_min(torch.finfo(torch.float32).min)).sum(-1)
    entropy = (log_total - expected / total).clamp_min(0.0)
    index = torch.as_tensor(chosen, dtype=torch.long, device=logits.device)
    picked = logits.gather(-1, index.clamp_min(0)[:, None])[:, 0] - log_total
    picked = torch.where(index >= 0, picked, math.nan)
    margin = values[:, 0] - values[:, 1] if k_here > 1 else torch.full_like(entropy, math.nan)
    top_id = np.full((len(logits), k), -1, np.int32)
    top_logprob = np.full((len(logits), k), np.nan, np.float32)
    top_id[:, :k_here] = ids.cpu().numpy()
    top_logprob[:, :k_here] = (values - log_total[:, None]).cpu().numpy()
    scalars = {"entropy": entropy, "logprob": picked, "margin": margin}
    return LogitFacts({name: value.cpu().numpy() for name, value in scalars.items()}, top_id, top_logprob)


def top_k(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """``torch.topk`` of ``values [row, vocab]``, several times faster on a CPU for a large vocabulary.

    The k largest values lie in the k blocks with the largest maxima, so only those blocks are searched.
    """
    rows, vocab = values.shape
    blocks = vocab // _BLOCK
    if vocab % _BLOCK or blocks <= 4 * k:
        best = values.topk(k, -1)
        return best.values, best.indices
    grid = values.view(rows, blocks, _BLOCK)
    chosen = grid.amax(-1).topk(k, -1).indices
    inside = grid.gather(1, chosen[..., None].expand(-1, -1, _BLOCK)).flatten(1)
    best = inside.topk(k, -1)
    block = chosen.gather(1, best.indices // _BLOCK)
    return best.values, block * _BLOCK + best.indices % _BLOCK


def head_norms(heads: NDArray[np.float32]) -> NDArray[np.float32]:
    """L2 norm of each head's output, ``heads [row, layer, head, head_dim]`` to [row, layer, head]."""
    norms: NDArray[np.float32] = np.sqrt(np.einsum("tlhd,tlhd->tlh", heads, heads))
    return norms


def attention_entropy(weights: Tensor) -> Tensor:
    """Entropy (nats) of attention weights [head, query, key] over the keys: [query, head]."""
    weights = weights.float()
    entropy: Tensor = torch.special.entr(weights).sum(-1).T
    return entropy
