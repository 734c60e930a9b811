"""The prompts of ``bench decode``: the shipped ones, or a file of the user's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from sotscope.errors import ConfigError

FIELDS = ("kind", "prompt", "raw")


@dataclass(frozen=True)
class BenchPrompt:
    """One prompt: its ``kind`` is the group it is reported in, ``raw`` leaves the chat template out."""

    kind: str
    prompt: str
    raw: bool = False


def read_prompts(file: Path | None = None) -> list[BenchPrompt]:
    """The prompts of a file of JSON lines (``kind``, ``prompt``, optional ``raw``), by default the shipped one.

    ``raw`` is true for the kind "raw" where it is not given; empty lines are passed over. Raises ConfigError that
    names the line.
    """
    where = file or Path(str(files("sotscope.bench") / "prompts.jsonl"))
    try:
        lines = where.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {where}: {getattr(error, 'strerror', error)}.") from error
    found = [_parse(line, f"{where} line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise ConfigError(f'{where} holds no prompts; write one a line: {{"kind": "chat", "prompt": "Hello"}}')
    return found


def first_of_each_kind(prompts: list[BenchPrompt], count: int) -> list[BenchPrompt]:
    seen: dict[str, int] = {}
    kept = []
    for prompt in prompts:
        seen[prompt.kind] = seen.get(prompt.kind, 0) + 1
        if seen[prompt.kind] <= count:
            kept.append(prompt)
    return kept


def _parse(line: str, where: str) -> BenchPrompt:
    try:
        data: Any = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON: {error}.") from None
    if not isinstance(data, dict):
        raise ConfigError(f'{where} must be an object such as {{"kind": "chat", "prompt": "Hello"}}.')
    for name in data:
        if name not in FIELDS:
            raise ConfigError(f"{where}: unknown field {name!r}; there are: {', '.join(FIELDS)}.")
    for name in ("kind", "prompt"):
        if not isinstance(data.get(name), str) or not data[name].strip():
            raise ConfigError(f"{where}: {name!r} must be a text that is not empty.")
    raw = data.get("raw", data["kind"] == "raw")
    if not isinstance(raw, bool):
        raise ConfigError(f"{where}: 'raw' must be true or false.")
    return BenchPrompt(data["kind"], data["prompt"], raw)
