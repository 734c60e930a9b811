"""From a prompt or messages to token ids, each with the segment it is part of. Exactly one BOS, never two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sotscope.errors import PromptError
from sotscope.events import SEGMENTS
from sotscope.models.pieces import special_ids
from sotscope.models.segments import ROLES, render, segment_bounds


@dataclass(frozen=True)
class Prompt:
    """Token ids with the segment of each, the text they came from, and what the user should know about it."""

    ids: list[int]
    segments: list[str]
    text: str
    warnings: tuple[str, ...] = ()
    written: int = 0
    """How many of the tokens, at the end, a model chose earlier: they are no part of the prompt."""


def build_prompt(
    tokenizer: Any,
    prompt: str | None = None,
    *,
    messages: Sequence[Mapping[str, Any]] | None = None,
    system: str | None = None,
    raw: bool = False,
) -> Prompt:
    """Token ids of a prompt: through the chat template, if the tokenizer has one, else (or if ``raw``) as it is.

    ``messages`` are turns with role and content; ``system`` is put before them. Raises PromptError for an empty
    prompt and for messages that the template refuses.
    """
    if messages is not None and prompt is not None:
        raise PromptError("give either a prompt or messages, not both.")
    if messages is not None and raw:
        raise PromptError("messages need the chat template; leave out --raw, or give a prompt.")
    if messages is None and not (prompt or "").strip():
        raise PromptError("the prompt is empty; give some text.")
    if raw or (messages is None and not getattr(tokenizer, "chat_template", None)):
        if system:
            raise PromptError("a system prompt needs a chat template; this prompt is raw.")
        return _raw(tokenizer, prompt or "")
    if not getattr(tokenizer, "chat_template", None):
        raise PromptError("this tokenizer has no chat template; give a prompt instead of messages.")
    turns = [dict(message) for message in messages] if messages is not None else [{"role": "user", "content": prompt}]
    if system:
        turns.insert(0, {"role": "system", "content": system})
    return _chat(tokenizer, turns)


def _raw(tokenizer: Any, text: str) -> Prompt:
    ids = [int(i) for i in tokenizer(text)["input_ids"]]
    bos = tokenizer.bos_token_id
    warnings: list[str] = []
    if bos is not None and tokenizer.bos_token and text.startswith(tokenizer.bos_token):
        warnings.append(f"the prompt already starts with {tokenizer.bos_token}; it is kept once.")
    ids = _one_bos(ids, bos)
    if not ids:
        raise PromptError("the prompt has no tokens; give some text.")
    return Prompt(ids, ["raw"] * len(ids), text, tuple(warnings))


def _one_bos(ids: list[int], bos: int | None) -> list[int]:
    while bos is not None and len(ids) > 1 and ids[0] == ids[1] == bos:
        ids = ids[1:]
    return ids


def _chat(tokenizer: Any, turns: list[dict[str, Any]]) -> Prompt:
    for number, turn in enumerate(turns):
        if turn.get("role") not in ROLES:
            raise PromptError(f"message {number} has role {turn.get('role')!r}; there are: {', '.join(ROLES)}.")
        if not isinstance(turn.get("content"), str):
            raise PromptError(f"message {number} has no text content.")
    if not any(turn["content"].strip() for turn in turns if turn["role"] != "system"):
        raise PromptError("the prompt is empty; give some text.")
    text = render(tokenizer, turns)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids = [int(i) for i in encoded["input_ids"]]
    special = special_ids(tokenizer)
    places = list(zip(ids, encoded["offset_mapping"], strict=True))
    bounds = segment_bounds(tokenizer, turns, text, [end for token, (_, end) in places if token in special])
    segments = [_segment_at(bounds, (start + end) // 2) for _, (start, end) in places]
    bos = tokenizer.bos_token or ""
    warnings = []
    if bos and any(turn["content"].startswith(bos) for turn in turns):
        warnings.append(f"a message already starts with {bos}; the chat template adds its own.")
    return Prompt(ids, segments, text, tuple(warnings))


def _segment_at(bounds: list[tuple[int, str]], place: int) -> str:
    return [segment for begin, segment in bounds if begin <= place][-1]


class Segmenter:
    """Names the segment of each generated token: ``think`` between the model's thinking marks, else ``generated``."""

    def __init__(self, tokenizer: Any | None) -> None:
        vocabulary = tokenizer.get_vocab() if tokenizer is not None else {}
        self._open = vocabulary.get("<think>")
        self._close = vocabulary.get("</think>")
        self._thinking = False

    def start(self, prompt_ids: Sequence[int]) -> None:
        """Templates of thinking models may open the thought in the prompt."""
        self._thinking = False
        for token in prompt_ids:
            self._thinking = token == self._open or (self._thinking and token != self._close)

    def add(self, token: int) -> str:
        """The segment of one generated token; the marks themselves belong to the thought."""
        thinking = self._thinking or token == self._open
        self._thinking = thinking and token != self._close
        return "think" if thinking else "generated"


def segment_codes(segments: Sequence[str]) -> tuple[int, ...]:
    return tuple(SEGMENTS.index(segment) for segment in segments)
