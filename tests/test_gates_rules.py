"""The gates on request: when each of them makes plain steps, and that none of them changes a word."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sotscope.catalog import GATES
from sotscope.decode.contracts import UNLIMITED, Context, Drafter, Gate, Proposal
from sotscope.decode.loop import Decoder
from sotscope.decode.sampling import Sampler
from sotscope.errors import DecodeError
from sotscope.events import Alarm, Step
from sotscope.testing.drafters import Scripted, greedy, mix, oracle
from sotscope.testing.tiny import tiny
from sotscope.testing.tokenizers import byte_tokenizer

PROMPT = [5, 17, 3, 88, 41]
WIDTHS = {1: 10.0, 2: 11.0, 16: 20.0}


class Silent:
    def on_step(self, step: Step) -> None:
        pass

    def on_alarm(self, alarm: Alarm) -> None:
        raise AssertionError(alarm)

    def on_command(self, command: Any) -> None:
        raise AssertionError(command)


def decode(model: Any, drafter: Drafter, gates: Sequence[Gate], count: int, **more: Any) -> list[Step]:
    """The steps that chose tokens."""
    sampler = Sampler(model, len(PROMPT), processors=more.pop("processors", ()))
    gates = [GATES.get("context")(), *gates]
    decoder = Decoder(model, drafter, sampler, sink=Silent(), gates=gates, max_new_tokens=count, **more)
    return [step for step in decoder.run(PROMPT) if step.reason != "prefill"]


def tokens(steps: list[Step]) -> list[int]:
    return [token for step in steps for token in step.next_ids]


@pytest.fixture(scope="module")
def truth(llama: Any) -> list[int]:
    return greedy(llama, PROMPT, 32)


@pytest.mark.parametrize(
    ("name", "options", "window", "rows"),
    [
        ("warmup", {"plain_first": 5}, 4, [1] * 5 + [5] * 5 + [2]),
        ("warmup", {"plain_first": 0}, 4, [5] * 6 + [2]),
        ("periodic", {"every": 10}, 4, [5, 5, 1, 5, 5, 1, 5, 5]),
        ("periodic", {"every": 8}, 4, [5, 5, 1, 5, 5, 1, 5, 5]),
        ("periodic", {"every": 1}, 4, [5, 1, 5, 1, 5, 1, 5, 1, 5, 1, 2]),
        ("mix_ratio", {}, 8, [7, 1, 1, 1, 7, 1, 1, 1, 7, 1, 1, 1, 2]),
        ("mix_ratio", {"drafted": 7, "plain": 3}, 4, [5, 2, 1, 1, 1, 5, 2, 1, 1, 1, 5, 2, 1, 1, 1, 2]),
        ("mix_ratio", {"drafted": 2, "plain": 2}, 8, [2, 1, 1] * 8),
    ],
)
def test_right_drafts_come_in_steps_of_these_widths(
    name: str, options: dict[str, int], window: int, rows: list[int], llama: Any, truth: list[int]
) -> None:
    steps = decode(llama, oracle(truth, window), [GATES.get(name)(**options)], 32)
    assert [step.rows for step in steps] == rows
    assert tokens(steps) == truth


def test_a_plain_step_for_another_reason_starts_the_period_anew(llama: Any, truth: list[int]) -> None:
    gates = [GATES.get("periodic")(every=10), GATES.get("warmup")(plain_first=7)]
    steps = decode(llama, oracle(truth, 4), gates, 32)
    assert [step.rows for step in steps] == [1] * 7 + [5, 5, 1, 5, 5, 1, 3]


class Say:
    """A logits processor that leaves one token to choose: the text is ``ids``, whatever the model thinks."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = list(ids)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.scatter(1, torch.tensor([[self.ids[input_ids.shape[1] - len(PROMPT)]]]), math.inf)


def test_after_a_blank_line_the_model_begins_itself() -> None:
    model, tokenizer = tiny("llama", vocab_size=260), byte_tokenizer()
    ids = tokenizer("ab\n\ncd\n\nefghij", add_special_tokens=False)["input_ids"]
    say = Say(ids)
    steps = decode(model, oracle(ids, 3), [GATES.get("paragraph")()], len(ids), tokenizer=tokenizer, processors=[say])
    assert [step.text for step in steps] == ["ab\n\n", "c", "d\n\ne", "fghi", "j"], "in a block it is jumped over"


