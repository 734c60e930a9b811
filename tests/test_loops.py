"""The plain definition of a loop, against its words taken literally."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sotscope.health.loops import LONGEST, TOKENS, TURNS, loop_start


def literally(ids: list[int]) -> int | None:
    """After each token, every period: are the newest tokens a cycle that is long enough?"""
    for count in range(len(ids) + 1):
        for period in range(1, LONGEST + 1):
            covered = max(TURNS * period, TOKENS)
            newest = ids[count - covered : count]
            if covered <= count and newest[period:] == newest[:-period]:
                return count
    return None


@given(
    st.lists(st.integers(0, 2), max_size=12),
    st.lists(st.integers(0, 2), min_size=1, max_size=14),
    st.integers(0, 60),
    st.lists(st.integers(0, 2), max_size=6),
)
def test_it_is_the_definition_taken_literally(
    before: list[int], cycle: list[int], tokens: int, after: list[int]
) -> None:
    ids = before + (cycle * 60)[:tokens] + after
    assert loop_start(ids) == literally(ids)


@pytest.mark.parametrize(
    ("period", "tokens"), [(1, 24), (2, 24), (8, 24), (9, 27), (LONGEST, TURNS * LONGEST), (11, 33)]
)
def test_a_cycle_is_a_loop_once_it_fills_three_turns_and_24_tokens(period: int, tokens: int) -> None:
    before = list(range(1000, 1010))
    cycle = list(range(period)) * (TOKENS + TURNS)
    assert loop_start(before + cycle[: tokens - 1]) is None
    assert loop_start(before + cycle[:tokens]) == len(before) + tokens
    assert loop_start(before + cycle) == len(before) + tokens


def test_a_longer_period_and_a_text_with_other_words_in_each_turn_are_no_loop() -> None:
    assert loop_start(list(range(LONGEST + 1)) * 4) is None
    assert loop_start([token for number in range(60) for token in (1, 2, number + 10, 3)]) is None
    assert loop_start([]) is None


def test_a_loop_that_was_left_again_was_one() -> None:
    assert loop_start([5] * 30 + list(range(100, 300))) == 24
