"""What the lens sees in some rows: one pass over the vocabulary, a block of words at a time.

Sums of exponentials are carried from block to block with their running maximum (online softmax, Milakov and
Gimelshein 2018, arXiv 1805.02867), so that no distribution is ever in memory as a whole, whatever the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sotscope.analysis.head import Head
from sotscope.store.reader import Run

VECTORS = 1024
"""States looked at together (rows times layers)."""
WORDS = 512
"""Words of the vocabulary looked at together."""


@dataclass(frozen=True)
class Task:
    """Some rows of a run. ``reference``: the layer of ``resid`` whose distribution is the final one, or the site
    "final"."""

    run: Run
    head: Head
    rows: NDArray[np.int64]
    layers: tuple[int, ...]
    reference: int | str | None
    following: NDArray[np.int64]
    """[row] the token that came next, -1 where none did."""
    recorded: NDArray[np.int64]
    """[row] the likeliest word as it was recorded, -1 where it was not."""
    top: int


@dataclass(frozen=True)
class Seen:
    """[row, layer] in nats; [row, layer, k] the k likeliest words, best first; [row] the final distribution."""

    kl: NDArray[np.float64]
    """KL(final || layer), NaN without a reference."""
    entropy: NDArray[np.float64]
    logprob: NDArray[np.float64]
    """Log-probability of the token that came next."""
    ids: NDArray[np.int64]
    probs: NDArray[np.float64]
    final_id: NDArray[np.int64]
    """The likeliest word of the final distribution, -1 without a reference."""
    final_logprob: NDArray[np.float64]
    recorded_logprob: NDArray[np.float64]
    """[row] what the final distribution gives the word that was recorded as the likeliest."""


def tasks(template: Task) -> list[Task]:
    """``template`` in pieces of about ``VECTORS`` states."""
    step = max(1, VECTORS // (len(template.layers) + 1))
    return [
        Task(
            template.run, template.head, template.rows[start : start + step], template.layers, template.reference,
            template.following[start : start + step], template.recorded[start : start + step], template.top,
        )
        for start in range(0, len(template.rows), step)
    ]  # fmt: skip


def look(task: Task) -> Seen:
    """Every layer of the task's rows through final norm and lm_head."""
    states, at = _inputs(task)
    shape = states.shape[:2]
    peak = np.full(shape, -np.inf, np.float32)
    total, own, cross = (np.zeros(shape) for _ in range(3))
    best = _Best(states.shape[0] * states.shape[1], min(task.top, task.head.vocab))
    for start, flat in task.head.blocks(states.reshape(-1, states.shape[-1]), WORDS):
        best.add(start, flat)
        logits = flat.reshape(*shape, -1)
        higher = np.maximum(peak, logits.max(-1))
        weights = logits - higher[..., None]
        np.exp(weights, out=weights)
        fade = np.exp(peak - higher, dtype=np.float64)
        total = total * fade + weights.sum(-1)
        own = own * fade + np.vecdot(weights, logits)
        cross = cross * fade[at] + np.vecdot(weights[at], logits)
        peak = higher
    log_total = peak + np.log(total)
    kl = (cross[at] - cross) / total[at] - log_total[at] + log_total
    ids, values = best.sorted()
    ids = ids.reshape(*shape, -1)
    logprobs = values.reshape(*shape, -1).astype(np.float64) - log_total[..., None]
    following, recorded = (
        np.where(words >= 0, task.head.of(states, np.clip(words, 0, task.head.vocab - 1)) - log_total, np.nan)
        for words in (task.following, task.recorded)
    )
    kept = slice(len(task.layers))
    known = task.reference is not None
    return Seen(
        kl=np.maximum(kl, 0).T[:, kept] if known else np.full((shape[1], len(task.layers)), np.nan),
        entropy=np.maximum(log_total - own / total, 0).T[:, kept],
        logprob=following.T[:, kept],
        ids=ids.swapaxes(0, 1)[:, kept],
        probs=np.exp(logprobs).swapaxes(0, 1)[:, kept],
        final_id=ids[at, :, 0] if known else np.full(shape[1], -1),
        final_logprob=logprobs[at, :, 0] if known else np.full(shape[1], np.nan),
        recorded_logprob=recorded[at] if known else np.full(shape[1], np.nan),
    )


def _inputs(task: Task) -> tuple[NDArray[np.float32], int]:
    """What the lm_head is given [layer, row, dim], and which layer of it is the final one (-1 at worst).

    The final one stands at the end where it is not one of the task's layers.
    """
    run, head = task.run, task.head
    states = head.normed(run.take("resid", task.rows, layers=task.layers).swapaxes(0, 1))
    if task.reference is None:
        return states, -1
    if isinstance(task.reference, str):
        last = run.take(task.reference, task.rows)
    elif task.reference in task.layers:
        return states, task.layers.index(task.reference)
    else:
        last = head.normed(run.take("resid", task.rows, layer=task.reference))
    return np.concatenate([states, last[None]]), len(task.layers)


class _Best:
    """The k largest logits of each vector so far. Blocks that cannot change them cost a maximum only."""

    def __init__(self, count: int, k: int) -> None:
        self._values = np.full((count, k), -np.inf, np.float32)
        self._ids = np.zeros((count, k), np.int64)

    def add(self, start: int, logits: NDArray[np.float32]) -> None:
        """``logits [vector, word]`` of the words from ``start`` on."""
        k = self._values.shape[1]
        better = np.flatnonzero(logits.max(-1) > self._values.min(-1))
        words = np.broadcast_to(np.arange(start, start + logits.shape[1]), (len(better), logits.shape[1]))
        values = np.concatenate([self._values[better], logits[better]], 1)
        ids = np.concatenate([self._ids[better], words], 1)
        among = np.argpartition(values, -k, axis=1)[:, -k:]
        self._values[better] = np.take_along_axis(values, among, 1)
        self._ids[better] = np.take_along_axis(ids, among, 1)

    def sorted(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Ids and logits [vector, k], largest first."""
        order = np.argsort(-self._values, 1, kind="stable")
        return np.take_along_axis(self._ids, order, 1), np.take_along_axis(self._values, order, 1)
