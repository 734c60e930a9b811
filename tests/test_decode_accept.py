"""The accept rule alone: the model's distribution comes out, whatever was drafted, and never an impossible token."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from sotscope.decode.accept import ACCEPT, RESAMPLE, SAMPLE, Believe, Draws, Exact, Slot

P = np.array([0.5, 0.3, 0.15, 0.05])
TRIALS = 20_000
SIGMA3 = 3 * np.sqrt(P * (1 - P) / TRIALS)


def scores(p: NDArray[np.float64]) -> torch.Tensor:
    with np.errstate(divide="ignore"):
        return torch.tensor(np.log(p), dtype=torch.float32)


def frequencies(slot: Callable[[int], Slot]) -> NDArray[np.float64]:
    exact = Exact(sample=True, draws=Draws(0))
    chosen = [exact.decide(slot(trial))[0] for trial in range(TRIALS)]
    return np.bincount(chosen, minlength=4) / TRIALS


def test_plain_sampling_has_the_models_distribution() -> None:
    found = frequencies(lambda trial: Slot(scores(P), seq=0, position=trial))
    assert (np.abs(found - P) < SIGMA3).all(), found


@pytest.mark.parametrize("draft", [0, 2, 3])
def test_a_certain_draft_leaves_the_models_distribution(draft: int) -> None:
    found = frequencies(lambda trial: Slot(scores(P), seq=0, position=trial, draft=draft))
    assert (np.abs(found - P) < SIGMA3).all(), found


@pytest.mark.parametrize("q", [[0.1, 0.2, 0.3, 0.4], [0.5, 0.3, 0.15, 0.05], [0.0, 0.0, 0.5, 0.5]])
def test_a_drawn_draft_leaves_the_models_distribution(q: list[float]) -> None:
    draws = np.random.default_rng(1).choice(4, TRIALS, p=q)
    distribution = np.array(q, np.float32)
    found = frequencies(
        lambda trial: Slot(scores(P), 0, trial, draft=int(draws[trial]), distribution=distribution)
    )  # fmt: skip
    assert (np.abs(found - P) < SIGMA3).all(), found


def test_a_drafter_with_a_smaller_vocabulary_leaves_the_models_distribution() -> None:
    distribution = np.array([0.5, 0.5], np.float32)  # it knows the first two tokens only
    draws = np.random.default_rng(1).integers(0, 2, TRIALS)
    found = frequencies(lambda trial: Slot(scores(P), 0, trial, draft=int(draws[trial]), distribution=distribution))
    assert (np.abs(found - P) < SIGMA3).all(), found


def test_drafts_are_accepted_as_often_as_they_overlap() -> None:
    q = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    exact = Exact(sample=True, draws=Draws(0))
    draws = np.random.default_rng(1).choice(4, TRIALS, p=q.astype(float) / q.sum(dtype=float))
    taken = [exact.decide(Slot(scores(P), 0, t, draft=int(draws[t]), distribution=q))[1] for t in range(TRIALS)]
    overlap = np.minimum(P, q).sum()
    assert np.mean(taken) == pytest.approx(overlap, abs=3 * np.sqrt(overlap * (1 - overlap) / TRIALS))


WEIGHTS = arrays(np.float64, 6, elements=st.sampled_from([0.0, 1e-9, 0.1, 1.0, 3.0, 3.0000001, 1e6])).filter(np.any)


@settings(max_examples=400)
@given(WEIGHTS, WEIGHTS, st.integers(0, 5), st.booleans(), st.integers(0, 2**31), st.integers(0, 10_000))
def test_only_possible_tokens_come_out(
    p: NDArray[np.float64], q: NDArray[np.float64], draft: int, certain: bool, seed: int, position: int
) -> None:
    p, q = p / p.sum(), q / q.sum()
    slot = Slot(scores(p), 0, position, draft, None if certain else q.astype(np.float32))
    token, accepted = Exact(sample=True, draws=Draws(seed)).decide(slot)
    assert p[token] > 0
    assert accepted == (token == draft) or not accepted
    assert not accepted or p[draft] > 0


class AlmostOne(Draws):
    def uniform(self, seq: int, position: int, purpose: int) -> float:
        return 0.99999


def test_a_drafter_that_knows_the_models_distribution_always_yields_a_token() -> None:
    """Rounding may leave nothing of p - q where both are the same distribution in two precisions."""
    slot = Slot(scores(P), 0, 0, draft=1, distribution=P.astype(np.float32) * np.float32(1.0001))
    token, accepted = Exact(sample=True, draws=AlmostOne(0)).decide(slot)
    assert (token, accepted) == (3, False)


@given(st.integers(0, 5), st.booleans(), st.integers(0, 2**31), st.integers(0, 10_000))
def test_a_right_draft_of_a_certain_model_is_always_accepted(
    token: int, certain: bool, seed: int, position: int
) -> None:
    p = np.eye(6)[token]
    slot = Slot(scores(p), 0, position, token, None if certain else p.astype(np.float32))
    assert Exact(sample=True, draws=Draws(seed)).decide(slot) == (token, True)


@given(arrays(np.float32, 6, elements=st.floats(-50, 50, width=32)), st.integers(0, 5))
def test_greedy_takes_the_likeliest_and_accepts_the_draft_only_if_it_is(
    values: NDArray[np.float32], draft: int
) -> None:
    exact = Exact(sample=False, draws=Draws(0))
    best = int(torch.tensor(values).argmax())
    assert exact.decide(Slot(torch.tensor(values), 0, 0, draft)) == (best, best == draft)
    assert exact.decide(Slot(torch.tensor(values), 0, 0)) == (best, False)


def test_a_given_text_is_believed_even_where_the_model_would_never_write_it() -> None:
    assert Believe(sample=False, draws=Draws(0)).decide(Slot(scores(np.array([1.0, 0.0])), 0, 0, draft=1)) == (1, True)


def test_draws_depend_on_seed_sequence_position_and_purpose_only() -> None:
    found = Draws(3).uniform(1, 7, ACCEPT)
    assert found == Draws(3).uniform(1, 7, ACCEPT)
    others = [Draws(4).uniform(1, 7, ACCEPT), Draws(3).uniform(2, 7, ACCEPT), Draws(3).uniform(1, 8, ACCEPT)]
    others += [Draws(3).uniform(1, 7, SAMPLE), Draws(3).uniform(1, 7, RESAMPLE)]
    assert found not in others
    assert len(set(others)) == 5
    assert all(0 <= value < 1 for value in others)
