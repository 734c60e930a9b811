"""The early-warning score: how likely is it that the text loops within the next tokens? Its features.

The features are window statistics of what was generated: how much of it was said before, how sure the model is, and
whether its states come back to where they were. ``sotscope train health`` fits the model.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sotscope.health.contracts import Row
from sotscope.health.early_model import EarlyModel, feature_names

HORIZON = 32
"""A row is a warning in time where the text loops at most so many tokens later."""
EVERY = 4
"""One row in so many is looked at, at positions of the text, so that the width of a step cannot matter."""
LEAST = 16
"""Generated tokens before which nothing is said."""
_GRAMS = (2, 4, 8)
_NEAR, _FAR = 32, 128
_SURE = 64
_RING = 129
_APART = 4
"""Rows so near are alike in every text."""
_KEEP = 0.75
"""What of a running mean is kept from look to look: it spans about 16 tokens."""


class Scorer:
    """One of the scores of a model, ready to be asked."""

    def __init__(self, model: EarlyModel, name: str = "all") -> None:
        score, names = model.scores[name], feature_names(len(model.layers))
        self._places = np.array([names.index(feature) for feature in score.features])
        self._weights, self._bias = np.array(score.weights), score.bias

    def probability(self, features: NDArray[np.float64]) -> float:
        """That the text loops within the next ``HORIZON`` tokens; ``features`` as ``Features`` gives them."""
        logit = self._bias + float(features[self._places] @ self._weights)
        return 1 / (1 + math.exp(-min(max(logit, -60.0), 60.0)))


class Features:
    """Features of one sequence, row by row."""

    def __init__(self) -> None:
        self._said = _Said()
        self._doubt = np.zeros((_SURE, 2))
        """Entropy and surprise of the newest generated rows, in turn."""
        self._states: _Returns | None = None

    def observe(self, row: Row) -> NDArray[np.float64] | None:
        """The features after ``row``, as ``feature_names`` has them; None for rows that are not looked at."""
        assert row.states is not None, "the score needs states"
        states = self._states = self._states or _Returns(*row.states.shape)
        given = row.given or row.next_id < 0
        states.add(row.states, given=given)
        if given:
            return None
        self._said.add(row.next_id)
        self._doubt[(len(self._said.ids) - 1) % _SURE] = row.entropy, -row.logprob
        if row.pos % EVERY != EVERY - 1:
            return None
        returns = states.look()
        if len(self._said.ids) < LEAST:
            return None
        return np.concatenate([self._said.look(), self._doubts(), returns])

    def _doubts(self) -> NDArray[np.float64]:
        count = len(self._said.ids)
        near, far = self._doubt[np.arange(count - LEAST, count) % _SURE], self._doubt[:count]
        found = np.array([*near.sum(0) / LEAST, *far.sum(0) / len(far), np.count_nonzero(near[:, 0] < 0.1) / LEAST])
        return found if np.isfinite(found).all() else np.nan_to_num(found, posinf=0.0, neginf=0.0)


class _Said:
    """What of the generated tokens was said before."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._seen: dict[int, set[tuple[int, ...]]] = {size: set() for size in _GRAMS}
        self._again: dict[int, list[bool]] = {size: [] for size in _GRAMS}
        self._streak = dict.fromkeys(_GRAMS, 0)

    def add(self, token: int) -> None:
        self.ids.append(token)
        for size in _GRAMS:
            gram = tuple(self.ids[-size:])
            seen = self._seen[size]
            again = len(gram) == size and gram in seen
            seen.add(gram)
            self._again[size].append(again)
            self._streak[size] = self._streak[size] + 1 if again else 0

    def look(self) -> NDArray[np.float64]:
        ids, again = self.ids, self._again
        recent = -1 - np.arange(_FAR + _NEAR)  # where nothing is written yet, nothing agrees
        newest = ids[-len(recent) :]
        recent[len(recent) - len(newest) :] = newest
        return np.array(
            [
                *(_share(again[size], _NEAR) for size in _GRAMS), _share(again[2], _FAR), _share(again[4], _FAR),
                math.log1p(self._streak[2]), math.log1p(self._streak[4]),
                len(set(ids[-32:])) / min(32, len(ids)), len(set(ids[-64:])) / min(64, len(ids)),
                _periodic(recent[_NEAR - 16 :], 16), _periodic(recent, _NEAR),
            ]
        )  # fmt: skip


def _share(flags: list[bool], window: int) -> float:
    recent = flags[-window:]
    return sum(recent) / len(recent)


def _periodic(ids: NDArray[np.int64], window: int) -> float:
    """The largest share of the last ``window`` of ``ids`` that are what they were one and the same number before."""
    before = np.arange(_FAR)[:, None] + np.arange(window)
    return int(np.count_nonzero(ids[before] == ids[-window:], 1).max()) / window


class _Returns:
    """Whether states come back to where they were."""

    def __init__(self, watched: int, dim: int) -> None:
        self._ring = np.zeros((watched, _RING, dim), np.float32)
        """Unit vectors of generated rows, without the mean direction of all rows before."""
        self._sum = np.zeros((watched, dim), np.float32)
        self._rows = self._filled = 0
        self._mean = np.zeros(watched)
        self._steady = np.zeros((watched, _RING))

    def add(self, states: NDArray[np.float32], *, given: bool) -> None:
        """``states`` [watched, dim]. Each counts by its direction, so that a sink is one row of many."""
        if not given:
            away = _unit(states)
            if self._rows:
                away = _unit(away - self._sum / np.float32(self._rows))
            self._ring[:, self._filled % _RING] = away
            self._filled += 1
        self._sum += _unit(states)
        self._rows += 1

    def look(self) -> NDArray[np.float64]:
        """[watched * 4]: the features of layer 0, then those of layer 1 ..."""
        cosine = self._cosines()
        self._steady *= _KEEP
        self._steady += (1 - _KEEP) * cosine
        best = cosine[:, _APART:].max(1)
        self._mean = _KEEP * self._mean + (1 - _KEEP) * best
        places = np.arange(max(0, self._filled - _NEAR), self._filled) % _RING
        rank = np.log([_rank(layer[places]) for layer in self._ring])
        return np.stack([best, self._mean, self._steady[:, _APART:].max(1), rank], 1).ravel()

    def _cosines(self) -> NDArray[np.float32]:
        """[watched, distance] between the newest row and that so many rows before; 0 where there is none."""
        newest = (self._filled - 1) % _RING
        cosine = np.stack([layer @ layer[newest] for layer in self._ring])
        return cosine[:, (newest - np.arange(_RING)) % _RING]


def _unit(states: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows of ``states`` [watched, dim] of length 1; of 0 where they are not finite or have no length."""
    with np.errstate(all="ignore"):
        size = np.sqrt(np.vecdot(states, states))[:, None]
        found: NDArray[np.float32] = states / size
    fine = np.isfinite(size) & (size > 0)
    if not fine.all():
        found = np.where(fine, found, np.float32(0))
    return found


def _rank(states: NDArray[np.float32]) -> float:
    """Participation ratio of the spectrum of the centred rows of ``states [row, dim]``; 1 where all are equal."""
    centred = states - states.mean(0)
    gram = centred @ centred.T
    squares = float(np.vdot(gram, gram))
    return float(np.trace(gram)) ** 2 / squares if squares > 1e-9 else 1.0
