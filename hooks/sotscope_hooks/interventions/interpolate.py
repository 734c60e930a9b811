"""`interpolate`: each row is drawn towards the rows before it."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from sotscope.capture.interventions import Place, Recurrent
from sotscope.errors import HealthError


class Interpolate(Recurrent):
    """The exponential moving average of the rows so far: ``alpha`` of this row, the rest of the average before it.

    ``how=spherical`` goes along the arc between both directions (slerp, Shoemake 1985) and averages the norms.
    Position 0, most models' attention sink, is neither changed nor averaged.
    """

    name: ClassVar[str] = "interpolate"

    def __init__(self, place: Place, alpha: float = 0.5, how: str = "linear") -> None:
        if not 0 < alpha <= 1:
            raise HealthError(f"intervention interpolate needs 0 < alpha <= 1; got {alpha}.")
        if how not in ("linear", "spherical"):
            raise HealthError(f"intervention interpolate: how = {how!r} is neither linear nor spherical.")
        self._alpha = alpha
        self._average = slerp if how == "spherical" else torch.lerp

    def row(self, state: Tensor, memory: Tensor | None, pos: int) -> tuple[Tensor, Tensor | None]:
        if pos == 0:
            return state, None
        average = state if memory is None else self._average(memory, state, self._alpha)
        return average, average


def slerp(start: Tensor, end: Tensor, weight: float) -> Tensor:
    """The vector [value] that is ``weight`` of the way from ``start`` to ``end``, along the arc. Straight where the
    directions are (nearly) the same or opposite."""
    norms = start.norm(), end.norm()
    angle = (start @ end / (norms[0] * norms[1])).clamp(-1, 1).acos()
    along = ((1 - weight) * angle).sin() * start / norms[0] + (weight * angle).sin() * end / norms[1]
    return torch.where(angle.sin() > 1e-4, along / angle.sin() * torch.lerp(*norms, weight), start.lerp(end, weight))
