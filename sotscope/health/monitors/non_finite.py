"""`non_finite`: a state holds NaN or infinity."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from sotscope.health.contracts import Monitor, Row, Signal, Subject


class NonFinite(Monitor):
    """Alarms at the first row with a number that is not finite, in a given text too. Layers that were skipped are no
    fault.

    Evidence: ``layer`` (the first one; also ``first_bad_layer``, with ``first_bad_position``), ``layers`` (how many),
    ``count`` (how many numbers of that layer).
    """

    name: ClassVar[str] = "non_finite"
    advice: ClassVar[str] = (
        "recompute from the last finite token (--recover refresh or rollback); if it returns at the same layer, look "
        "for a broken weight there, or load the model with --dtype float32"
    )

    def __init__(self, subject: Subject) -> None:
        self._layers = subject.layers

    def observe(self, row: Row) -> Signal | None:
        if not np.count_nonzero(row.nonfinite):
            return None
        bad = np.flatnonzero((row.nonfinite > 0) & row.present)
        if not len(bad):
            return None
        layer, count = self._layers[bad[0]], int(row.nonfinite[bad[0]])
        number = "number" if count == 1 else "numbers"
        more = f"; {len(bad)} layers have any" if len(bad) > 1 else ""
        return Signal(
            "critical",
            f"states are not finite from layer {layer}, position {row.pos} on ({count} {number}{more})",
            row.pos,
            {
                "layer": layer, "layers": len(bad), "count": count,
                "first_bad_layer": layer, "first_bad_position": row.pos,
            },
        )  # fmt: skip
