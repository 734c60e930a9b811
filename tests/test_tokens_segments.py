"""Whose turn every token is: of the prompt through any template, of the generated text through its thoughts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sotscope.models.prompt import Segmenter, build_prompt
from sotscope.testing.tiny import tiny
from sotscope.testing.tokenizers import CHAT, byte_tokenizer

DEFAULT = "You are a helpful assistant."
INJECTS = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\n" + DEFAULT + "<|im_end|>\n{% endif %}" + CHAT
)  # as SmolLM2 and Qwen2 do
INSTRUCT = (
    "<|im_start|>{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] | trim }} [/INST]"
    "{% else %} {{ m['content'] }}<|im_end|>{% endif %}{% endfor %}"
)  # as Llama 2 and Mistral do: no special token closes the user's turn
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHAT


def parts(template: str, turns: list[tuple[str, str]], tokenizer: Any = None) -> list[tuple[str, str]]:
    """The prompt as runs of one segment: (segment, text)."""
    tokenizer = tokenizer or byte_tokenizer()
    tokenizer.chat_template = template
    prompt = build_prompt(tokenizer, messages=[{"role": role, "content": content} for role, content in turns])
    found: list[tuple[str, list[int]]] = []
    for token, segment in zip(prompt.ids, prompt.segments, strict=True):
        if not found or found[-1][0] != segment:
            found.append((segment, []))
        found[-1][1].append(token)
    return [(segment, tokenizer.decode(ids)) for segment, ids in found]


ANSWER = ("assistant", "\n<|im_start|>assistant\n")


def test_each_turn_has_its_markup_up_to_its_closing_mark() -> None:
    turns = [("system", "Be brief."), ("user", "hi"), ("assistant", "yo"), ("user", "why?")]
    assert parts(CHAT, turns) == [
        ("system", "<|im_start|>system\nBe brief.<|im_end|>"),
        ("user", "\n<|im_start|>user\nhi<|im_end|>"),
        ("assistant", "\n<|im_start|>assistant\nyo<|im_end|>"),
        ("user", "\n<|im_start|>user\nwhy?<|im_end|>"),
        ANSWER,
    ]


def test_a_system_message_that_the_template_adds_is_the_systems() -> None:
    assert parts(INJECTS, [("user", "hi")]) == [
        ("system", f"<|im_start|>system\n{DEFAULT}<|im_end|>"),
        ("user", "\n<|im_start|>user\nhi<|im_end|>"),
        ANSWER,
    ]
    assert parts(INJECTS, [("system", "Be brief."), ("user", "hi")])[0][1] == "<|im_start|>system\nBe brief.<|im_end|>"


TRICKY = ["a", "m", "s", "user", "im_start", "|", "assistant", "system", DEFAULT, "You", " hi ", "hi\n\n", "<|im_end|>"]


@pytest.mark.parametrize("template", [CHAT, INJECTS, NO_SYSTEM])
@pytest.mark.parametrize("content", TRICKY)
def test_a_content_that_looks_like_markup_is_not_taken_for_it(content: str, template: str) -> None:
    user = ("user", f"<|im_start|>user\n{content}<|im_end|>")
    found = parts(template, [("user", content)])
    if template is INJECTS:
        assert found.pop(0)[0] == "system"
        user = ("user", "\n" + user[1])
    assert found == [user, ANSWER]


def test_turns_that_say_the_same_are_told_apart() -> None:
    found = parts(CHAT, [("user", "hi"), ("assistant", "hi"), ("user", "hi")])
    assert [segment for segment, _ in found] == ["user", "assistant", "user", "assistant"]
    assert all("hi" in text for _, text in found[:3])


@pytest.mark.parametrize("content", ["hi", "I", "INST", "T] ["])
def test_a_turn_without_a_closing_mark_ends_with_its_content(content: str) -> None:
    assert parts(INSTRUCT, [("user", content), ("assistant", "yo"), ("user", content)]) == [
        ("user", f"<|im_start|>[INST] {content}"),
        ("assistant", " [/INST] yo<|im_end|>"),
        ("user", f"[INST] {content}"),
        ("assistant", " [/INST]"),
    ]


def test_a_template_that_leaves_old_thoughts_out_has_its_turns_in_order() -> None:
    forgets = CHAT.replace("m['content']", "m['content'].split('END')[-1]")
    assert parts(forgets, [("user", "hi"), ("assistant", "hm, hi? END yo"), ("user", "why?")]) == [
        ("user", "<|im_start|>user\nhi<|im_end|>"),
        ("assistant", "\n<|im_start|>assistant\n yo<|im_end|>"),
        ("user", "\n<|im_start|>user\nwhy?<|im_end|>"),
        ANSWER,
    ]


def test_a_template_that_rewrites_everything_still_gives_a_segment_to_every_token() -> None:
    shouts = CHAT.replace("m['content']", "m['content'] | upper")
    found = parts(shouts, [("user", "hi"), ("assistant", "yo")])
    assert {segment for segment, _ in found} <= {"user", "assistant"}
    assert "".join(text for _, text in found).startswith("<|im_start|>user\nHI")


@given(st.lists(st.text("ai m<|_>s\nuser", min_size=1, max_size=8).filter(str.strip), min_size=1, max_size=4))
def test_segments_of_any_contents_follow_the_turns(contents: list[str]) -> None:
    roles = [("user", "assistant")[number % 2] for number in range(len(contents))]
    found = parts(CHAT, list(zip(roles, contents, strict=True)))
    if roles[-1] == "assistant":  # the header of the answer joins the turn before it
        assert found.pop()[1].endswith(ANSWER[1])
        roles, contents = roles[:-1], contents[:-1]
    else:
        assert found.pop() == ANSWER
    assert [segment for segment, _ in found] == roles
    for (_, text), content in zip(found, contents, strict=True):
        assert text.endswith(f"\n{content}<|im_end|>")


def test_tokens_of_tools_are_theirs() -> None:
    found = parts(CHAT, [("user", "time?"), ("tool", "12:00")])
    assert [segment for segment, _ in found] == ["user", "tool", "assistant"]


def test_what_the_model_writes_is_generated(go: Any) -> None:
    tokenizer = byte_tokenizer(chat=True)
    run = go(tiny("llama", vocab_size=258, max_position_embeddings=256), "hi", tokenizer=tokenizer, force="yo!")
    segments = run.tokens.segments
    opening = len("\n<|im_start|>assistant\n") - len("<|im_start|>") + 1
    assert segments[-2:] == ["generated"] * 2  # the last token was never fed
    assert segments[-2 - opening : -2] == ["assistant"] * opening
    assert set(segments[: -2 - opening]) == {"user"}


def test_thoughts_are_told_from_what_is_said(go: Any) -> None:
    tokenizer = byte_tokenizer(chat=True, thinking=True)
    model = tiny("llama", vocab_size=260, max_position_embeddings=256)
    run = go(model, "hi", tokenizer=tokenizer, force="a<think>bc</think>de")
    assert run.tokens.segments[-6:] == ["generated", "think", "think", "think", "think", "generated"]


def test_a_thought_that_the_template_opens_goes_on_in_the_answer() -> None:
    tokenizer = byte_tokenizer(thinking=True)
    opened, closed = (tokenizer.convert_tokens_to_ids(mark) for mark in ("<think>", "</think>"))
    segmenter = Segmenter(tokenizer)
    segmenter.start([5, opened, 6])
    assert [segmenter.add(token) for token in (7, closed, 8)] == ["think", "think", "generated"]
    segmenter.start([opened, 6, closed])
    assert segmenter.add(7) == "generated"


def test_without_a_tokenizer_nothing_is_a_thought() -> None:
    segmenter = Segmenter(None)
    segmenter.start([1, 2])
    assert [segmenter.add(token) for token in (-1, 3)] == ["generated", "generated"]
