"""`plain`: no more drafts, one token at a time."""

from __future__ import annotations

from typing import ClassVar

from sotscope.health.contracts import Action, Recovery, Trouble


class Plain(Recovery):
    """Goes on in mode `ar` from here. It helps against what drafts do (a lossy policy), not against what the model
    does: under the policy `exact` the text would have been the same."""

    name: ClassVar[str] = "plain"

    def plan(self, trouble: Trouble) -> Action | None:
        keep = trouble.alarm.pos + 2  # the alarmed row's token was fed, the one it chose is the last
        return Action("go on one token at a time (mode ar)", min(keep, len(trouble.ids)), mode="ar")
