"""Raw piece and exact bytes of a token, so that a run can be read as text without its tokenizer."""

from __future__ import annotations

import json
import re
from typing import Any

from sotscope.events import Piece


class PieceTable:
    """Looks pieces up in a Hugging Face tokenizer. Joining ``data`` of ids gives the bytes of their decoded text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = special_ids(tokenizer)
        self._byte_level = _is_byte_level(tokenizer)
        self._anchor = self._find_anchor() if not self._byte_level else None

    def piece(self, token: int) -> Piece:
        raw = self._tokenizer.convert_ids_to_tokens(token)
        if raw is None:
            return Piece(token, f"<{token}>", b"", False)
        return Piece(token, raw, self._bytes(token, raw), token in self._special)

    def _bytes(self, token: int, raw: str) -> bytes:
        if token in self._special:
            return raw.encode()
        if self._byte_level:
            if all(char in _BYTE_OF for char in raw):
                return bytes(_BYTE_OF[char] for char in raw)
            return raw.encode()  # an added token is spelled in plain characters
        if match := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", raw):
            return bytes([int(match[1], 16)])
        if raw.startswith("▁"):
            return raw.replace("▁", " ").encode()
        return self._between(token, raw)

    def _between(self, token: int, raw: str) -> bytes:
        """What the token adds after another one: decoders treat a first token differently."""
        if self._anchor is None:
            return str(self._tokenizer.decode([token])).encode()
        alone = self._tokenizer.decode([self._anchor])
        both = self._tokenizer.decode([self._anchor, token])
        text = both[len(alone) :] if both.startswith(alone) else raw
        return str(text).replace("▁", " ").encode()

    def _find_anchor(self) -> int | None:
        """An ordinary token to decode others after."""
        for token in range(len(self._tokenizer)):
            if token not in self._special and self._tokenizer.decode([token]).strip().isalnum():
                return token
        return None


def special_ids(tokenizer: Any) -> set[int]:
    """The tokens that ``skip_special_tokens`` leaves out: those with a role (eos ...) and those only marked so."""
    marked = getattr(tokenizer, "added_tokens_decoder", {})
    return {*tokenizer.all_special_ids, *(int(i) for i, token in marked.items() if token.special)}


def _is_byte_level(tokenizer: Any) -> bool:
    decoding = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoding is None:
        return False
    decoder = json.loads(decoding.__getstate__())  # of the decoder alone: to_str() spells the whole vocabulary out
    kinds = {decoder.get("type"), *(part.get("type") for part in decoder.get("decoders", []))}
    return "ByteLevel" in kinds


def _byte_alphabet() -> dict[str, int]:
    """The printable stand-ins that byte-level BPE uses for the 256 bytes (GPT-2's ``bytes_to_unicode``)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
