"""`rescale`: the norms of rows are held to what they usually are, or multiplied."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from sotscope.capture.interventions import Place, Recurrent
from sotscope.errors import HealthError

AFTER = 8
"""Norms that are needed for a median which an attention sink cannot move."""


class Rescale(Recurrent):
    """Each row gets the median norm of the ``window`` rows before it (once there are 8); with ``factor``, rows are
    multiplied by it instead. Position 0, most models' attention sink, is neither changed nor counted."""

    name: ClassVar[str] = "rescale"

    def __init__(self, place: Place, factor: float = 0.0, window: int = 64) -> None:
        if not 0 <= factor < float("inf"):
            raise HealthError(f"intervention rescale needs a factor > 0 (0: to the median); got {factor}.")
        if window < AFTER:
            raise HealthError(f"intervention rescale needs a window of {AFTER} rows or more; got {window}.")
        self._factor = factor
        self._window = window

    def voids(self, earlier: Rescale) -> bool:
        return not self._factor

    def row(self, state: Tensor, memory: Tensor | None, pos: int) -> tuple[Tensor, Tensor | None]:
        if self._factor:
            return state * self._factor, None
        if pos == 0:
            return state, None
        norm = state.norm()[None]
        if memory is None:
            return state, norm
        changed = state
        if len(memory) >= AFTER:
            changed = torch.where(norm > 0, state * (memory.median() / norm), state)
        return changed, torch.cat((memory, norm))[-self._window :]