@pytest.mark.parametrize(
    ("text", "plain"),
    [("", False), ("a\n", False), ("a\n\n", True), ("a\n \t\n  ", True), ("a\r\n\r\n", True), ("\n\n", True),
     ("a\n\nb", False), ("a\nb\n", False)],
)  # fmt: skip
def test_what_a_blank_line_is(text: str, plain: bool) -> None:
    context = Context(PROMPT, 5, 99, 99, text=text)
    assert GATES.get("paragraph")().window(context) == (0 if plain else UNLIMITED)


class Unsure(Scripted):
    """Right drafts, with an entropy of ``nats(target)`` each; remembers the windows it was asked for."""

    def __init__(self, continuation: Sequence[int], nats: Callable[[int], float]) -> None:
        super().__init__(continuation, 4, lambda position, token: token)
        self._nats = nats
        self.asked: list[int] = []

    def propose(self, context: Context, window: int) -> Proposal:
        self.asked.append(window)
        made = super().propose(context, window)
        return replace(made, entropies=[self._nats(context.new_tokens + slot) for slot in range(len(made))])


def test_a_proposal_ends_before_the_first_unsure_token(llama: Any, truth: list[int]) -> None:
    drafter = Unsure(truth, lambda target: 2.4 if target == 6 else 2.3)
    steps = decode(llama, drafter, [GATES.get("entropy")()], 20)
    assert [step.rows for step in steps] == [5, 2, 5, 5, 3]
    assert tokens(steps) == truth[:20]


def test_unsure_three_times_in_a_row_is_plain_for_a_while(llama: Any, truth: list[int]) -> None:
    drafter = Unsure(truth, lambda target: 3.0)
    steps = decode(llama, drafter, [GATES.get("entropy")(rest=4)], 20)
    assert [step.rows for step in steps] == [1] * 20
    assert drafter.asked == [4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 0, 0, 0, 0, 4, 4, 3, 0, 0, 0]


def test_unsure_now_and_then_is_not_in_a_row(llama: Any, truth: list[int]) -> None:
    drafter = Unsure(truth, lambda target: 0.0 if target in (2, 5, 6, 7) else 3.0)
    decode(llama, drafter, [GATES.get("entropy")()], 12)
    assert 0 not in drafter.asked[:6], "two unsure steps, a sure one, one unsure one, a sure one"


def test_without_entropies_nothing_is_cut() -> None:
    gate, context = GATES.get("entropy")(threshold=1.0), Context(PROMPT, 5, 99, 99)
    assert gate.trim(context, Proposal(ids=[1, 2, 3])) == UNLIMITED
    assert gate.trim(context, Proposal(ids=[1, 2, 3], entropies=[math.nan, 0.5, math.nan])) == UNLIMITED
    assert gate.trim(context, Proposal(ids=[1, 2, 3], entropies=[math.nan, 0.5, 1.5])) == 2


def surprised(gate: Any, count: int, recent: float, usual: float = -1.0) -> list[int]:
    """Windows after each of ``count`` tokens, the last four of which have log-probability ``recent``."""
    context = Context([0] * count, 0, 99, 99, logprobs=[usual] * (count - 4) + [recent] * 4)
    gate.window(context)
    gate.observe(context, Step(0, 0, "ar", 0, (0,), (0,)))
    windows = []
    for _ in range(10):
        windows.append(gate.window(context))
        context.ids.append(0)
    return windows


@pytest.mark.parametrize(
    ("count", "recent", "factor", "plain"),
    [
        (16, -3.0, 4.4, 8),  # mean of four: 3, of sixteen: 1.5; exp(1.5) = 4.48
        (16, -3.0, 4.5, 0),
        (15, -9.0, 2.0, 0),  # too few to know what is usual
        (40, -1.0, 2.0, 0),
        (40, -1e9, 2.0, 8),
        (40, -math.inf, 2.0, 0),
    ],
)
def test_a_spike_of_perplexity_makes_plain_steps(count: int, recent: float, factor: float, plain: int) -> None:
    windows = surprised(GATES.get("perplexity")(factor=factor), count, recent)
    assert windows == [0] * plain + [UNLIMITED] * (10 - plain)


