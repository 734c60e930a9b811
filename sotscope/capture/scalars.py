"""The always-on numbers: what a row's states and logits look like, small enough to keep for every token.

All arithmetic is float32 or wider, whatever the states' type (half precision overflows in a norm).
"""

from __future__ import annotations

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
    with np.errstate(over="ignore", invalid="ignore"):
        norm = np.sqrt(np.vecdot(states, states))
    before = np.empty_like(states)
    before[1:] = states[:-1]
    before[0] = np.nan if previous is None else previous
    before_norm = np.empty_like(norm)
    before_norm[1:] = norm[:-1]
    before_norm[0] = np.nan if previous is None else np.sqrt(np.vecdot(previous, previous))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        cosine = np.vecdot(states, before) / (norm * before_norm)
    finite = np.isfinite(norm)
    nonfinite = np.zeros(norm.shape, np.int32)
    if not finite.all():
        nonfinite = (~np.isfinite(states)).sum(-1, dtype=np.int32)
        overflown = ~finite & (nonfinite == 0)
        norm[overflown] = np.linalg.norm(states[overflown].astype(np.float64), axis=-1)
    return {
        "norm": norm,
        "max_abs": np.abs(states).max(-1),
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
    host = logits.float().cpu().numpy()
    parts = [_logit_facts(host[i : i + 64], chosen[i : i + 64], k) for i in range(0, len(host), 64)]
    if len(parts) == 1:
        return parts[0]
    return LogitFacts(
        {name: np.concatenate([part.scalars[name] for part in parts]) for name in LOGIT_SCALARS},
        np.concatenate([part.top_id for part in parts]),
        np.concatenate([part.top_logprob for part in parts]),
    )


def _logit_facts(logits: NDArray[np.float32], chosen: NDArray[np.int32], k: int) -> LogitFacts:
    # numpy, not torch: for one row the cost is in the number of calls, and numpy's are several times cheaper
    rows, vocab = logits.shape
    kept = min(k, vocab)
    ids = top_k(logits, min(max(k, 2), vocab))  # the margin takes two, however many are kept
    values = np.take_along_axis(logits, ids, -1)
    with np.errstate(all="ignore"):
        weights = logits - values[:, :1]
        np.exp(weights, out=weights)
        total = weights.sum(-1)
        log_total = values[:, 0] + np.log(total)
        # sum p log p; a logit of -inf has weight 0 and must not give 0 * inf
        expected = np.vecdot(weights, logits)
        if not np.isfinite(expected).all():
            expected = np.vecdot(weights, np.maximum(logits, np.finfo(np.float32).min))
        entropy = np.maximum(log_total - expected / total, 0.0)
        picked = np.where(chosen >= 0, logits[np.arange(rows), np.maximum(chosen, 0)] - log_total, np.nan)
        margin = values[:, 0] - values[:, 1] if vocab > 1 else np.full(rows, np.nan)
        top_id = np.full((rows, k), -1, np.int32)
        top_logprob = np.full((rows, k), np.nan, np.float32)
        top_id[:, :kept] = ids[:, :kept]
        top_logprob[:, :kept] = values[:, :kept] - log_total[:, None]
    scalars = {"entropy": entropy, "logprob": picked, "margin": margin}
    return LogitFacts({name: value.astype(np.float32) for name, value in scalars.items()}, top_id, top_logprob)


def top_k(values: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Indices [row, k] of the k largest of ``values [row, vocab]``, largest first.

    The k-th largest of the maxima of blocks is a floor for the k-th largest value, and few values reach it: much less
    work than a partial sort of a large vocabulary.
    """
    rows, vocab = values.shape
    blocks = vocab // _BLOCK
    maxima = values
    if blocks >= k:
        grid = torch.from_numpy(values[:, : blocks * _BLOCK]).view(rows, blocks, _BLOCK)
        maxima = grid.amax(-1).numpy()
    floors = np.partition(maxima, -k, -1)[:, -k]
    return np.stack([_largest(row, floor, k) for row, floor in zip(values, floors, strict=True)])


def _largest(row: NDArray[np.float32], floor: np.float32, k: int) -> NDArray[np.int64]:
    reaching = np.flatnonzero(row >= floor)
    if len(reaching) < k:  # NaN reaches nothing
        reaching = np.arange(len(row))
    found: NDArray[np.int64] = reaching[np.argsort(-row[reaching], kind="stable")[:k]]
    return found


def head_norms(heads: NDArray[np.float32]) -> NDArray[np.float32]:
    """L2 norm of each head's output, ``heads [row, layer, head, head_dim]`` to [row, layer, head]."""
    norms: NDArray[np.float32] = np.sqrt(np.vecdot(heads, heads))
    return norms


def attention_entropy(weights: Tensor) -> Tensor:
    """Entropy (nats) of attention weights [head, query, key] over the keys: [query, head]."""
    weights = weights.float()
    entropy: Tensor = torch.special.entr(weights).sum(-1).T
    return entropy
