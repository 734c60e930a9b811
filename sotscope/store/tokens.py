"""Tokens as a person reads them, from pieces.jsonl: no tokenizer is needed.

``text`` joins the bytes of the pieces, so that characters which two tokens share come out whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sotscope.errors import StoreError
from sotscope.events import SEGMENTS


@dataclass
class Pieces:
    """Raw piece and bytes of every token that a run uses; grows with the file."""

    raw: dict[int, str] = field(default_factory=dict)
    data: dict[int, bytes] = field(default_factory=dict)
    special: set[int] = field(default_factory=set)
    _offset: int = 0

    def advance(self, path: Path, stop: int) -> None:
        """Read the lines up to byte ``stop`` (what the last commit vouches for)."""
        if stop <= self._offset:
            return
        try:
            with open(path, "rb") as file:
                file.seek(self._offset)
                lines = file.read(stop - self._offset)
            for line in lines.splitlines():
                entry = json.loads(line)
                self.raw[entry["id"]] = entry["raw"]
                self.data[entry["id"]] = bytes.fromhex(entry["hex"])
                if entry["special"]:
                    self.special.add(entry["id"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path} cannot be read ({error!r}); it holds the text of the tokens.") from error
        self._offset = stop

    def text(self, ids: Iterable[int], *, special: bool = False, start: bool = True) -> str:
        """The text of ``ids``; special tokens only on request. ``start``: drop the space that marks a first word."""
        kept = [i for i in ids if i >= 0 and (special or i not in self.special)]
        data = b"".join(self.data.get(i, b"") for i in kept)
        if start and kept and self.raw.get(kept[0], "").startswith("▁") and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", errors="replace")

    def label(self, token: int) -> str:
        """One token on its own: spaces and line ends made visible; bytes that are no whole character in hex."""
        if token < 0:
            return ""
        data = self.data.get(token, b"")
        if token in self.special:
            return self.raw.get(token, str(token))
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            return "".join(f"<{byte:02X}>" for byte in data)
        return text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥") or self.raw.get(token, "")


@dataclass(frozen=True)
class Tokens:
    """The tokens of a run or of one sequence, one entry a row."""

    ids: NDArray[np.int32]
    """[token] the input token of each row."""
    next_ids: NDArray[np.int32]
    """[token] the token chosen there, -1 if none was."""
    segments: list[str]
    modes: list[str]
    seq: NDArray[np.int32]
    pos: NDArray[np.int32]
    pieces: Pieces

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: NDArray[np.int64]) -> Tokens:
        """Only these rows, in this order."""
        return replace(
            self,
            ids=self.ids[rows],
            next_ids=self.next_ids[rows],
            segments=[self.segments[i] for i in rows],
            modes=[self.modes[i] for i in rows],
            seq=self.seq[rows],
            pos=self.pos[rows],
        )

    @property
    def raw(self) -> list[str]:
        """[token] the tokenizer's own pieces (``Ġthe``, ``▁the``, ``<0xE2>``)."""
        return [self.pieces.raw.get(int(i), "") for i in self.ids]

    @property
    def labels(self) -> list[str]:
        """[token] each token on its own with its spaces visible."""
        return [self.pieces.label(int(i)) for i in self.ids]

    @property
    def text(self) -> str:
        """The whole text as a person reads it: the first token, then every chosen one; special tokens left out."""
        return self.pieces.text(self.all_ids)

    @property
    def generated(self) -> str:
        """The text that the model wrote (or was given by ``forced``), special tokens left out."""
        return self.pieces.text(self.generated_ids)

    @property
    def all_ids(self) -> list[int]:
        """First id and every following one: one more than there are rows, unless the last row chose none."""
        if not len(self.ids):
            return []
        return [int(self.ids[0]), *(i for i in self.following if i >= 0)]

    @property
    def following(self) -> list[int]:
        """[token] the token after each row's: what it chose (-1: none), or, where a branch went on otherwise, the
        branch's."""
        if not len(self.ids):
            return []
        stands = np.where(self.pos[1:] == self.pos[:-1] + 1, self.ids[1:], self.next_ids[:-1])
        return [*(int(i) for i in stands), int(self.next_ids[-1])]

    @property
    def generated_ids(self) -> list[int]:
        """The ids that were chosen by rows of a decoding mode (all but the prompt's)."""
        return [i for i, mode in zip(self.following, self.modes, strict=True) if mode != "prompt" and i >= 0]


def tokens_of(rows: NDArray[Any], pieces: Pieces, modes: list[str]) -> Tokens:
    """The Tokens view of journal row records."""
    return Tokens(
        ids=rows["token_id"].astype(np.int32),
        next_ids=rows["next_id"].astype(np.int32),
        segments=[SEGMENTS[code] for code in rows["segment"]],
        modes=[modes[code] for code in rows["mode"]],
        seq=rows["seq_id"].astype(np.int32),
        pos=rows["pos"].astype(np.int32),
        pieces=pieces,
    )
