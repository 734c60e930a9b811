"""`prune`: values far from the others of their row, or from what their dimension was before, are taken back."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from sotscope.capture.interventions import Intervention, Place, Recurrent, Rowwise
from sotscope.errors import HealthError
from sotscope.robust import MAD_TO_SIGMA

HOW = ("zero", "clamp", "mean")


class Prune(Rowwise):
    """Values beyond ``k`` robust sigmas (median and MAD of the row) become zero, the limit (``how=clamp``) or the mean
    of the others (``how=mean``). With ``per=dim`` each dimension is judged by its mean and deviation in earlier rows.

    A row of which half the values are the same has no deviation, and is left alone.
    """

    name: ClassVar[str] = "prune"

    def __init__(self, place: Place, k: float = 5.0, how: str = "zero", per: str = "row") -> None:
        if not 0 < k < float("inf"):
            raise HealthError(f"intervention prune needs k > 0; got {k}.")
        if how not in HOW:
            raise HealthError(f"intervention prune: how = {how!r} is none of {', '.join(HOW)}.")
        if per not in ("row", "dim"):
            raise HealthError(f"intervention prune: per = {per!r} is neither row nor dim.")
        self._k = k
        self._how = how

    @classmethod
    def make(cls, place: Place, **options: Any) -> Intervention:
        made = cls(place, **options)
        return PruneDims(made._k, made._how) if options.get("per") == "dim" else made

    def rows(self, states: Tensor, positions: range) -> Tensor:
        middle = states.median(-1, keepdim=True).values
        away = states - middle
        limit = self._k * MAD_TO_SIGMA * away.abs().median(-1, keepdim=True).values
        outside = (away.abs() > limit) & (limit > 0)
        if self._how == "clamp":
            return torch.where(outside, middle + away.sign() * limit, states)
        if self._how == "zero":
            return states.masked_fill(outside, 0)
        mean = states.masked_fill(outside, 0).sum(-1, keepdim=True) / (~outside).sum(-1, keepdim=True)
        return torch.where(outside, mean, states)


class Seen(NamedTuple):
    """What was seen of each dimension: how many rows, their mean [value], the sum of squared deviations [value]."""

    rows: int
    mean: Tensor
    squares: Tensor


class PruneDims(Recurrent):
    """``prune`` with ``per=dim``. Means and deviations are Welford's, of rows as they would be clamped, so that one
    outlier does not make room for the next; position 0, most models' attention sink, is neither judged nor counted."""

    name: ClassVar[str] = "prune"
    after = 8
    """Rows that are needed before any is judged."""

    def __init__(self, k: float, how: str) -> None:
        self._k = k
        self._how = how

    def row(self, state: Tensor, memory: Seen | None, pos: int) -> tuple[Tensor, Seen | None]:
        if pos == 0:
            return state, None
        if memory is None:
            return state, Seen(1, state, torch.zeros_like(state))
        clamped = changed = state
        if memory.rows >= self.after:
            limit = self._k * (memory.squares / (memory.rows - 1)).sqrt()
            clamped = torch.maximum(torch.minimum(state, memory.mean + limit), memory.mean - limit)
            outside = (state - memory.mean).abs() > limit
            filler = {"zero": torch.zeros_like(state), "clamp": clamped, "mean": memory.mean}[self._how]
            changed = torch.where(outside, filler, state)
        count = memory.rows + 1
        step = (clamped - memory.mean).nan_to_num()  # what is no number stays as it is, but is not learnt
        mean = memory.mean + step / count
        return changed, Seen(count, mean, memory.squares + step * (step - step / count))
