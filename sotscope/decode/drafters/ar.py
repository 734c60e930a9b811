"""`ar`: no drafts, one token a step."""

from __future__ import annotations

from sotscope.decode.contracts import Context, Proposal


class Plain:
    """Proposes nothing, so every step is a plain one."""

    mode = "ar"
    policy = "exact"
    window = 0
    may_reject = False

    def propose(self, context: Context, window: int) -> Proposal:
        return Proposal()
