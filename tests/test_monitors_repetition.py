"""Monitor `repetition`: cycles of generated tokens, found at the same token whatever the width of a step (case C18)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sotscope.events import Alarm
from sotscope.health.monitors.repetition import LONG
from sotscope.testing.health import alarms_of, in_steps, token_rows, watch_rows

START = 900
"""The prompt's only token."""


def found(text: Sequence[int], prompt: Sequence[int] = (START,), **options: Any) -> list[Alarm]:
    return alarms_of("repetition", token_rows([*prompt, *text], prompt=len(prompt)), **options)


def cycle_of(tokens: Sequence[int], repeats: float = 3, least: int = 24, longest: int = 128) -> tuple[int, int] | None:
    """(period, covered) of the shortest cycle that ends a text, by trying all of them."""
    for period in range(1, min(longest, len(tokens)) + 1):
        covered = period
        while covered < len(tokens) and tokens[-covered - 1] == tokens[-covered - 1 + period]:
            covered += 1
        if covered > period and covered >= max(least, (min(repeats, 2.5) if period >= LONG else repeats) * period):
            return period, covered
    return None


@given(
    st.lists(
        st.one_of(
            st.lists(st.integers(0, 3), max_size=12),
            st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(2, 24)).map(
                lambda pair: pair[0] * pair[1]
            ),
        ),
        max_size=4,
    ).map(lambda parts: [token for part in parts for token in part][:260])
)
@settings(max_examples=120, deadline=None)
def test_it_alarms_exactly_where_brute_force_finds_a_cycle(tokens: list[int]) -> None:
    said = watch_rows("repetition", token_rows([START, *tokens])) if tokens else []
    first = next(((i, cycle) for i in range(len(tokens)) if (cycle := cycle_of(tokens[: i + 1]))), None)
    if first is None:
        assert not said
        return
    i, (period, covered) = first
    pos, alarm = said[0]
    assert isinstance(alarm, Alarm)
    assert (pos, alarm.data["period"], alarm.data["covered"]) == (i, period, covered)
    assert alarm.onset == i + 2 - covered, "token i of the text is at position i + 1"
    assert alarm.data["cycle"] == tokens[i + 1 - covered :][:period]


TABLE = [
    token
    for row in range(6)
    for token in (1, 2, 10 + row, 2, 30 + row % 2, 2, 50 + row, 2, 1)  # | name | yes | 3 |
]
RULE = [1, *[3, 2] * 6, 1]
"""|---|---|---|---|---|---|"""
BLOCK = [*range(300, 340)]


@pytest.mark.parametrize(
    "tokens",
    [
        TABLE,
        [*RULE, *TABLE],
        [7] * 12 + list(range(100, 160)),
        [*BLOCK, *BLOCK[:-1], 5, *range(400, 420)],
        [*BLOCK[:20], 5, *BLOCK[21:], *BLOCK],
        [t for number in range(20) for t in (60 + number, 12, 200 + 3 * number, 13)],  # a numbered list
        [t for line in range(12) for t in (8, 8, 8, 8, 500 + line, 9)],  # indented code
        [5] * 23,
        BLOCK * 2,
        list(range(129)) * 4,
    ],
    ids=["table", "rule", "indent", "two blocks", "blocks", "list", "code", "23", "twice", "longer than 128"],
)
def test_what_only_looks_like_a_cycle_does_not_alarm(tokens: list[int]) -> None:
    assert not found(tokens)


@pytest.mark.parametrize(
    ("tokens", "period", "at"),
    [([5] * 24, 1, 24), ([1, 2, 3] * 8, 3, 24), (BLOCK * 4, 40, 100), (list(range(128)) * 3, 128, 320)],
    ids=["one token", "abc", "40 tokens", "128 tokens"],
)
def test_a_cycle_alarms_with_its_shortest_period(tokens: list[int], period: int, at: int) -> None:
    (alarm,) = found([77, *tokens])
    assert (alarm.kind, alarm.severity) == ("repetition", "critical")
    assert (alarm.data["period"], alarm.data["covered"]) == (period, at)
    assert alarm.data["cycle"] == tokens[:period]
    assert (alarm.onset, alarm.pos) == (2, at), "the row before the newest token chose it"


@pytest.mark.parametrize("tokens", [[5] * 60, [1, 2, 3] * 30, BLOCK * 5, [*range(50), *[4, 6] * 40]])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 16, 200])
def test_the_width_of_a_step_does_not_matter(tokens: list[int], width: int) -> None:
    rows = token_rows([START, 901, 902, *tokens], prompt=3)
    assert watch_rows("repetition", list(in_steps(rows, width))) == watch_rows("repetition", rows)


def test_repetition_in_the_prompt_alone_does_not_alarm() -> None:
    assert not found(list(range(40)), prompt=[5] * 200)
    assert not found([5] * 23, prompt=[5] * 200)


def test_a_loop_that_the_prompt_began_needs_generated_turns() -> None:
    (alarm,) = found([5] * 24, prompt=[5] * 50)
    assert alarm.onset == 50, "the first generated token"
    assert alarm.data["covered"] == 24


def test_tokens_that_were_forced_are_given_too() -> None:
    rows = token_rows([START, *[5] * 80, *range(40)], prompt=81)
    assert not alarms_of("repetition", rows)


def test_it_alarms_once_and_ends_where_the_cycle_does() -> None:
    events = watch_rows("repetition", token_rows([START, *[5] * 60, *range(200, 260), *[6] * 30]))
    assert [type(event).__name__ for _, event in events] == ["Alarm", "AlarmEnd", "Alarm"]
    assert (events[0][1].onset, events[1][1].pos, events[2][1].onset) == (1, 59, 121)


def test_more_turns_and_other_lengths_can_be_asked_for() -> None:
    assert not found([5] * 40, tokens=41)
    assert found([5] * 8, tokens=8)
    assert not found(BLOCK * 3, long_repeats=4.0, repeats=4.0)
    assert not found(BLOCK * 6, longest=39)
