"""Frames: what a viewer is told since it last looked, and that nothing is lost however it asks."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sotscope.events import Draft
from sotscope.live.frames import Frame, frame_of
from sotscope.store.reader import Run
from sotscope.testing.runs import write_run

STATES = np.random.default_rng(0).normal(size=(12, 2, 4)).astype(np.float32)


def made(folder: Path) -> Run:
    refused = Draft(0, 6, 42, 0.5, 1.0, "first_slot_miss")
    lost = Draft(1, 7, 43, 0.5, 1.0, "after_miss")
    scalars = {name: np.arange(12, dtype=np.float32) for name in ("entropy", "logprob", "margin")}
    scalars["norm"] = np.linalg.norm(STATES, axis=2)
    return write_run(
        folder / "a.sot", {"resid": STATES}, prompt=4, drafts={5: [refused, lost]}, scalars=scalars, last=7,
        words={42: " never"},
    )  # fmt: skip


def test_a_token_is_coloured_by_the_row_that_chose_it(tmp_path: Path) -> None:
    run = made(tmp_path)
    frame = frame_of(run, run.rows(), 0, 99, layer=1)
    assert frame.total == 12
    assert frame.stop == 13  # the token chosen last has no row yet
    assert frame.labels == [f"␣{i}" for i in range(12)] + ["␣7"]
    assert np.isnan(frame.entropy[0])
    assert frame.entropy[5] == 4.0
    assert frame.entropy[12] == 11.0
    norms = np.linalg.norm(STATES[:, 1], axis=1)
    np.testing.assert_allclose(frame.norm[:12], norms, rtol=1e-5)
    assert np.isnan(frame.norm[12])
    assert frame.how == ["given"] * 4 + ["chosen"] * 9
    assert frame.refused == {6: ["␣never", "first_slot_miss"]}


def test_json_is_strict(tmp_path: Path) -> None:
    import json

    run = made(tmp_path)
    json.dumps(frame_of(run, run.rows(), 0, 99, layer=1).as_dict(), allow_nan=False)


def test_no_rows(tmp_path: Path) -> None:
    run = made(tmp_path)
    frame = frame_of(run, run.rows()[:0], 0, 10)
    assert (frame.start, frame.stop, frame.labels) == (0, 0, [])


def test_any_way_of_asking_gives_the_same_tokens(tmp_path_factory: pytest.TempPathFactory) -> None:
    run = made(tmp_path_factory.mktemp("frames"))
    whole = frame_of(run, run.rows(), 0, 99, layer=0)

    @given(st.lists(st.integers(0, 13), max_size=6))
    def check(cuts: list[int]) -> None:
        edges = [0, *sorted(cuts), 13]
        parts = [frame_of(run, run.rows(), a, b, layer=0) for a, b in pairwise(edges) if b > a]
        assert [label for part in parts for label in part.labels] == whole.labels
        assert [how for part in parts for how in part.how] == whole.how
        entropies = np.array([value for part in parts for value in part.entropy])
        np.testing.assert_array_equal(entropies, np.array(whole.entropy))
        assert {key: value for part in parts for key, value in _within(part).items()} == whole.refused

    check()


def _within(frame: Frame) -> dict[int, list[str]]:
    return {at: found for at, found in frame.refused.items() if frame.start <= at < frame.stop}


def test_a_draft_of_a_step_of_another_sequence_is_not_shown(tmp_path: Path) -> None:
    run = made(tmp_path)
    others = np.delete(run.rows(), 5)  # the row whose step refused a draft belongs to another lineage
    assert frame_of(run, others, 0, 99).refused == {}
