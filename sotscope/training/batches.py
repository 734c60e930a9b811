"""Batches of features: whole samples of like length, padded on the right."""

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
    """``states [sample, row, state, dim]``, ``ids [sample, row + slots]`` (0 beyond the end), ``prompt`` and
    ``length`` [sample]. Row i fed ``ids[i]``."""

    states: Tensor
    ids: Tensor
    prompt: Tensor
    length: Tensor

    def target_rows(self, slots: int) -> Tensor:
        """[sample, row, slot]: whether the row that slot predicts is there and chose a token of the answer."""
        rows = torch.arange(self.states.shape[1])[None, :, None]
        aimed = rows + 1 + torch.arange(slots)
        inside = (aimed >= self.prompt[:, None, None] - 1) & (aimed <= self.length[:, None, None] - 2)
        return inside & (rows >= self.prompt[:, None, None] - 2)


def epoch(features: Features, chosen: NDArray[np.int64], rows: int, slots: int, seed: int) -> Iterator[Batch]:
    """All of ``chosen`` once, in an order of ``seed``; a batch has about ``rows`` rows."""
    order = np.random.default_rng(seed)
    lengths = np.diff(features.starts)[chosen]
    noisy = lengths * order.uniform(0.9, 1.1, len(chosen))  # neighbours differ from epoch to epoch
    parts: list[list[int]] = [[]]
    for i in chosen[np.argsort(noisy, kind="stable")]:
        longest = max(int(np.diff(features.starts)[j]) for j in (*parts[-1][:1], *parts[-1][-1:], i))
        if parts[-1] and (len(parts[-1]) + 1) * longest > rows:
            parts.append([])
        parts[-1].append(int(i))
    order.shuffle(parts)
    yield from (load_batch(features, part, slots) for part in parts if part)


def load_batch(features: Features, samples: list[int], slots: int) -> Batch:
    lengths = [features.rows(i).stop - features.rows(i).start for i in samples]
    width = max(lengths)
    states = torch.zeros(len(samples), width, *features.states.shape[1:], dtype=torch.bfloat16)
    ids = torch.zeros(len(samples), width + slots + 1, dtype=torch.long)
    for row, (i, length) in enumerate(zip(samples, lengths, strict=True)):
        states[row, :length] = features.states[features.rows(i)]
        ids[row, :length] = torch.from_numpy(features.ids[features.rows(i)].astype(np.int64))
    return Batch(states, ids, torch.from_numpy(features.prompt[samples].astype(np.int64)), torch.tensor(lengths))
