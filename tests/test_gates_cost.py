"""The gates that go by the clock: `cost` picks the window that pays, `guard` stops drafting where none does."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sotscope.decode.contracts import UNLIMITED, Context, Proposal
from sotscope.decode.gates.cost import WindowCost
from sotscope.decode.gates.guard import TRIAL, Guard
from sotscope.decode.loop import Decoder
from sotscope.decode.sampling import Sampler
from sotscope.errors import DecodeError
from sotscope.events import Draft, Step
from sotscope.testing.drafters import anti, greedy

CONTEXT = Context([0] * 10, 0, 999, 9999)
CLIFF = {1: 10.0, 2: 12.0, 3: 14.0, 4: 16.0, 5: 40.0, 9: 44.0}
"""Milliseconds by width: up to four tokens cost little more than one."""
FLAT = {1: 10.0, 9: 12.0}


def sure(*probabilities: float) -> Proposal:
    return Proposal(ids=[1] * len(probabilities), probabilities=probabilities, mode="sot")


def step(accepted: int, drafted: int, *, probability: float = 0.95, forward: float = 0.0, draft: float = 0.0) -> Step:
    """A step with ``drafted`` drafts, the first ``accepted`` right; times in milliseconds."""
    reasons = ["accepted"] * accepted + ["first_slot_miss"] + ["after_miss"] * drafted
    drafts = tuple(Draft(slot, 10 + slot, 1, probability, 0.1, reasons[slot]) for slot in range(drafted))
    rows = accepted + 1
    return Step(
        0, 0, "sot", 10, (0,) * rows, (0,) * rows, window=drafted, accepted=accepted, drafts=drafts,
        reason="drafted" if drafted else "gated", forward_ns=int(forward * 1e6), draft_ns=int(draft * 1e6),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("widths", "probabilities", "window"),
    [
        (CLIFF, [0.95] * 8, 3),  # (1 + .95 + .95^2 + .95^3) / 16 beats what comes after the cliff
        (CLIFF, [0.95, 0.95, 0.05, 0.95], 2),
        (CLIFF, [0.15] * 8, 0),  # 1.15 / 12 is less than 1 / 10
        (FLAT, [0.95] * 8, 8),
        (FLAT, [0.95, 0.95, 0.05, 0.05], 2),
        ({1: 10.0, 2: 30.0, 3: 60.0}, [0.95] * 2, 0),
    ],
)
def test_as_many_drafts_are_checked_as_pay(widths: dict[int, float], probabilities: list[float], window: int) -> None:
    assert WindowCost(widths).trim(CONTEXT, sure(*probabilities)) == window


@given(
    st.lists(st.floats(1, 50), min_size=9, max_size=9), st.lists(st.sampled_from([0.15, 0.55, 0.85, 0.95]), max_size=8)
)
def test_the_window_has_the_most_tokens_a_millisecond(costs: list[float], probabilities: list[float]) -> None:
    """Each probability is the middle of its bin, which is what a fresh calibration makes of it."""
    widths = dict(enumerate(costs, 1))
    found = WindowCost(widths).trim(CONTEXT, sure(*probabilities))
    if not probabilities:
        assert found == UNLIMITED
        return
    rates = [
        sum(math.prod(probabilities[:slot]) for slot in range(k + 1)) / widths[k + 1]
        for k in range(len(probabilities) + 1)
    ]
    assert rates[found] == pytest.approx(max(rates))


def test_time_that_drafting_has_cost_is_weighed() -> None:
    gate = WindowCost({1: 10.0, 2: 12.0})
    assert gate.trim(CONTEXT, sure(0.35)) == 1  # 1.35 / 12 beats 1 / 10
    gate = WindowCost({1: 10.0, 2: 14.0})
    assert gate.trim(CONTEXT, sure(0.35)) == 0
    gate.observe(CONTEXT, step(1, 1, draft=10.0, probability=0.85))
    assert gate.trim(CONTEXT, sure(0.35)) == 1, "10 ms of drafting are spent in either case: 1.35 / 24 beats 1 / 20"


def test_a_drafter_that_is_sure_and_wrong_is_seen_through() -> None:
    gate = WindowCost(CLIFF)
    assert gate.trim(CONTEXT, sure(*[0.95] * 3)) == 3
    for _ in range(40):
        gate.observe(CONTEXT, step(0, 3))
    assert gate.trim(CONTEXT, sure(*[0.95] * 3)) == 0
    assert gate.trim(CONTEXT, sure(*[0.85] * 3)) > 0, "other confidences are calibrated apart"


def test_a_machine_that_is_slower_by_a_factor_changes_nothing() -> None:
    gate = WindowCost(CLIFF)
    for _ in range(40):
        gate.observe(CONTEXT, step(3, 3, forward=160.0))
    assert gate.clock.forward_ms(1) == pytest.approx(100.0, rel=1e-3)
    assert gate.trim(CONTEXT, sure(*[0.95] * 8)) == 3


def test_warmup_steps_leave_the_window_alone_and_learn() -> None:
    gate = WindowCost(CLIFF, warmup_steps=30)
    for _ in range(30):
        assert gate.trim(CONTEXT, sure(*[0.95] * 8)) == UNLIMITED
        gate.observe(CONTEXT, step(0, 8))
    assert gate.trim(CONTEXT, sure(*[0.95] * 8)) == 0
    with pytest.raises(DecodeError, match="warmup_steps = -1"):
        WindowCost(CLIFF, warmup_steps=-1)


class Nobody:
    def on_step(self, step: Step) -> None:
        pass

    def on_alarm(self, alarm: Any) -> None:
        raise AssertionError(alarm)


class Text:
    """Feeds a guard steps with four drafts, or plain ones where it allows none; counts tokens."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.context = Context([], 0, 9999, 9999)

    @property
    def off(self) -> bool:
        return self.guard.window(self.context) == 0

    def go(self, accepted: int) -> None:
        made = step(0, 0, forward=10.0) if self.off else step(accepted, 4, forward=20.0, draft=4.0)
        self.context.ids += made.next_ids
        self.guard.observe(self.context, made)

    def rest(self) -> int:
        """How many tokens are plain from here on."""
        before = self.context.new_tokens
        while self.off:
            self.go(0)
        return self.context.new_tokens - before


