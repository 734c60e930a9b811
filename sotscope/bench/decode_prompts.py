"""The prompts of ``bench decode``: the shipped ones, or a file of the user's."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from sotscope.errors import PromptError
from sotscope.models.prompt_file import PromptLine, read_prompts


def bench_prompts(file: Path | None = None) -> list[PromptLine]:
    """The prompts of ``file``, as ``check`` reads them, by default the shipped ones; ``kind`` is the group a prompt is
    reported in. Raises PromptError that names the line.
    """
    where = file or Path(str(files("sotscope.bench") / "prompts.jsonl"))
    found = read_prompts(where)
    for line in found:
        if not line.kind.strip():
            raise PromptError(
                f'{where}, line {line.number}: give a kind, such as {{"kind": "chat", "prompt": "Hello"}}.'
            )
        if line.prompt is not None and not line.prompt.strip():
            raise PromptError(f"{where}, line {line.number}: the prompt is empty.")
    return found


def first_of_each_kind(prompts: list[PromptLine], count: int) -> list[PromptLine]:
    seen: dict[str, int] = {}
    kept = []
    for prompt in prompts:
        seen[prompt.kind] = seen.get(prompt.kind, 0) + 1
        if seen[prompt.kind] <= count:
            kept.append(prompt)
    return kept
