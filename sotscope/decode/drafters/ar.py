"""`ar`: no drafts, one token a step."""

from __future__ import annotations

from sotscope.decode.contracts import Context, Drafter, Proposal, Setup


class Plain(Drafter):
    """Proposes nothing, so every step is a plain one."""

    mode = "ar"
    window = 0
    may_reject = False

    def propose(self, context: Context, window: int) -> Proposal:
        return Proposal()


def make(setup: Setup) -> Plain:
    return Plain()
