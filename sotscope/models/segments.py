"""Whose turn each part of a rendered chat is. Knows no template: it renders the turns again and compares.

A turn's closing mark is the turn's; what follows it is the next one's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sotscope.errors import PromptError

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""Roles of messages, and the segment that each one's tokens are."""

Turns = Sequence[dict[str, Any]]


def render(tokenizer: Any, turns: Turns) -> str:
    """The chat template's text. Raises PromptError where the template refuses."""
    try:
        text: str = tokenizer.apply_chat_template(list(turns), tokenize=False, add_generation_prompt=True)
    except Exception as error:
        raise PromptError(f"the chat template refuses these messages: {' '.join(str(error).split())}") from error
    return text


def segment_bounds(tokenizer: Any, turns: Turns, text: str, marks: Sequence[int]) -> list[tuple[int, str]]:
    """(first character, segment) of ``text``, in order. ``marks`` are where its special tokens end."""
    contents = _contents(tokenizer, turns, text)
    bounds: list[tuple[int, str]] = []
    begin = 0
    injected = _injected_system(tokenizer, turns, text)
    if injected:
        bounds.append((0, "system"))
        begin = _closing(marks, injected, contents[0][0])
    following = [*(start for start, _ in contents[1:]), len(text)]
    for turn, (_, end), limit in zip(turns, contents, following, strict=True):
        bounds.append((begin, ROLES[turn["role"]]))
        begin = _closing(marks, end, limit)
    return [*bounds, (begin, "assistant")]


def _closing(marks: Sequence[int], end: int, limit: int) -> int:
    """The end of the first special token between the end of a content and the next one's start, else that end."""
    return next((mark for mark in marks if end < mark <= limit), end)


def _contents(tokenizer: Any, turns: Turns, text: str) -> list[tuple[int, int]]:
    """Where the content of each turn stands in ``text``.

    The markup between them is what the template puts between contents of our own; looking for the content itself would
    find a short one in the markup.
    """
    probes = [f"sotscope turn {number} probe" for number in range(len(turns))]
    try:
        other = render(tokenizer, [{**turn, "content": probe} for turn, probe in zip(turns, probes, strict=True)])
    except PromptError:
        return _found(turns, text)
    gaps: list[str] = []
    for probe in probes:
        gap, found, other = other.partition(probe)
        if not found:
            return _found(turns, text)
        gaps.append(gap)
    spans: list[tuple[int, int]] = []
    cursor = 0
    for turn, gap, after in zip(turns, gaps, [*gaps[1:], other], strict=True):
        start = cursor + len(gap)
        whole, stripped = turn["content"], turn["content"].strip()
        ends = [start + len(content) for content in (whole, stripped) if text.startswith(content + after, start)]
        # a template may shorten a content (leave an old thought out); then what comes after it says where it ends
        cursor = ends[0] if ends else text.find(after, start) if after else len(text)
        if text[start - len(gap) : start] != gap or cursor < 0:
            return _found(turns, text)
        spans.append((start, cursor))
    return spans


def _found(turns: Turns, text: str) -> list[tuple[int, int]]:
    """Contents by search, where the template treats some contents in a way of its own."""
    spans: list[tuple[int, int]] = []
    cursor = 0
    for turn in turns:
        content = turn["content"].strip()
        start = text.find(content, cursor) if content else cursor
        start = start if start >= 0 else cursor
        cursor = start + len(content) if text.startswith(content, start) else start
        spans.append((start, cursor))
    return spans


def _injected_system(tokenizer: Any, turns: Turns, text: str) -> int:
    """Where the text of a system message ends that the template adds by itself; 0 if it adds none.

    Found by rendering the same turns after a system message of our own: what differs is the default one's text.
    """
    probe = "sotscope system probe"
    if turns[0]["role"] == "system":
        return 0
    try:
        before, found, after = render(tokenizer, [{"role": "system", "content": probe}, *turns]).partition(probe)
    except PromptError:
        return 0
    if not (found and text.startswith(before) and text.endswith(after)) or len(text) <= len(before) + len(after):
        return 0
    return len(text) - len(after)
