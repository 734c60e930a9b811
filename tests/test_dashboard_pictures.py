"""Which pictures are sent while tokens come: what only grew rests, what a person changed comes at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sotscope.store.reader import Run
from sotscope.testing.runs import write_run
from sotscope_dashboards.catalog import PANELS
from sotscope_dashboards.look import Look
from sotscope_dashboards.panels.states import States
from sotscope_dashboards.panels.words import Words
from sotscope_dashboards.pictures import pictures
from sotscope_dashboards.scene import Scene

WANTS = ("candidates", "states", "words")


def made(path: Path, rows: int) -> Run:
    rng = np.random.default_rng(3)
    states = rng.normal(size=(rows, 3, 4)).astype(np.float32)
    scalars: dict[str, Any] = {key: rng.random(rows).astype(np.float32) for key in ("entropy", "logprob", "margin")}
    scalars |= {"norm": np.linalg.norm(states, axis=2), "max_abs": np.abs(states).max(2)}
    scalars["cosine"] = rng.random((rows, 3)).astype(np.float32)
    return write_run(path, {"resid": states}, prompt=5, scalars=scalars)


class Tab:
    """What a tab has, at a time of our making."""

    def __init__(self) -> None:
        self.have: dict[str, str] = {}
        self.now = 1000.0

    def sent(self, run: Run, look: Look, *, moving: bool, wants: Sequence[str] = WANTS) -> list[str]:
        panels = {name: PANELS.get(name)() for name in PANELS.names()}
        found = pictures(Scene(look, run), panels, wants, self.have, moving=moving, now=lambda: self.now)
        self.have |= {name: one["key"] for name, one in found.items()}
        return list(found)


@pytest.fixture
def grows(tmp_path: Path) -> list[Run]:
    return [made(tmp_path / f"{rows}.sot", rows) for rows in (20, 21, 22)]


def test_what_grew_rests_and_the_candidates_do_not(grows: list[Run]) -> None:
    tab, look = Tab(), Look()
    assert tab.sent(grows[0], look, moving=True) == list(WANTS)
    tab.now += 0.1
    assert tab.sent(grows[0], look, moving=True) == []
    assert tab.sent(grows[1], look, moving=True) == ["candidates"]
    tab.now += States.rest_ms / 1000
    assert tab.sent(grows[1], look, moving=True) == ["states"]
    tab.now += (Words.rest_ms - States.rest_ms) / 1000
    assert tab.sent(grows[1], look, moving=True) == ["words"]


def test_the_last_of_it_comes_at_once_when_nothing_moves_any_more(grows: list[Run]) -> None:
    tab, look = Tab(), Look()
    tab.sent(grows[0], look, moving=True)
    tab.now += 0.1
    assert tab.sent(grows[1], look, moving=False) == list(WANTS)


def test_what_a_person_changed_comes_at_once(grows: list[Run]) -> None:
    tab = Tab()
    tab.sent(grows[0], Look(), moving=True)
    assert tab.sent(grows[1], Look(cursor=7), moving=True) == ["candidates", "words"]  # the heatmap has no cursor
    assert tab.sent(grows[1], Look(cursor=7, scalar="cosine"), moving=True) == list(WANTS)


@pytest.mark.parametrize("key", ["", "x", "a.b", "a.b.c", "...", "a.b.99999999999999999999"])
def test_a_key_that_is_none_of_ours_is_drawn(key: str, grows: list[Run]) -> None:
    tab = Tab()
    tab.have = dict.fromkeys(WANTS, key)
    assert tab.sent(grows[0], Look(), moving=True) == list(WANTS)


def test_a_clock_that_is_set_back_stops_nothing(grows: list[Run]) -> None:
    tab = Tab()
    tab.sent(grows[0], Look(), moving=True)
    tab.now -= 3600
    assert tab.sent(grows[1], Look(), moving=True) == list(WANTS)
