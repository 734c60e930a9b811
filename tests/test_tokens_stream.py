"""Text as it comes: never half a character, and in the end the same as decoding all at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sotscope.decode.text import TextStream
from sotscope.testing.tiny import tiny
from sotscope.testing.tokenizers import byte_tokenizer, metaspace_tokenizer

BYTES, WORDS = byte_tokenizer(), metaspace_tokenizer()
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def streamed(tokenizer: Any, ids: list[int]) -> list[str]:
    """What each token adds, and at the end what was still held back."""
    stream = TextStream(tokenizer)
    return [*(stream.add(token) for token in ids), stream.finish()]


def decoded(tokenizer: Any, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


@given(TEXT)
def test_bytes_stream_to_the_text_they_spell(text: str) -> None:
    ids = BYTES(text)["input_ids"]
    parts = streamed(BYTES, ids)
    assert "".join(parts) == text
    if "�" not in text:
        assert "�" not in "".join(parts)
        assert parts[-1] == "", "a whole character was held back"
        for end in range(1, len(ids)):
            assert text.startswith("".join(parts[:end]))


@given(st.lists(st.integers(0, 257), max_size=24))
def test_any_bytes_stream_to_what_they_decode_to(ids: list[int]) -> None:
    assert "".join(streamed(BYTES, ids)) == decoded(BYTES, ids)


@given(st.text("abcd xé€😀", max_size=16))
def test_words_and_byte_fallback_stream_to_what_they_decode_to(text: str) -> None:
    ids = WORDS(text)["input_ids"]
    assert "".join(streamed(WORDS, ids)) == decoded(WORDS, ids)


def test_a_character_of_four_tokens_comes_with_the_last() -> None:
    assert streamed(BYTES, BYTES("a😀b")["input_ids"]) == ["a", "", "", "", "😀", "b", ""]


def test_spaces_of_words_are_kept_as_they_come() -> None:
    ids = WORDS("a b c")["input_ids"]
    assert streamed(WORDS, ids) == ["", "a", " b", " c", ""]  # <s> gives none
    assert decoded(WORDS, ids) == "a b c"


def test_special_tokens_give_no_text_and_break_no_character() -> None:
    letter = BYTES("é")["input_ids"]
    assert streamed(BYTES, [*letter, 256, *letter, 257]) == ["", "é", "", "", "é", "", ""]


def test_a_character_that_never_became_whole_shows_as_such_at_the_end() -> None:
    assert streamed(BYTES, BYTES("é")["input_ids"][:1]) == ["", "�"]


def test_without_a_tokenizer_there_is_no_text() -> None:
    assert streamed(None, [1, 2, 3]) == ["", "", "", ""]


@pytest.mark.parametrize("window", [1, 3])
def test_steps_of_a_run_carry_whole_characters_only(window: int, go: Any) -> None:
    told: list[str] = []
    run = go(
        tiny("llama", vocab_size=258),
        "a",
        tokenizer=BYTES,
        force="naïve 😀 text",
        window=window,
        on_step=lambda step, recording: told.append(step.text),
    )
    assert "".join(told) == "naïve 😀 text"
    assert not any("�" in text for text in told)
    assert ("" in told) == (window == 1), "a character of several tokens waits for its last one"
    assert run.tokens.generated == run.info()["outcome"]["text"] == "naïve 😀 text"
