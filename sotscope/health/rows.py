"""Rows for monitors: of a step that is being committed, and of a run, finished or growing. The same numbers in both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sotscope.events import Step
from sotscope.health.contracts import Row

if TYPE_CHECKING:
    from sotscope.store.reader import Run

GIVEN = ("prompt", "forced")
"""Modes of rows whose token nobody chose."""
_BLOCK = 256


def watched_layers(layers: Sequence[int]) -> tuple[int, ...]:
    """The recorded layers whose states monitors see: one after two fifths of them, one after seven tenths, the last."""
    count = len(layers)
    places = {min(count - 1, round(share * (count - 1))) for share in (0.4, 0.7, 1.0)} if count else set()
    return tuple(layers[place] for place in sorted(places))


def rows_of_step(
    step: Step, scalars: Mapping[str, NDArray[Any]], present: NDArray[np.bool_], states: NDArray[Any] | None
) -> Iterator[Row]:
    """Of a step: ``scalars[name] [row, ...]``, ``present [row, layer]``, ``states [row, watched, dim]``."""
    for i in range(step.rows):
        yield _row(
            step.pos + i, step.token_ids[i], step.next_ids[i], step.mode in GIVEN,
            {name: values[i] for name, values in scalars.items()}, present[i], None if states is None else states[i],
        )  # fmt: skip


def rows_of_run(run: Run, indices: NDArray[np.int64], watched: tuple[int, ...]) -> Iterator[Row]:
    """Of a run, the rows with these indices, in this order; ``watched`` layers as ``watched_of`` gives them."""
    ran = run.present
    for start in range(0, len(indices), _BLOCK):
        part = indices[start : start + _BLOCK]
        tokens = run.tokens_at(part)
        scalars = {name: run.scalars_at(name, part) for name in run.scalar_names}
        pos, states = run.positions_at(part), run.take("resid", part, layers=watched) if watched else None
        for i in range(len(part)):
            yield _row(
                int(pos[i]), int(tokens.ids[i]), int(tokens.next_ids[i]), tokens.modes[i] in GIVEN,
                {name: values[i] for name, values in scalars.items()}, ran[part[i]],
                None if states is None else states[i],
            )  # fmt: skip


def watched_of(run: Run) -> tuple[int, ...]:
    """The layers whose states monitors see in a finished run; none where it has no ``resid``."""
    return watched_layers(run.layers) if "resid" in run.sites else ()


def _row(pos: int, token: int, next_id: int, given: bool, scalars: Mapping[str, Any], present: Any, states: Any) -> Row:
    return Row(
        pos, token, next_id, given, scalars["norm"], scalars["max_abs"], scalars["nonfinite"], scalars["cosine"],
        present, float(scalars["entropy"]), float(scalars["logprob"]), float(scalars["margin"]), states,
        scalars.get("head_norm"), scalars.get("attn_entropy"),
    )  # fmt: skip