def test_the_perplexity_is_that_of_the_model_before_processors(llama: Any) -> None:
    ids = greedy(llama, PROMPT, 12)
    with torch.inference_mode():
        last = llama(torch.tensor([[*PROMPT, *ids]])).logits[0, -1]
    ids += [int(last.argmin())] * 12  # what nobody expects
    with torch.inference_mode():
        log_p = torch.log_softmax(llama(torch.tensor([[*PROMPT, *ids]])).logits[0], -1)
    expected = [float(log_p[4 + i, token]) for i, token in enumerate(ids)]
    gate, seen = GATES.get("perplexity")(window=8, factor=1.5, rest=5), []
    plain = gate.window

    def window(context: Context) -> int:
        seen[:] = context.logprobs
        return plain(context)

    gate.window = window
    steps = decode(llama, oracle(ids, 2), [gate], 24, processors=[Say(ids)])
    assert seen == pytest.approx(expected[: len(seen)], abs=1e-4)
    assert len(seen) >= 21
    rows = [step.rows for step in steps]
    # twelve usual tokens, then the step with the first unlikely ones, then five plain ones
    assert rows[:5] == [3, 3, 3, 3, 3]
    assert rows[5:10] == [1] * 5
    assert tokens(steps) == ids


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("warmup", {"plain_first": -1}),
        ("periodic", {"every": 0}),
        ("perplexity", {"window": 4}),
        ("perplexity", {"factor": 1.0}),
        ("perplexity", {"rest": 0}),
        ("entropy", {"threshold": 0.0}),
        ("entropy", {"threshold": math.nan}),
        ("entropy", {"in_a_row": 0}),
        ("mix_ratio", {"drafted": 1}),
        ("mix_ratio", {"plain": 0}),
    ],
)
def test_a_parameter_out_of_range_is_named(name: str, options: dict[str, float]) -> None:
    ((parameter, value),) = options.items()
    with pytest.raises(DecodeError, match=rf"gate {name}.*{parameter}.*{value}"):
        GATES.get(name)(**options)


GATE = st.one_of(
    st.builds(lambda n: GATES.get("warmup")(n), st.integers(0, 12)),
    st.builds(lambda n: GATES.get("periodic")(n), st.integers(1, 12)),
    st.builds(lambda f, r: GATES.get("perplexity")(5, f, r), st.floats(1.01, 3), st.integers(1, 6)),
    st.builds(lambda t, n, r: GATES.get("entropy")(t, n, r), st.floats(0.01, 4), st.integers(1, 3), st.integers(1, 6)),
    st.builds(lambda d, p: GATES.get("mix_ratio")(d, p), st.integers(2, 8), st.integers(1, 4)),
    st.builds(lambda n: GATES.get("cost")(WIDTHS, n), st.integers(0, 4)),
    st.builds(lambda: GATES.get("guard")(WIDTHS)),
)


@settings(max_examples=40)
@given(st.lists(GATE, max_size=4), st.integers(1, 6), st.booleans())
def test_no_gate_changes_the_text(llama: Any, truth: list[int], gates: list[Gate], window: int, right: bool) -> None:
    drafter = oracle(truth, window) if right else mix(truth, window, 97)
    steps = decode(llama, drafter, gates, 32)
    assert tokens(steps) == truth
    assert all(step.rows <= window + 1 for step in steps)


@pytest.mark.parametrize("name", ["periodic", "perplexity", "entropy"])
def test_a_gate_can_go_on_to_another_text(name: str) -> None:
    gate = GATES.get(name)()
    old = Context([0] * 90, 0, 999, 999, logprobs=[-1.0] * 60 + [-9.0] * 4)
    for _ in range(3):
        gate.window(old)
        gate.trim(old, Proposal(ids=[1], entropies=[9.0]))
        gate.observe(old, Step(0, 0, "ar", 0, (0,), (0,)))
    new = Context([0], 1, 999, 999)
    if name != "periodic":
        assert gate.window(old) == 0
    assert gate.window(new) == UNLIMITED
    new.ids += [0] * 48
    assert gate.window(new) == (0 if name == "periodic" else UNLIMITED)


def test_unsure_steps_of_one_text_do_not_count_in_the_next() -> None:
    gate, unsure = GATES.get("entropy")(), Proposal(ids=[1], entropies=[9.0])
    for times, context in ((2, Context([0], 1, 99, 99)), (2, Context([0], 1, 99, 99)), (3, Context([0], 1, 99, 99))):
        for _ in range(times):
            assert gate.window(context) == UNLIMITED
            gate.trim(context, unsure)
            gate.observe(context, Step(0, 0, "ar", 0, (0,), (0,)))
    assert gate.window(context) == 0
