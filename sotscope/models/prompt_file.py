"""Files of prompts: JSON lines (objects or plain strings), or a text file with one prompt a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sotscope.errors import PromptError
from sotscope.registry import unknown

_TYPES = {"prompt": str, "messages": list, "kind": str, "system": str, "raw": bool}


@dataclass(frozen=True)
class PromptLine:
    """One prompt of a file, and the line it stands on."""

    number: int
    prompt: str | None = None
    messages: list[dict[str, str]] | None = None
    kind: str = ""
    system: str | None = None
    raw: bool = False

    @property
    def title(self) -> str:
        """The user's own words."""
        return self.prompt if self.prompt is not None else str((self.messages or [{}])[-1].get("content", ""))


def read_prompts(path: Path) -> list[PromptLine]:
    """The prompts of ``path``: ``.txt`` one a line, else JSON lines.

    A JSON line is a string, or an object with ``prompt`` (and ``system``, ``raw``) or ``messages``; ``kind`` is a
    label, and ``"kind": "raw"`` without ``raw`` means a prompt without a chat template. Raises PromptError naming the
    line that is wrong.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}.") from error
    read = _text if path.suffix == ".txt" else _json
    found = list(read(path, [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]))
    if not found:
        raise PromptError(f"{path} holds no prompts.")
    return found


def _text(path: Path, lines: list[tuple[int, str]]) -> Iterator[PromptLine]:
    for number, line in lines:
        yield PromptLine(number, line)


def _json(path: Path, lines: list[tuple[int, str]]) -> Iterator[PromptLine]:
    for number, line in lines:
        where = f"{path}, line {number}"
        try:
            data: Any = json.loads(line)
        except ValueError as error:
            raise PromptError(f"{where}: not JSON ({error}).") from error
        if isinstance(data, str):
            data = {"prompt": data}
        unfit = next((name for name in data if name not in _TYPES), None) if isinstance(data, dict) else None
        if unfit is not None:
            raise PromptError(f"{where}: {unknown('field', unfit, list(_TYPES))}")
        if not isinstance(data, dict) or ("prompt" in data) == ("messages" in data):
            raise PromptError(f'{where}: give a string, {{"prompt": "..."}} or {{"messages": [...]}}.')
        wrong = next((name for name, kind in _TYPES.items() if name in data and not isinstance(data[name], kind)), None)
        if wrong is not None:
            raise PromptError(f"{where}: {wrong} must be a {_TYPES[wrong].__name__}.")
        if not all(isinstance(turn, dict) for turn in data.get("messages", [])):
            raise PromptError(f'{where}: messages are objects with "role" and "content".')
        known = {name: data[name] for name in _TYPES if name in data}
        yield PromptLine(number, **{"raw": data.get("kind") == "raw" and "prompt" in data, **known})
