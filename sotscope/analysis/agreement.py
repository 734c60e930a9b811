"""How much of the model's answer survives when final states are replaced by others.

Counted are rows whose likeliest word stays the same, and measured is how far the distribution moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sotscope.analysis.contracts import Pool
from sotscope.analysis.head import Head, load_head, missing
from sotscope.analysis.view import View
from sotscope.errors import AnalysisError

ROWS = 256
"""Rows whose logits are worked out at most."""
STATES = 1024
"""States a task multiplies with the head at a time: 16 MB of logits a block of words."""


def head_for(view: View, width: int | None = None) -> tuple[Head | None, str]:
    """The head that takes final states of ``width`` (if given), or None and why there is none."""
    try:
        head = load_head(view.run)
    except AnalysisError as error:
        return None, str(error)
    if head is None:
        return None, missing(view.run)
    if width not in (None, head.weight.shape[1]):
        return None, f"the head of {view.run.path.name} takes {head.weight.shape[1]} numbers, not {width}."
    return head, ""


def agreement(
    head: Head, true: NDArray[Any], others: Mapping[str, NDArray[Any]], pool: Pool, label: str
) -> pd.DataFrame:
    """One line for each of ``others``: ``top1``, the share of rows whose likeliest word is that of the ``true`` final
    states [n, dim], and ``kl``, the mean KL divergence (true from replaced) in nats.
    """
    stacked = np.stack([true, *others.values()]).astype(np.float32)
    step = max(1, STATES // len(stacked))
    tasks = [stacked[:, start : start + step] for start in range(0, len(true), step)]
    parts = list(pool.map(partial(_compare, head=head), tasks, label))
    same, kl = (np.concatenate(column, axis=1)[1:] for column in zip(*parts, strict=True))
    return pd.DataFrame({"name": list(others), "top1": same.mean(1), "kl": kl.mean(1), "rows": len(true)})


def _compare(states: NDArray[np.float32], head: Head) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Of ``states [variant, n, dim]``: same top word as the first variant, and KL(first, variant); [variant, n].

    Goes over the vocabulary once, with running maxima, so that a head of any size fits.
    """
    shape = states.shape[:2]
    top, best = np.full(shape, -np.inf), np.zeros(shape, np.int64)
    total, apart = np.zeros(shape), np.zeros(shape)
    for start, block in head.blocks(states.reshape(-1, states.shape[-1])):
        logits = block.reshape(*shape, -1)
        highest = logits.max(-1).astype(np.float64)
        best = np.where(highest > top, start + logits.argmax(-1), best)
        above = np.maximum(top, highest)
        shrink = np.exp(top - above)
        share = np.exp(logits - above[..., None].astype(np.float32))
        total = total * shrink + share.sum(-1, dtype=np.float64)
        apart = apart * shrink[0] + (share[0] * (logits[0] - logits)).sum(-1, dtype=np.float64)
        top = above
    log_total = top + np.log(total)
    kl = apart / total[0] - log_total[0] + log_total
    return best == best[0], np.maximum(kl, 0.0)
