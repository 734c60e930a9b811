"""Prompts: one BOS, the right words for what is wrong, and token ids as the tokenizer gives them."""

from __future__ import annotations

from typing import Any

import pytest

from sotscope.errors import PromptError
from sotscope.models.prompt import build_prompt
from sotscope.testing.tiny import tiny
from sotscope.testing.tokenizers import byte_tokenizer, metaspace_tokenizer

WITH_BOS = "<s>{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }} {% endfor %}"


@pytest.fixture
def words() -> Any:
    """A tokenizer that puts <s> first by itself, with a chat template that writes <s> as well."""
    tokenizer = metaspace_tokenizer()
    tokenizer.chat_template = WITH_BOS
    return tokenizer


def test_a_template_with_bos_and_a_tokenizer_with_bos_make_one(words: Any) -> None:
    prompt = build_prompt(words, "a b")
    assert prompt.ids.count(1) == 1
    assert prompt.ids[0] == 1
    assert not prompt.warnings


@pytest.mark.parametrize("text", ["a b", "<s>a b", "<s> a b"])
def test_a_raw_prompt_has_one_bos(text: str, words: Any) -> None:
    prompt = build_prompt(words, text, raw=True)
    assert prompt.ids.count(1) == 1
    assert prompt.ids[0] == 1
    assert prompt.segments == ["raw"] * len(prompt.ids)
    assert bool(prompt.warnings) == text.startswith("<s>")


def test_a_bos_of_the_users_own_is_warned_of(words: Any, go: Any) -> None:
    (warning,) = build_prompt(words, "<s>a b").warnings
    assert "a message already starts with <s>" in warning
    run = go(tiny("llama", vocab_size=len(words)), "<s>a b", tokenizer=words, raw=True, max_new_tokens=1)
    assert run.events("config")[0]["warnings"] == ["the prompt already starts with <s>; it is kept once."]
    assert list(run.tokens.ids).count(1) == 1


def test_a_tokenizer_without_bos_adds_none() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.bos_token = None
    for text in ("hi", "<|im_start|>hi"):
        prompt = build_prompt(tokenizer, text)
        assert prompt.ids == tokenizer(text)["input_ids"]
        assert not prompt.warnings


def test_without_a_template_a_prompt_is_raw() -> None:
    prompt = build_prompt(byte_tokenizer(), "hi")
    assert prompt.ids == byte_tokenizer()("hi")["input_ids"]
    assert prompt.segments == ["raw", "raw"]


def test_a_chat_prompt_is_what_transformers_makes_of_it() -> None:
    tokenizer = byte_tokenizer(chat=True)
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yo"},
        {"role": "user", "content": "?"},
    ]
    expected = tokenizer.apply_chat_template(turns, add_generation_prompt=True)["input_ids"]
    assert build_prompt(tokenizer, messages=turns).ids == expected


def test_system_goes_before_the_prompt_and_before_messages() -> None:
    tokenizer = byte_tokenizer(chat=True)
    by_prompt = build_prompt(tokenizer, "hi", system="Be brief.")
    by_messages = build_prompt(tokenizer, messages=[{"role": "user", "content": "hi"}], system="Be brief.")
    assert by_prompt == by_messages
    assert by_prompt.text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi")


CHAT = byte_tokenizer(chat=True)
BARE = byte_tokenizer()


@pytest.mark.parametrize(
    ("tokenizer", "given", "words"),
    [
        (CHAT, {"prompt": ""}, "the prompt is empty"),
        (CHAT, {"prompt": " \n"}, "the prompt is empty"),
        (CHAT, {"prompt": None}, "the prompt is empty"),
        (CHAT, {"prompt": "a", "messages": []}, "either a prompt or messages"),
        (CHAT, {"messages": []}, "the prompt is empty"),
        (CHAT, {"messages": [{"role": "user", "content": " "}]}, "the prompt is empty"),
        (CHAT, {"messages": [{"role": "system", "content": "Be brief."}]}, "the prompt is empty"),
        (CHAT, {"messages": [{"role": "usr", "content": "a"}]}, "message 0 has role 'usr'; there are: system"),
        (CHAT, {"messages": [{"content": "a"}]}, "message 0 has role None"),
        (CHAT, {"messages": [{"role": "user"}]}, "message 0 has no text content"),
        (CHAT, {"messages": [{"role": "user", "content": "a"}], "raw": True}, "leave out --raw"),
        (CHAT, {"prompt": "a", "system": "b", "raw": True}, "needs a chat template"),
        (BARE, {"prompt": "a", "system": "b"}, "needs a chat template"),
        (BARE, {"messages": [{"role": "user", "content": "a"}]}, "no chat template; give a prompt"),
    ],
)
def test_prompts_that_make_no_sense_are_refused_in_one_line(tokenizer: Any, given: dict[str, Any], words: str) -> None:
    with pytest.raises(PromptError) as refusal:
        build_prompt(tokenizer, **given)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_what_the_template_refuses_is_told_in_its_own_words() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('System role not supported') }}"
    with pytest.raises(PromptError, match="the chat template refuses these messages: System role not supported"):
        build_prompt(tokenizer, "hi")


@pytest.mark.parametrize(("text", "words"), [("hello", "without a tokenizer"), ("", "empty"), (None, "empty")])
def test_without_a_tokenizer_a_prompt_is_token_ids(text: str | None, words: str, llama: Any, go: Any) -> None:
    with pytest.raises(PromptError, match=words):
        go(llama, text)
