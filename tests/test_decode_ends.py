"""Where a text ends: eos in the middle of a block, stop strings, the context, the wanted length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sotscope.errors import DecodeError, PromptError
from sotscope.testing.drafters import greedy, oracle
from sotscope.testing.oracle import check_run
from sotscope.testing.tiny import tiny
from sotscope.testing.tokenizers import byte_tokenizer

PROMPT = [5, 17, 3, 88, 41]


def first_seen(truth: list[int], position: int) -> int:
    """A position from ``position`` on whose token is there for the first time."""
    return next(i for i in range(position, len(truth)) if truth[i] not in truth[:i])


@pytest.mark.parametrize("window", [0, 1, 2, 3, 4, 5, 6, 7, 8])
def test_eos_inside_a_block_ends_the_text(window: int, llama: Any, go: Any) -> None:
    truth = greedy(llama, PROMPT, 20)
    end = first_seen(truth, 5)
    streamed: list[int] = []
    run = go(
        llama,
        max_new_tokens=20,
        eos_token_id=[truth[end]],
        drafter=oracle(truth, window) if window else None,
        on_step=lambda step, recording: streamed.extend(step.next_ids),
    )
    assert run.tokens.all_ids == [*PROMPT, *truth[: end + 1]]
    assert len(run) == 5 + end
    assert streamed[4:] == truth[: end + 1], "a later token was told"
    assert run.info()["outcome"]["finish_reason"] == "eos"
    assert run.info()["outcome"]["new_tokens"] == end + 1
    assert set(run.drafts["reason"]) <= {"accepted", "after_end"}


@pytest.mark.parametrize("window", [0, 4])
def test_any_of_several_eos_ends_the_text(window: int, llama: Any, go: Any) -> None:
    truth = greedy(llama, PROMPT, 20)
    early, late = first_seen(truth, 5), first_seen(truth, 9)
    run = go(
        llama,
        max_new_tokens=20,
        eos_token_id=[96 if 96 not in truth else 95, truth[late], truth[early]],
        drafter=oracle(truth, window) if window else None,
    )
    assert run.tokens.all_ids == [*PROMPT, *truth[: early + 1]]


def test_eos_of_the_models_own_generation_config(go: Any) -> None:
    model = tiny("llama")
    truth = greedy(model, PROMPT, 20)
    end = first_seen(truth, 5)
    model.generation_config.eos_token_id = truth[end]
    assert go(model, max_new_tokens=20).tokens.all_ids == [*PROMPT, *truth[: end + 1]]


def test_what_was_never_decoded_is_not_there(llama: Any, go: Any) -> None:
    truth = greedy(llama, PROMPT, 50)
    end = first_seen(truth, 11)
    short = go(llama, max_new_tokens=50, eos_token_id=[truth[end]])
    exact = go(llama, max_new_tokens=end + 1)
    assert len(short) == len(exact) == 5 + end
    assert np.array_equal(short.states("resid"), exact.states("resid"))
    assert np.array_equal(short.scalars("norm"), exact.scalars("norm"))
    assert short.scalars("norm").min() > 0
    assert not short.info()["alarms"]
    assert np.array_equal(short.to_xarray()["resid"].values, exact.to_xarray()["resid"].values)


@pytest.fixture(scope="module")
def typist() -> tuple[Any, Any]:
    """A model whose tokens are the 256 bytes and that writes small letters only, and its tokenizer."""
    model, tokenizer = tiny("llama", vocab_size=258), byte_tokenizer()
    letters = tokenizer("abcdefghijklmnopqrstuvwxyz")["input_ids"]
    likely = torch.zeros(258, 1)
    likely[letters] = 5.0  # only letters can win
    model.lm_head.weight.data *= likely
    return model, tokenizer


def typed(typist: tuple[Any, Any], count: int) -> str:
    model, tokenizer = typist
    ids = tokenizer("say:")["input_ids"]
    return str(tokenizer.decode(greedy(model, ids, count)))


@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize("length", [1, 3])
def test_a_stop_string_ends_the_text_and_stays_in_it(length: int, window: int, typist: Any, go: Any) -> None:
    model, tokenizer = typist
    text = typed(typist, 20)
    stop = text[6 : 6 + length]  # one token, or several
    end = text.index(stop) + length
    truth = greedy(model, tokenizer("say:")["input_ids"], 20)
    run = go(
        model,
        "say:",
        tokenizer=tokenizer,
        max_new_tokens=20,
        stop=["never there", stop],
        drafter=oracle(truth, window) if window else None,
    )
    outcome = run.info()["outcome"]
    assert outcome["finish_reason"] == "stop_string"
    assert outcome["text"] == text[:end]
    assert run.tokens.generated == text[:end]
    assert len(run) == 4 + end - 1


def test_the_models_own_stop_strings_count(typist: Any, go: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = typist
    text = typed(typist, 20)
    monkeypatch.setattr(model.generation_config, "stop_strings", [text[3]], raising=False)
    run = go(model, "say:", tokenizer=tokenizer, max_new_tokens=20)
    assert run.info()["outcome"]["finish_reason"] == "stop_string"
    assert run.tokens.generated == text[: text.index(text[3]) + 1]
    assert run.events("config")[0]["stop"] == [text[3]]


def test_a_stop_string_that_the_prompt_holds_does_not_count(typist: Any, go: Any) -> None:
    model, tokenizer = typist
    run = go(model, "say:", tokenizer=tokenizer, max_new_tokens=6, stop=["say:"])
    assert run.info()["outcome"]["new_tokens"] == 6


@pytest.mark.parametrize("stop", [["x"], [""]])
def test_stop_strings_that_cannot_work_are_refused(stop: list[str], llama: Any, typist: Any, go: Any) -> None:
    model, tokenizer = typist
    with pytest.raises(DecodeError, match="stop"):
        go(llama, stop=["x"]) if stop == ["x"] else go(model, "say:", tokenizer=tokenizer, stop=stop)


@pytest.mark.parametrize("window", [0, 8])
@pytest.mark.parametrize(("name", "limit"), [("llama", "max_position_embeddings"), ("gpt2", "n_positions")])
def test_decoding_ends_at_the_models_context(name: str, limit: str, window: int, go: Any) -> None:
    model = tiny(name, **{limit: 16})
    truth = greedy(model, PROMPT, 12)
    drafter = oracle([*truth, *range(20)], window) if window else None  # it would go on past the context
    run = go(model, max_new_tokens=50, drafter=drafter)
    assert run.info()["outcome"]["finish_reason"] == "context_limit"
    assert len(run) == 16  # every position has its row; the token after the last cannot be fed
    assert run.tokens.all_ids == [*PROMPT, *truth]
    check_run(model, run)


def test_a_prompt_that_fills_the_context_gets_one_token(go: Any) -> None:
    model = tiny("gpt2", n_positions=5)
    run = go(model, max_new_tokens=3)
    assert run.tokens.all_ids == [*PROMPT, *greedy(model, PROMPT, 1)]
    assert run.info()["outcome"]["finish_reason"] == "context_limit"


def test_a_prompt_longer_than_the_context_is_refused(go: Any, tmp_path: Any) -> None:
    with pytest.raises(PromptError, match=r"the prompt has 5 tokens, the model's context holds 4"):
        go(tiny("gpt2", n_positions=4))
    assert not list(tmp_path.iterdir())
