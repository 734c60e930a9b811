"""`freeze`: some dimensions stop moving."""

from __future__ import annotations

import re
from typing import ClassVar

from torch import Tensor

from sotscope.capture.interventions import Place, Recurrent
from sotscope.errors import HealthError


class Freeze(Recurrent):
    """``dims`` (``3,7-9``) keep the values they had in the row before the token range, or with ``at=first`` those of
    its first row."""

    name: ClassVar[str] = "freeze"
    tokens: ClassVar[str] = "generated"

    def __init__(self, place: Place, dims: str = "", at: str = "before") -> None:
        if at not in ("before", "first"):
            raise HealthError(f"intervention freeze: at = {at!r} is neither before nor first.")
        self._dims = parse_dims(dims, place)
        self._before = at == "before"

    def voids(self, earlier: Freeze) -> bool:
        return bool(set(self._dims) & set(earlier._dims))

    def row(self, state: Tensor, memory: Tensor | None, pos: int) -> tuple[Tensor, Tensor]:
        held = state[self._dims] if memory is None else memory
        changed = state.clone()
        changed[self._dims] = held
        return changed, held

    def watch(self, state: Tensor, memory: Tensor | None, pos: int) -> Tensor | None:
        return state[self._dims] if self._before else None


def parse_dims(text: str, place: Place) -> list[int]:
    """Dimensions of ``3,7-9``, sorted. Raises HealthError for what is not understood or not there."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if not match:
            raise HealthError(f"intervention freeze: dims {text!r} not understood at {part!r}; write dims=3,7-9.")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last >= place.width:
            raise HealthError(
                f"intervention freeze: there are no dims {part.strip()}; {place.site} has {place.width}, "
                f"0-{place.width - 1}."
            )
        found.update(range(first, last + 1))
    return sorted(found)
