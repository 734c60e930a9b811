"""Values as strict JSON knows them, and as a person writes them. Imports nothing heavy: commands start with it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any


def plain(value: Any) -> Any:
    """Strict JSON's own types: NaN and infinities are null, arrays are lists, what is left is its text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    elif hasattr(value, "tolist"):  # numpy, which this module does not import
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def first_error(error: Any) -> str:
    """The first thing that a pydantic ``ValidationError`` complains of, in one line."""
    found = error.errors()[0]
    where = ".".join(str(part) for part in found["loc"])
    return f"{where or 'value'}: {found['msg']} (got {found['input']!r:.80})."


def ranges(numbers: Sequence[int]) -> str:
    """Numbers as a person writes them: 0-3, 7."""
    out: list[str] = []
    start = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            out.append(str(numbers[start]) if i - start == 1 else f"{numbers[start]}-{numbers[i - 1]}")
            start = i
    return ", ".join(out)
