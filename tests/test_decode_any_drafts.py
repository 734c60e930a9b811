"""Whatever is drafted, however long, wherever the text ends: the steps add up to plain greedy decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sotscope.catalog import GATES
from sotscope.decode.contracts import Context, Drafter, Proposal
from sotscope.decode.loop import Decoder
from sotscope.decode.sampling import Sampler
from sotscope.events import Alarm, Command, Step
from sotscope.testing.drafters import greedy
from sotscope.testing.tiny import tiny

PROMPT = [5, 17, 3, 88, 41]
COUNT = 24


class Whatever(Drafter):
    """Proposes, step by step, what it was given: so many right tokens, then whatever else."""

    mode = "other"
    window = 8

    def __init__(self, truth: Sequence[int], plan: Sequence[tuple[int, list[int]]]) -> None:
        self.truth = list(truth)
        self.plan = iter(plan)

    def propose(self, context: Context, window: int) -> Proposal:
        right, rest = next(self.plan, (0, []))
        start = context.new_tokens
        ids = [*self.truth[start : start + right], *rest][:window]
        return Proposal(ids=ids, probabilities=[0.5] * len(ids))


class Listener:
    def __init__(self) -> None:
        self.steps: list[Step] = []

    def on_step(self, step: Step) -> None:
        self.steps.append(step)

    def on_alarm(self, alarm: Alarm) -> None:
        raise AssertionError(alarm)

    def on_command(self, command: Command) -> None:
        raise AssertionError(command)


@pytest.fixture(scope="module")
def models() -> dict[str, tuple[Any, list[int]]]:
    made = {name: tiny(name) for name in ("llama", "gpt2", "gemma3")}
    return {name: (model, greedy(model, PROMPT, COUNT)) for name, model in made.items()}


PLANS = st.lists(st.tuples(st.integers(0, 6), st.lists(st.integers(0, 96), max_size=4)), max_size=COUNT)


@settings(max_examples=40)
@given(st.sampled_from(["llama", "gpt2", "gemma3"]), PLANS, st.integers(1, COUNT), st.integers(0, COUNT - 1))
def test_any_drafts_give_the_tokens_of_plain_decoding(
    models: dict[str, tuple[Any, list[int]]], name: str, plan: list[tuple[int, list[int]]], count: int, end: int
) -> None:
    model, truth = models[name]
    eos = truth[end]
    expected = truth[: min(count, truth.index(eos) + 1)]
    listener = Listener()
    sampler = Sampler(model, len(PROMPT), overrides={"eos_token_id": [eos]})
    gates = [GATES.get("context")()]
    decoder = Decoder(
        model, Whatever(truth, plan), sampler, sink=listener, gates=gates, max_new_tokens=count, context_length=48
    )
    steps = list(decoder.run(PROMPT))
    assert steps == listener.steps
    fed = [token for step in steps for token in step.token_ids]
    chosen = [token for step in steps if step.mode != "prompt" for token in step.next_ids]
    assert chosen == expected
    assert fed == [*PROMPT, *expected[:-1]]
    assert [step.pos + row for step in steps for row in range(step.rows)] == list(range(len(fed)))
    assert decoder.cached.length == decoder.cached.cache.get_seq_length() == len(fed)
    for draft in (draft for step in steps for draft in step.drafts):
        right = draft.token == truth[draft.target - len(PROMPT)] if draft.target - len(PROMPT) < COUNT else None
        if draft.accepted:
            assert right
        elif draft.reason.endswith("slot_miss"):
            assert right is False
    for step in steps:
        taken = [draft.accepted for draft in step.drafts]
        assert step.accepted == sum(taken)
        assert taken == sorted(taken, reverse=True), "a draft was accepted after a refused one"
        assert step.rows in (step.accepted, step.accepted + 1) or step.mode == "prompt"
    outcome = decoder.outcome
    assert outcome is not None
    assert outcome.new_tokens == len(expected)
    assert outcome.finish_reason == ("eos" if expected[-1] == eos else "max_new_tokens")
