"""`temperature`: attention that is flatter or sharper."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from sotscope.capture.interventions import Place, Rowwise
from sotscope.errors import HealthError


class Temperature(Rowwise):
    """Divides the queries by ``value``, and with them the scores before the softmax: above 1 attention is flatter,
    below 1 sharper. Where a bias or a soft cap is applied to the scores, it is not divided."""

    name: ClassVar[str] = "temperature"
    site: ClassVar[str] = "query"
    sites: ClassVar[tuple[str, ...]] = ("query",)

    def __init__(self, place: Place, value: float = 1.5) -> None:
        if not 0 < value < float("inf"):
            raise HealthError(f"intervention temperature needs a value > 0; got {value}.")
        self._value = value

    def voids(self, earlier: Temperature) -> bool:
        return True  # both apply, but nobody means their product

    def rows(self, states: Tensor, positions: range) -> Tensor:
        return states / self._value
