"""`refresh`: compute the cache anew from the tokens, without the rows that went wrong."""

from __future__ import annotations

from typing import ClassVar

from sotscope.health.contracts import Action, Recovery, Trouble


class Refresh(Recovery):
    """Goes on from the onset with a cache that is computed anew: what was wrong for one moment (a flipped bit, one NaN)
    is gone, and the text is that of a run in which it never happened. What is wrong in the weights comes back."""

    name: ClassVar[str] = "refresh"

    def plan(self, trouble: Trouble) -> Action | None:
        # the row at the onset was wrong, so what it chose is dropped; its own token was chosen before
        keep = max(1, min(trouble.alarm.onset + 1, len(trouble.ids)))
        return Action(f"go on from token {keep} with a cache that is computed anew", keep, fresh=True)
