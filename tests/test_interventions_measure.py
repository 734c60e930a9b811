"""The direct effect of interventions on a row: the same token on the same cache, with them and without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.special import log_softmax

from sotscope.capture.intervening import Intervening
from sotscope.capture.measure import EFFECTS, Measure, effect
from sotscope.capture.plan import hook_counts
from sotscope.decode.cache import CachedModel
from sotscope.testing.interventions import rows_of

IDS = [5, 17, 3, 88, 41, 9, 60, 2, 7, 30, 11, 12]


@given(*[arrays(np.float32, 9, elements=st.floats(-80, 80, width=32))] * 2)
def test_effect_is_the_divergence_in_nats(one: NDArray[np.float32], other: NDArray[np.float32]) -> None:
    with_, without = log_softmax(one.astype(float)), log_softmax(other.astype(float))
    found = effect(*map(torch.from_numpy, (one, other, one, other)))
    assert found["kl"] == pytest.approx(float((np.exp(with_) * (with_ - without)).sum()), rel=1e-6, abs=1e-9)
    assert found["top1_changed"] == float(one.argmax() != other.argmax())
    assert found["kl"] >= 0


def test_known_effects() -> None:
    half = torch.tensor([0.5, 0.5]).log()
    certain = torch.tensor([0.75, 0.25]).log()
    state = torch.tensor([3.0, 4.0])
    found = effect(certain, half, 2 * state, state)
    assert found == pytest.approx(
        {"kl": 0.75 * np.log(1.5) + 0.25 * np.log(0.5), "top1_changed": 0.0, "state_distance": 1}
    )
    assert effect(half, half, state, state) == {"kl": 0.0, "top1_changed": 0.0, "state_distance": 0.0}
    banned = torch.tensor([float("-inf"), 0.0])
    assert effect(banned, half, state, state)["kl"] == pytest.approx(np.log(2))
    assert set(found) == set(EFFECTS)


def test_what_is_not_finite_gives_no_number() -> None:
    good, bad = torch.tensor([0.0, 1.0]), torch.tensor([float("nan"), 1.0])
    assert all(np.isnan(value) for value in effect(bad, good, bad, good).values())


def test_a_row_is_measured_on_the_same_cache_and_decoding_goes_on_as_if_nothing_was(llama: Any) -> None:
    configs = ["steer:dim=0,value=4,layers=1,tokens=8-10", "interpolate:layers=2,tokens=8-"]
    before = hook_counts(llama)
    cached = CachedModel(llama)
    found: dict[int, dict[str, float]] = {}
    logits: dict[int, Any] = {}
    with torch.inference_mode(), Intervening(llama, configs, 5) as engine, Measure(engine) as measure:
        cached.forward(IDS[:6])
        for pos in range(6, len(IDS), 2):

            def alone(pos: int = pos) -> Any:
                row = cached.forward(IDS[pos : pos + 1])
                cached.keep(1)
                return row

            measure.without(pos, alone)
            logits[pos] = cached.forward(IDS[pos : pos + 2])
            found[pos] = measure.effect(logits[pos])
        whole = llama(torch.tensor([IDS]), use_cache=False).logits[0]
    assert hook_counts(llama) == before
    assert torch.allclose(torch.cat(list(logits.values())), whole[6:], atol=1e-4)
    assert found[6] == dict.fromkeys(EFFECTS, 0.0)
    # of the row at 8 all earlier ones are unchanged: one forward without interventions is the truth
    with torch.inference_mode():
        plain = llama(torch.tensor([IDS]), use_cache=False).logits[0]
    changed, same = (rows_of(llama, IDS, some, ["resid"])["resid"][8, -1] for some in (configs, []))
    expected = effect(whole[8], plain[8], torch.tensor(changed), torch.tensor(same))
    assert found[8] == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert found[8]["kl"] > 0.01
    assert found[10]["state_distance"] > 0.01
