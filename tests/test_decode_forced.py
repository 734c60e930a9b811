"""A given text is fed word for word, in every dtype and on every architecture, and its rows are true."""

from __future__ import annotations

from typing import Any

import pytest

from sotscope.decode.drafters.forced import Forced
from sotscope.errors import DecodeError
from sotscope.testing.oracle import check_run
from sotscope.testing.tiny import tiny
from sotscope.testing.tokenizers import byte_tokenizer

TEXT = [(11 * i + 2) % 97 for i in range(19)]


@pytest.mark.parametrize("window", [0, 1, 4, 32])
@pytest.mark.parametrize("name", ["llama", "mistral-sliding", "mamba"])
def test_a_forced_text_has_true_rows(name: str, window: int, go: Any) -> None:
    model = tiny(name)
    run = go(model, drafter=Forced(TEXT, window))
    assert run.tokens.all_ids == [5, 17, 3, 88, 41, *TEXT]
    assert len(run) == 5 + 19 - 1
    assert run.info()["outcome"]["finish_reason"] == "end_of_text"
    assert run.info()["outcome"]["new_tokens"] == 19
    assert run.tokens.modes[4:] == ["forced"] * 19
    check_run(model, run)


def test_two_dtypes_are_fed_the_same_text(go: Any) -> None:
    tokenizer = byte_tokenizer()
    runs = [
        go(tiny("llama", vocab_size=258, dtype=dtype), "Say: ", tokenizer=tokenizer, force="naïve text", window=3)
        for dtype in ("float32", "bfloat16")
    ]
    assert runs[0].tokens.all_ids == runs[1].tokens.all_ids
    for run in runs:
        assert run.tokens.generated == "naïve text"
        assert run.tokens.text == "Say: naïve text"
        assert run.info()["outcome"]["text"] == "naïve text"
        assert run.info()["outcome"]["mode"] == "forced"
        assert run.info()["outcome"]["finish_reason"] == "end_of_text"
        assert len(run) == 5 + 11 - 1


def test_eos_stop_strings_and_max_new_tokens_do_not_cut_a_given_text(go: Any) -> None:
    model, tokenizer = tiny("llama", vocab_size=258), byte_tokenizer()
    model.generation_config.eos_token_id = tokenizer("b")["input_ids"][0]
    run = go(model, "a", tokenizer=tokenizer, force="abcabc", stop=["ca"], max_new_tokens=2)
    assert run.tokens.generated == "abcabc"


def test_the_rows_say_how_likely_the_given_tokens_were(llama: Any, go: Any) -> None:
    run = go(llama, drafter=Forced(TEXT))
    assert run.scalars("logprob")[4:].max() < 0
    surprising = run.top[0][4:, 0] != TEXT
    assert surprising.any()
    assert (run.scalars("logprob")[4:][surprising] < run.top[1][4:, 0][surprising]).all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mode": "forced"}, "needs a text"),
        ({"force": ""}, "empty"),
        ({"mode": "forced", "force": "text"}, "tokenizer"),
    ],
)
def test_what_cannot_be_forced_is_refused(settings: dict[str, Any], words: str, go: Any) -> None:
    model = tiny("llama", vocab_size=258)
    tokenizer = None if words == "tokenizer" else byte_tokenizer()
    with pytest.raises(DecodeError, match=words):
        go(model, "5 17" if tokenizer is None else "a", tokenizer=tokenizer, **settings)


def test_a_text_longer_than_the_context_ends_there(go: Any) -> None:
    model = tiny("llama", max_position_embeddings=12)
    run = go(model, drafter=Forced(TEXT, 4))
    assert run.info()["outcome"]["finish_reason"] == "context_limit"
    assert run.tokens.all_ids == [5, 17, 3, 88, 41, *TEXT[:8]]
    assert len(run) == 12


def test_a_window_for_a_mode_that_drafts_nothing_is_refused(go: Any, llama: Any) -> None:
    with pytest.raises(DecodeError, match="window"):
        go(llama, window=4)
