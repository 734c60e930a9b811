"""Batches of features: whole samples of like length, or rows from anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sotscope.training.features import Features


@dataclass(frozen=True)
class Batch:
    """What a step of fitting needs; all [sample, row, ...].

    ``states [.., state, dim]``; for each slot the token ``fed [.., slot]`` (chosen at the row, then those after it),
    the true state ``truth [.., slot, dim]`` of the row that feeds it, the token ``target [.., slot]`` chosen there, and
    whether that is there and part of the answer (``wanted``).
    """

    states: Tensor
    fed: Tensor
    truth: Tensor
    target: Tensor
    wanted: Tensor


def epoch(
    features: Features, chosen: NDArray[np.int64], rows: int, slots: int, seed: int, *, alone: bool
) -> Iterator[Batch]:
    """All of ``chosen`` once, in an order of ``seed``, about ``rows`` rows a batch.

    ``alone``: rows of answers in any order, which tells a fit more than as many neighbours; else whole samples.
    """
    order = np.random.default_rng(seed)
    if alone:
        yield from _loose(features, order.permutation(_answer_rows(features, chosen)), rows, slots)
        return
    lengths = np.diff(features.starts)
    noisy = lengths[chosen] * order.uniform(0.9, 1.1, len(chosen))  # neighbours differ from epoch to epoch
    parts: list[list[int]] = [[]]
    for i in chosen[np.argsort(noisy, kind="stable")]:
        longest = max(int(lengths[j]) for j in (*parts[-1], i))
        if parts[-1] and (len(parts[-1]) + 1) * longest > rows:
            parts.append([])
        parts[-1].append(int(i))
    order.shuffle(parts)
    yield from (load_batch(features, part, slots) for part in parts if part)


def batches_per_epoch(features: Features, chosen: NDArray[np.int64], rows: int, *, alone: bool) -> int:
    if alone:
        return -(-len(_answer_rows(features, chosen)) // rows)
    total, count = 1, 0
    for length in np.sort(np.diff(features.starts)[chosen]):
        if count and (count + 1) * length > rows:
            total, count = total + 1, 0
        count += 1
    return total


def load_batch(features: Features, samples: list[int], slots: int) -> Batch:
    """Whole samples, padded on the right; only the rows that ``alone`` would take are wanted."""
    begins, stops = features.starts[samples][:, None], features.starts[np.array(samples) + 1][:, None]
    rows = begins + np.arange(int((stops - begins).max()))
    answers = rows >= begins + features.prompt[samples][:, None] - 2  # past its end a text has no targets anyway
    return _batch(features, np.minimum(rows, stops - 1), stops, slots, answers)


def _answer_rows(features: Features, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """Places of the rows whose next row chose a token of the answer, which there is."""
    spans = [features.rows(int(i)) for i in chosen]
    parts = [
        np.arange(span.start + max(0, features.prompt[i] - 2), span.stop - 2)
        for i, span in zip(chosen, spans, strict=True)
    ]
    return np.concatenate(parts)


def _loose(features: Features, places: NDArray[np.int64], rows: int, slots: int) -> Iterator[Batch]:
    for begin in range(0, len(places), rows):
        at = np.sort(places[begin : begin + rows])[None]  # neighbours on disk are read together
        owner = np.searchsorted(features.starts, at, side="right") - 1
        yield _batch(features, at, features.starts[owner + 1], slots, np.ones(at.shape, bool))


def _batch(
    features: Features, places: NDArray[np.int64], stops: NDArray[np.int64], slots: int, answers: NDArray[np.bool_]
) -> Batch:
    """Rows at ``places [sample, row]`` of texts that end before ``stops [sample, 1 or row]``; ``answers [sample, row]``
    says which of them are to be trained on."""
    ahead = places[..., None] + 1 + np.arange(slots)
    aimed = np.minimum(ahead, stops[..., None] - 1)
    following = np.minimum(aimed + 1, len(features.ids) - 1)
    return Batch(
        states=features.states[torch.from_numpy(places)],
        fed=torch.from_numpy(features.ids[aimed].astype(np.int64)),
        truth=features.states[torch.from_numpy(aimed), -1],
        target=torch.from_numpy(features.ids[following].astype(np.int64)),
        wanted=torch.from_numpy((ahead < stops[..., None] - 1) & answers[..., None]),
    )
