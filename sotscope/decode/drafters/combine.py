"""`combine`: one drafter after the other is asked until one has something to say; lookup first, it costs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from sotscope.catalog import DRAFTERS
from sotscope.decode.contracts import Context, Drafter, Proposal, Setup
from sotscope.errors import DecodeError
from sotscope.events import Step


class Combine(Drafter):
    """The first proposal that its drafter gives at least ``trust`` counts (the last drafter's always does).

    A step is written under the mode of whoever proposed it. Raises DecodeError for no drafters, or for two that read
    the states of different layers.
    """

    mode = "combine"

    def __init__(self, drafters: Sequence[Drafter], trust: float = 0.35) -> None:
        layers = {drafter.layers for drafter in drafters} - {None}
        if not drafters or len(layers) > 1:
            raise DecodeError(
                "combine needs at least one drafter, and those that read states must read the same layers."
            )
        self._drafters = list(drafters)
        self._trust = trust
        self._asked: Drafter | None = None
        self.layers = next(iter(layers), None)
        self.context_rows = max(drafter.context_rows for drafter in drafters)
        self.window = max(drafter.window for drafter in drafters)

    def propose(self, context: Context, window: int) -> Proposal:
        self._asked = None
        for drafter in self._drafters:
            last = drafter is self._drafters[-1]
            proposal = drafter.propose(context, min(window, drafter.window))
            if len(proposal) and (last or not proposal.probabilities or proposal.probabilities[0] >= self._trust):
                self._asked = drafter
                return replace(proposal, mode=drafter.mode)
        return Proposal()

    def observe(self, context: Context, step: Step, truth: Tensor | None) -> None:
        if self._asked is not None:
            self._asked.observe(context, step, truth)

    def knows(self, token: int) -> bool:
        return self._asked is None or self._asked.knows(token)


def make(setup: Setup) -> Combine:
    order = setup.settings.combine
    if "combine" in order or "forced" in order:
        raise DecodeError("combine takes lookup, sot, dmtd or draft, in the order they are asked.")
    return Combine([DRAFTERS.get(mode)(setup) for mode in order])
