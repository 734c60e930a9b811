"""The always-on numbers equal what numpy and log_softmax say, across steps, blocks and drafts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sotscope.capture.scalars import layer_scalars, logit_facts, top_k
from sotscope.config import CaptureConfig, RunConfig
from sotscope.testing.drafters import anti, greedy, mix
from sotscope.testing.tiny import tiny

PROMPT = [5, 17, 3, 88, 41]


def expected_logprobs(model: Any, ids: Any) -> np.ndarray:
    with torch.inference_mode():
        logits = model(torch.tensor([list(ids)], dtype=torch.long), use_cache=False).logits[0]
    return torch.log_softmax(logits.double(), -1).numpy()


@pytest.mark.parametrize("kind", ["plain", "anti", "mix"])
def test_norm_max_abs_and_cosine_equal_numpy_across_steps_and_blocks(kind: str, llama: Any, go: Any) -> None:
    truth = greedy(llama, PROMPT, 16)
    drafter = {"plain": None, "anti": anti(truth, 4, 97), "mix": mix(truth, 4, 97)}[kind]
    run = go(llama, max_new_tokens=16, prefill_block=2, drafter=drafter)
    states = run.states("resid").astype(np.float64)
    norm = np.linalg.norm(states, axis=-1)
    cosine = (states[1:] * states[:-1]).sum(-1) / (norm[1:] * norm[:-1])
    assert run.scalars("norm") == pytest.approx(norm, rel=1e-5)
    assert run.scalars("max_abs") == pytest.approx(np.abs(states).max(-1), rel=1e-6)
    assert run.scalars("cosine")[1:] == pytest.approx(cosine, abs=1e-5)
    assert np.isnan(run.scalars("cosine")[0]).all()
    assert not run.scalars("nonfinite").any()


def test_nonfinite_counts_values_and_a_norm_beyond_float32_squares_is_still_finite() -> None:
    states = np.ones((3, 2, 4), np.float32)
    states[1, 0, :3] = [np.nan, np.inf, -np.inf]
    states[2, 1] = 1e30
    found = layer_scalars(states, None)
    assert found["nonfinite"].tolist() == [[0, 0], [3, 0], [0, 0]]
    assert found["norm"][2, 1] == pytest.approx(2e30, rel=1e-6)
    assert found["norm"][0] == pytest.approx([2.0, 2.0])


@pytest.mark.parametrize("kind", ["plain", "mix"])
def test_logit_scalars_and_top_equal_log_softmax_of_the_uncached_forward(kind: str, llama: Any, go: Any) -> None:
    truth = greedy(llama, PROMPT, 16)
    drafter = mix(truth, 4, 97) if kind == "mix" else None
    run = go(llama, max_new_tokens=16, drafter=drafter)
    rows = slice(4, None)  # prompt rows before the last have none
    logprobs = expected_logprobs(llama, run.tokens.ids)[rows]
    ranked = np.sort(logprobs, -1)[:, ::-1]
    assert run.scalars("entropy")[rows] == pytest.approx(-(np.exp(logprobs) * logprobs).sum(-1), abs=1e-4)
    assert run.scalars("margin")[rows] == pytest.approx(ranked[:, 0] - ranked[:, 1], abs=1e-4)
    chosen = run.tokens.next_ids[rows]
    assert run.scalars("logprob")[rows] == pytest.approx(logprobs[np.arange(len(chosen)), chosen], abs=1e-4)
    ids, top = (array[rows] for array in run.top)
    assert top == pytest.approx(ranked[:, :10], abs=1e-4)
    assert np.take_along_axis(logprobs, ids.astype(np.int64), -1) == pytest.approx(top, abs=1e-4)
    assert (ids[:, 0] == chosen).all()


def test_prompt_rows_have_logit_scalars_on_request_only(llama: Any, go: Any) -> None:
    without = go(llama, max_new_tokens=3)
    config = RunConfig(capture=CaptureConfig(prompt_logits=True))
    asked = go(llama, max_new_tokens=3, config=config, prefill_block=2)
    assert np.isnan(without.scalars("entropy")).tolist() == [True] * 4 + [False] * 3
    assert (without.top[0][:4] == -1).all()
    logprobs = expected_logprobs(llama, asked.tokens.ids)
    following = [*asked.tokens.ids[1:], asked.tokens.next_ids[-1]]
    assert asked.scalars("logprob") == pytest.approx(logprobs[np.arange(7), following], abs=1e-4)
    assert (asked.top[0][:, 0] == logprobs.argmax(-1)).all()


def test_as_many_of_the_likeliest_as_asked_for(llama: Any, go: Any) -> None:
    run = go(llama, max_new_tokens=2, config=RunConfig(capture=CaptureConfig(top_k=3)))
    assert run.top[0].shape == (6, 3)


def test_a_vocabulary_smaller_than_top_k_is_padded(go: Any) -> None:
    run = go(tiny("llama", vocab_size=6), "5 1 3", max_new_tokens=2)
    ids, logprobs = (array[-1] for array in run.top)
    assert sorted(ids) == [-1] * 4 + list(range(6))
    assert np.exp(logprobs[:6]).sum() == pytest.approx(1.0, abs=1e-5)
    assert np.isnan(logprobs[6:]).all()


def test_scalars_are_of_the_models_own_logits_before_any_processor(llama: Any, go: Any) -> None:
    run = go(llama, max_new_tokens=6, repetition_penalty=5.0)
    logprobs = expected_logprobs(llama, run.tokens.ids)[4:]
    chosen = run.tokens.next_ids[4:]
    assert run.scalars("logprob")[4:] == pytest.approx(logprobs[np.arange(6), chosen], abs=1e-4)


def test_tokens_that_cannot_be_chosen_do_not_spoil_the_entropy() -> None:
    logits = torch.tensor([[0.0, 0.0, -np.inf, -np.inf]])
    facts = logit_facts(logits, np.array([1], np.int32), 2)
    assert facts.scalars["entropy"] == pytest.approx([np.log(2)])
    assert facts.scalars["logprob"] == pytest.approx([-np.log(2)])
    assert facts.scalars["margin"] == pytest.approx([0.0], abs=1e-7)


def test_a_certain_model_has_no_entropy() -> None:
    facts = logit_facts(torch.tensor([[60.0, 0.0, 1.0, -5.0]]), np.array([0], np.int32), 2)
    assert facts.scalars["entropy"] == pytest.approx([0.0], abs=1e-6)
    assert facts.scalars["logprob"] == pytest.approx([0.0], abs=1e-6)
    assert facts.scalars["margin"] == pytest.approx([59.0])


def test_a_margin_does_not_need_two_candidates_to_be_kept() -> None:
    logits = torch.randn(4, 500, generator=torch.Generator().manual_seed(0))
    chosen = np.array([1, 2, 3, -1], np.int32)
    one, five = logit_facts(logits, chosen, 1), logit_facts(logits, chosen, 5)
    two = logits.topk(2).values
    assert one.scalars["margin"] == pytest.approx((two[:, 0] - two[:, 1]).numpy(), abs=1e-6)
    assert one.top_id.tolist() == five.top_id[:, :1].tolist()
    assert one.top_logprob == pytest.approx(five.top_logprob[:, :1])


def test_logits_far_from_zero_keep_their_entropy() -> None:
    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(0)) * 3
    facts = [logit_facts(logits + shift, np.array([1, 2, 3], np.int32), 5) for shift in (0.0, 300.0, -300.0)]
    for name in ("entropy", "logprob", "margin"):
        for other in facts[1:]:
            assert other.scalars[name] == pytest.approx(facts[0].scalars[name], abs=1e-3), name


@given(
    st.integers(1, 12),
    st.sampled_from([97, 640, 64 * 50, 64 * 50 + 1, 64 * 200]),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1.0, 0.0, 0.02]),
)
def test_fast_top_k_equals_torch(k: int, vocab: int, seed: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(3, vocab, generator=generator)
    values = (values / spread).round() * spread if spread == 0.02 else values * spread  # many ties, or all equal
    ids = top_k(values.numpy(), k)
    assert torch.equal(values.gather(-1, torch.from_numpy(ids)), values.topk(k, -1).values)
    assert all(len(set(row)) == k for row in ids.tolist()), "an id was given twice"


@given(arrays(np.float32, (4, 3, 8), elements=st.floats(-1e4, 1e4, width=32)))
def test_rows_in_two_parts_have_the_scalars_of_rows_in_one(states: np.ndarray) -> None:
    whole = layer_scalars(states, None)
    first, second = layer_scalars(states[:1], None), layer_scalars(states[1:], states[0])
    for name, values in whole.items():
        assert np.array_equal(values, np.concatenate([first[name], second[name]]), equal_nan=True), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_head_norm_equals_numpy(dtype: str, go: Any) -> None:
    run = go(tiny("llama", dtype=dtype), sites=["head_out"], max_new_tokens=8)
    assert run.scalars("head_norm").shape == (12, 4, 4)
    assert run.scalars("head_norm") == pytest.approx(np.linalg.norm(run.states("head_out"), axis=-1), rel=1e-5)


def test_head_norm_is_there_only_with_head_out(llama: Any, go: Any) -> None:
    assert "head_norm" not in go(llama, max_new_tokens=1).scalar_names
