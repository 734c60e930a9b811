"""`rescale`: hold the norms of the states to what they usually are."""

from __future__ import annotations

from typing import ClassVar

from sotscope.errors import HealthError
from sotscope.health.contracts import Action, Recovery, Trouble


class Rescale(Recovery):
    """Goes on from the onset with every block's output scaled to the running median of its norm, for ``hold`` tokens.

    Raises HealthError for a ``hold`` below 1.
    """

    name: ClassVar[str] = "rescale"

    def __init__(self, hold: int = 64) -> None:
        if hold < 1:
            raise HealthError(f"recovery rescale needs hold >= 1; got {hold}.")
        self._hold = hold

    def plan(self, trouble: Trouble) -> Action | None:
        keep = min(trouble.alarm.onset + 1, len(trouble.ids))
        note = f"go on from token {keep} with norms held to their running median for {self._hold} tokens"
        return Action(note, keep, self._hold, interventions=({"kind": "rescale", "site": "resid"},))
