"""`stop`: end the text where it went wrong."""

from __future__ import annotations

from typing import ClassVar

from sotscope.health.contracts import Action, Recovery, Trouble


class Stop(Recovery):
    """Ends the sequence; what is committed stays, as evidence."""

    name: ClassVar[str] = "stop"

    def plan(self, trouble: Trouble) -> Action | None:
        return Action("stop here", stop=True)
