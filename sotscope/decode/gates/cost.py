"""`cost`: the window controller. Of what was drafted it lets the model check as many tokens as pay on this machine.

A window of k tokens makes 1 + s1 + ... + sk tokens for T(k + 1) milliseconds, where si is the probability that the
first i drafts are right. The si come from the drafter's own confidence, calibrated by what became of earlier drafts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sotscope.decode.contracts import UNLIMITED, Context, Gate, Proposal
from sotscope.decode.gates.clock import SMOOTH, Clock, best_window
from sotscope.errors import DecodeError
from sotscope.events import Step

BINS = 10
"""Bins of confidence that are calibrated apart."""
FORGET = 0.995
"""How fast the calibration forgets, a draft."""
PROBE = 16
"""Proposals in a row that were not worth a look, after which one is looked at all the same."""


class WindowCost(Gate):
    """``widths``: milliseconds of a forward by width (``timing.widths``). For the first ``warmup_steps`` steps all
    drafts are checked and the controller only learns. Raises DecodeError for a negative ``warmup_steps``.
    """

    name: ClassVar[str] = "cost"

    def __init__(self, widths: Mapping[int, float], warmup_steps: int = 0) -> None:
        if warmup_steps < 0:
            raise DecodeError(f"warmup_steps = {warmup_steps}: give 0 or more.")
        self.clock = Clock(widths)
        self._warmup = warmup_steps
        self._steps = 0
        self._calibrations: dict[str, _Calibration] = {}
        self._slot_ms: dict[str, float] = {}
        self._unseen = 0

    def _probe(self) -> int:
        """The window that costs least a token of it."""
        return min(range(1, self.clock.widest), key=lambda k: self.clock.forward_ms(k + 1) / (k + 1))

    def trim(self, context: Context, proposal: Proposal) -> int:
        if self._steps < self._warmup or not proposal.probabilities:
            return UNLIMITED
        calibration = self._calibrations.setdefault(proposal.mode, _Calibration())
        survival, alive = [], 1.0
        for probability in proposal.probabilities:
            alive *= calibration.right(probability)
            survival.append(alive)
        best = best_window(survival, self.clock, spent=self._slot_ms.get(proposal.mode, 0.0) * len(proposal))
        self._unseen = 0 if best else self._unseen + 1
        if self._unseen < PROBE:
            return best
        self._unseen = 0  # what is never looked at is never learnt: times may have changed
        return self._probe()

    def observe(self, context: Context, step: Step) -> None:
        self.clock.observe(step)
        self._steps += 1
        if not step.drafts:
            return
        mode = step.mode
        ms = step.draft_ns / 1e6 / len(step.drafts)
        self._slot_ms[mode] = self._slot_ms.get(mode, ms) + SMOOTH * (ms - self._slot_ms.get(mode, ms))
        calibration = self._calibrations.setdefault(mode, _Calibration())
        for draft in step.drafts:
            if draft.reason in ("after_miss", "after_end"):
                break
            calibration.add(draft.probability, draft.accepted)


class _Calibration:
    """How often drafts of a confidence are right: the confidence itself at first, then what was seen."""

    def __init__(self) -> None:
        self._seen = [4.0] * BINS
        self._right = [4.0 * (bin_ + 0.5) / BINS for bin_ in range(BINS)]

    @staticmethod
    def _bin(probability: float) -> int:
        return min(BINS - 1, int(probability * BINS))

    def right(self, probability: float) -> float:
        at = self._bin(probability)
        return self._right[at] / self._seen[at]

    def add(self, probability: float, right: bool) -> None:
        at = self._bin(probability)
        self._seen[at] = FORGET * self._seen[at] + 1
        self._right[at] = FORGET * self._right[at] + right
