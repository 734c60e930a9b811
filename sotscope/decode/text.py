"""Streams text from tokens; never half a character (the two-offset method of Hugging Face's TGI and of vLLM)."""

from __future__ import annotations

from typing import Any


class TextStream:
    """Turns tokens into text as they come. Without a tokenizer it stays empty."""

    def __init__(self, tokenizer: Any | None) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._shown_from = 0
        self._shown_to = 0
        self.text = ""

    def add(self, token: int) -> str:
        """The text that ``token`` completes; empty while a character is still open. Special tokens give none."""
        self._ids.append(token)
        return self._advance(final=False)

    def finish(self) -> str:
        """What is still held back: bytes that never became a character show as U+FFFD."""
        return self._advance(final=True)

    def _decode(self, ids: list[int]) -> str:
        if self._tokenizer is None:
            return ""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _advance(self, *, final: bool) -> str:
        before = self._decode(self._ids[self._shown_from : self._shown_to])
        now = self._decode(self._ids[self._shown_from :])
        if len(now) <= len(before) or (now.endswith("�") and not final):
            return ""
        fresh = now[len(before) :]
        self._shown_from, self._shown_to = self._shown_to, len(self._ids)
        self.text += fresh
        return fresh