def test_drafting_that_does_not_pay_rests_for_longer_and_longer() -> None:
    text = Text(Guard({1: 10.0, 5: 20.0}))
    rests = []
    for _ in range(6):
        for _ in range(TRIAL):
            assert not text.off
            text.go(1)  # two tokens for 24 ms, where plain steps take 20
        rests.append(text.rest())
    assert rests == [24, 48, 96, 192, 192, 192]


def test_drafting_that_pays_goes_on_and_makes_the_next_rest_short() -> None:
    text = Text(Guard({1: 10.0, 5: 20.0}))
    for _ in range(TRIAL):
        text.go(1)
    assert text.rest() == 24
    for _ in range(50):
        text.go(2)  # three tokens for 24 ms
        assert not text.off
    for _ in range(40):
        if text.off:
            break
        text.go(0)
    assert text.rest() == 24


def test_steps_that_were_not_free_to_draft_are_no_trial() -> None:
    guard = Guard({1: 10.0, 5: 20.0})
    for _ in range(50):
        guard.observe(CONTEXT, step(0, 0, forward=30.0))
    assert guard.window(CONTEXT) == UNLIMITED


def test_gates_learn_of_the_drafter_that_proposed(llama: Any) -> None:
    """Through the loop, whose steps have a mode where the proposals of a single drafter have none."""
    truth = greedy(llama, [5, 17, 3], 60)
    gates = [WindowCost({1: 10.0, 9: 30.0})]
    decoder = Decoder(llama, anti(truth, 8, 97), Sampler(llama, 3), sink=Nobody(), gates=gates, max_new_tokens=60)
    steps = [step for step in decoder.run([5, 17, 3]) if step.reason != "prefill"]
    assert len(steps[0].drafts) == 8
    assert sum(bool(step.drafts) for step in steps[-16:]) <= 1, "wrong drafts are not worth a look, but for a try"
    assert [token for step in steps for token in step.next_ids] == truth


def test_what_was_given_up_is_looked_at_again() -> None:
    gate = WindowCost(CLIFF)
    for _ in range(60):
        if gate.trim(CONTEXT, sure(0.95, 0.95, 0.95)):
            gate.observe(CONTEXT, step(0, 3))
    looked = 0
    for _ in range(200):
        if gate.trim(CONTEXT, sure(0.95, 0.95, 0.95)):
            looked += 1
            gate.observe(CONTEXT, step(3, 3))
    assert looked > 100, "drafts that are right again count again"
