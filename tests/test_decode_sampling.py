"""Sampled text: repeats exactly with its seed, and has the model's own distribution, drafted or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sotscope.decode.drafters.ar import Plain
from sotscope.decode.loop import Decoder
from sotscope.decode.sampling import Sampler
from sotscope.testing.drafters import Scripted
from sotscope.testing.oracle import check_run
from sotscope.testing.tiny import tiny

PROMPT = [5, 17, 3, 88, 41]
HOT: dict[str, Any] = {"temperature": 1.3, "top_k": 0, "max_new_tokens": 16}


def test_the_same_seed_repeats_and_another_one_does_not(llama: Any, go: Any) -> None:
    first, again, other = (go(llama, seed=seed, **HOT) for seed in (3, 3, 4))
    assert first.tokens.all_ids == again.tokens.all_ids
    assert np.array_equal(first.states("resid"), again.states("resid"))
    assert first.tokens.all_ids != other.tokens.all_ids
    check_run(llama, first)


@pytest.mark.parametrize("block", [1, 2, 3])
def test_the_width_of_prefill_blocks_does_not_matter(block: int, llama: Any, go: Any) -> None:
    whole = go(llama, seed=3, **HOT)
    assert go(llama, seed=3, prefill_block=block, **HOT).tokens.all_ids == whole.tokens.all_ids


def test_a_text_taken_up_in_the_middle_goes_on_the_same_way(llama: Any, go: Any) -> None:
    whole = go(llama, seed=3, **HOT).tokens.all_ids
    for cut in (6, 9, 20):
        rest = go(llama, " ".join(map(str, whole[:cut])), seed=3, **{**HOT, "max_new_tokens": 21 - cut})
        assert rest.tokens.all_ids == whole


def test_top_k_1_is_greedy(llama: Any, go: Any) -> None:
    assert go(llama, max_new_tokens=12, top_k=1).tokens.all_ids == go(llama, max_new_tokens=12).tokens.all_ids


def test_top_k_and_top_p_keep_to_the_likeliest(llama: Any, go: Any) -> None:
    run = go(llama, max_new_tokens=30, temperature=1.0, top_k=3, seed=1)
    ids, chosen = run.top[0][4:, :3], run.tokens.next_ids[4:]
    assert (ids == chosen[:, None]).any(-1).all()
    assert (ids[:, 0] != chosen).any(), "nothing was sampled"
    narrow = go(llama, max_new_tokens=12, top_p=1e-6, top_k=0, seed=1)
    assert (narrow.top[0][4:, 0] == narrow.tokens.next_ids[4:]).all()


class Silent:
    """A sink that listens to nothing."""

    def on_step(self, step: Any) -> None: ...

    def on_alarm(self, alarm: Any) -> None: ...

    def on_command(self, command: Any) -> None: ...


def sampled(model: Any, drafter: Any, seed: int, count: int) -> list[int]:
    sampler = Sampler(model, 3, overrides={"do_sample": True, "top_k": 0})
    decoder = Decoder(model, drafter, sampler, sink=Silent(), seed=seed, max_new_tokens=count)
    return [token for step in decoder.run([1, 2, 3]) if step.mode != "prompt" for token in step.next_ids]


@pytest.mark.parametrize("kind", ["plain", "drafted"])
def test_sampled_tokens_have_the_models_distribution(kind: str) -> None:
    model = tiny("llama", vocab_size=6, num_hidden_layers=2)
    trials, count = 600, 2
    with torch.inference_mode():
        first = torch.softmax(model(torch.tensor([[1, 2, 3]])).logits[0, -1], -1).numpy()
        after = torch.softmax(model(torch.tensor([[1, 2, 3, t] for t in range(6)])).logits[:, -1], -1).numpy()
    likely = int(first.argmax())
    drafter = Plain() if kind == "plain" else Scripted([likely, 4], 1, lambda position, token: token)
    found = np.array([sampled(model, drafter, seed, count) for seed in range(trials)])
    assert found.shape == (trials, count)
    for position, expected in enumerate((first, first @ after)):
        frequency = np.bincount(found[:, position], minlength=6) / trials
        spread = np.sqrt(expected * (1 - expected) / trials)
        assert (np.abs(frequency - expected) < 3.5 * spread + 1e-3).all(), (position, frequency, expected)
