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
    whether that is there and part of the answer (``wanted``). ``prompt`` and ``length [sample]`` of whole samples.
    """

    states: Tensor
    fed: Tensor
    truth: Tensor
    target: Tensor
    wanted: Tensor
    prompt: Tensor
    length: Tensor


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
    """Whole samples, padded on the right with rows that are not wanted."""
    spans = [features.rows(i) for i in samples]
    width = max(span.stop - span.start for span in spans)
    places = np.stack([np.minimum(span.start + np.arange(width), span.stop - 1) for span in spans])
    prompt = torch.from_numpy(features.prompt[samples].astype(np.int64))
    return _batch(features, places, np.array([span.stop for span in spans])[:, None], samples, prompt, slots)


def _answer_rows(features: Features, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """Places of the rows whose next row chose a token of the answer, which there is."""
    spans = [features.rows(int(i)) for i in chosen]
    parts = [
        np.arange(span.start + max(0, features.prompt[i] - 2), span.stop - 2)
        for i, span in zip(chosen, spans, strict=True)
    ]
    return np.concatenate(parts)


def _loose(features: Features, places: NDArray[np.int64], rows: int, slots: int) -> Iterator[Batch]:
    owner = np.searchsorted(features.starts, places, side="right") - 1
    for begin in range(0, len(places), rows):
        part = slice(begin, begin + rows)
        at = np.sort(places[part])  # neighbours on disk are read together
        mine = np.sort(owner[part])
        yield _batch(features, at[None], features.starts[mine + 1][None], mine.tolist(), torch.zeros(1), slots)


def _batch(
    features: Features,
    places: NDArray[np.int64],
    stops: NDArray[np.int64],
    samples: list[int],
    prompt: Tensor,
    slots: int,
) -> Batch:
    """Rows at ``places [sample, row]``, each of a text that ends before ``stops``; ``samples`` whose they are."""
    ahead = places[..., None] + 1 + np.arange(slots)
    there = ahead < stops[..., None] - 1
    aimed = np.minimum(ahead, stops[..., None] - 1)
    begins = features.starts[samples] + features.prompt[samples]
    begins = begins[None, :, None] if len(places) == 1 and len(samples) == places.shape[1] else begins[:, None, None]
    first = np.concatenate([np.ones((len(places), 1), bool), places[:, 1:] != places[:, :-1]], 1)  # not padding
    wanted = there & (ahead >= begins - 1) & (first[..., None])
    ids = torch.from_numpy(features.ids.astype(np.int64))
    aims = torch.from_numpy(aimed)
    return Batch(
        states=features.states[torch.from_numpy(places)],
        fed=ids[aims],
        truth=features.states[aims, -1],
        target=ids[(aims + 1).clamp(max=len(ids) - 1)],
        wanted=torch.from_numpy(wanted),
        prompt=prompt,
        length=torch.from_numpy((stops[:, 0] - places[:, 0]).astype(np.int64)),
    )
