"""`transfer`: the state pattern of another run."""

from __future__ import annotations

import re
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sotscope.capture.interventions import Place, Rowwise, span
from sotscope.catalog import SITES
from sotscope.errors import HealthError
from sotscope.store.reader import open_run

POSITIONS = re.compile(r"all|prompt|generated|\d+(-\d*)?")


class Transfer(Rowwise):
    """``how=mean`` adds the mean of ``source``'s rows less that of ``reference`` (difference of means, Marks and
    Tegmark 2023); ``how=patch`` puts its rows in the place of ours (activation patching, Vig et al. 2020).

    ``source`` is a run that stored the same site. ``rows`` are the source's positions (``prompt``, ``5-20``
    ...; all but 0, most models' attention sink);
    ``reference`` is another run (the same positions of it), or other positions of the source. A patched row is the
    source's at the same position plus ``shift``; where it has none, the row stays as it is. ``layer`` takes another
    layer of the source (-1: the same one), ``seq`` another sequence of it.
    """

    name: ClassVar[str] = "transfer"

    def __init__(
        self,
        place: Place,
        source: str = "",
        how: str = "mean",
        rows: str = "1-",
        reference: str = "",
        shift: int = 0,
        layer: int = -1,
        seq: int = 0,
    ) -> None:
        if not source:
            raise HealthError("intervention transfer needs source=RUN.")
        if how not in ("mean", "patch"):
            raise HealthError(f"intervention transfer: how = {how!r} is neither mean nor patch.")
        if (how == "mean") != bool(reference):
            raise HealthError(
                "intervention transfer needs a reference, a run or positions of the source, for how=mean."
            )
        self._shift = shift
        self._vector: Tensor | None = None
        self._patches: dict[int, Tensor] = {}
        read = _Reader(place, layer, seq)
        found = read(source, rows)
        if how == "patch":
            self._patches = {pos - shift: row for pos, row in found.items()}
        else:
            inside = POSITIONS.fullmatch(reference)
            others = read(source, reference) if inside else read(reference, rows)
            self._vector = _mean(found) - _mean(others)

    def voids(self, earlier: Transfer) -> bool:
        return self._vector is None and earlier._vector is None and bool(self._patches.keys() & earlier._patches.keys())

    def rows(self, states: Tensor, positions: range) -> Tensor:
        if self._vector is not None:
            return states + self._vector.to(states)
        given = [self._patches.get(pos) for pos in positions]
        return torch.stack([states[i] if row is None else row.to(states) for i, row in enumerate(given)])


class _Reader:
    """Rows of a place from any run."""

    def __init__(self, place: Place, layer: int, seq: int) -> None:
        self._place = place
        self._layer = (place.layer if layer < 0 else layer) if SITES.get(place.site).per_layer else None
        self._seq = seq

    def __call__(self, path: str, positions: str) -> dict[int, Tensor]:
        """Position to row [value]. Raises HealthError for a run that has none there, of another size, or not finite;
        StoreError for one that cannot be read or lacks the site."""
        run = open_run(path)
        if not 0 <= self._seq < len(run.sequences):
            raise HealthError(f"intervention transfer: {path} has no sequence {self._seq}.")
        states = run.states(self._place.site, self._layer, seq=self._seq)
        states = states.reshape(len(states), -1)
        if states.shape[-1] != self._place.width:
            raise HealthError(
                f"intervention transfer: rows of {self._place.site} have {states.shape[-1]} values in {path}, "
                f"{self._place.width} in this model."
            )
        where = span(positions, int(run.sequences.prompt_length[self._seq]))
        known = run.positions_at(run.rows(self._seq)).tolist()
        found = {pos: row for pos, row in zip(known, states, strict=True) if pos in where}
        if not found:
            raise HealthError(f"intervention transfer: {path} has no rows at positions {positions}.")
        if not all(np.isfinite(row).all() for row in found.values()):
            raise HealthError(f"intervention transfer: rows of {path} are not finite; choose others with rows=.")
        return {pos: torch.from_numpy(row) for pos, row in found.items()}


def _mean(rows: dict[int, Tensor]) -> Tensor:
    return torch.stack(list(rows.values())).mean(0)
