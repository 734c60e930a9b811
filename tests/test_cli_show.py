"""`show`: which rows, which numbers, which columns, and the text of a run."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import call, mistake, recorded

from sotscope.events import Branch, Step
from sotscope.store.reader import Run, open_run
from sotscope.store.writer import Rows, RunWriter


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return open_run(recorded(tmp_path))


def test_show_has_one_line_a_row_the_last_forty_by_default(run: Run) -> None:
    answer = call("show", run.path)
    lines = [line for line in answer.out.split("\n") if line.strip().split(" ")[0].isdigit()]
    assert [int(line.split()[0]) for line in lines[:-1]] == list(range(len(run) - 40, len(run)))
    assert f"{len(run) - 40} of {len(run)} rows are not shown" in lines[-1]


def test_show_json_holds_the_numbers_of_the_run(run: Run) -> None:
    found = call("show", run.path, "--rows", "30-33", "--layer", 1, "--json").json
    assert [row["row"] for row in found["rows"]] == [30, 31, 32, 33]
    assert (found["hidden"], found["layer"]) == (len(run) - 4, 1)
    assert found["text"] == run.tokens.text
    row = found["rows"][2]
    assert (row["id"], row["next_id"]) == (run.tokens.ids[32], run.tokens.next_ids[32])
    state = run.states("resid", layer=1, tokens=32)
    assert row["norm"] == pytest.approx(np.linalg.norm(state), rel=1e-5)
    assert row["max_abs"] == pytest.approx(np.abs(state).max(), rel=1e-6)
    assert row["logprob"] == pytest.approx(float(run.scalars("logprob")[32]), rel=1e-6)
    assert row["top"][0] == {
        "id": run.top[0][32, 0],
        "token": run.pieces.label(int(run.top[0][32, 0])),
        "probability": pytest.approx(math.exp(run.top[1][32, 0])),
    }


def test_numbers_that_are_missing_are_null_not_nan(run: Run) -> None:
    row = call("show", run.path, "--rows", "0", "--json").json["rows"][0]
    assert row["mode"] == "prompt"
    assert row["entropy"] is None
    assert row["cosine"] is None
    assert row["top"] == []


@pytest.mark.parametrize(
    ("wanted", "first", "last"), [(["--rows", "5"], 5, 5), (["--rows", "80-"], 80, -1), (["--last", "3"], -3, -1)]
)
def test_show_takes_rows_and_last(run: Run, wanted: list[str], first: int, last: int) -> None:
    rows = [row["row"] for row in call("show", run.path, *wanted, "--json").json["rows"]]
    assert rows == list(range(first % len(run), last % len(run) + 1))


def test_show_text_is_the_text_alone(run: Run) -> None:
    assert call("show", run.path, "--text").out == run.tokens.text + "\n"


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (["--rows", "9-5"], "rows 9-5 are not there"),
        (["--rows", "5000"], "the run has rows 0-"),
        (["--rows", "some"], "is not a range"),
        (["--rows", "1", "--last", "2"], "not both"),
        (["--last", "0"], "--last"),
        (["--layer", "7"], "layer 7 was not recorded; recorded are 0, 1, 2, 3"),
        (["--seq", "3"], "sequence 3 is not in this run; there are 0"),
    ],
)
def test_show_refuses_what_the_run_has_not(run: Run, wanted: list[str], says: str) -> None:
    assert says in mistake("show", run.path, *wanted)


@pytest.mark.parametrize("width", [50, 80, 200])
def test_show_keeps_to_the_width_and_never_loses_position_token_or_candidates(
    run: Run, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = call("show", run.path).out.split("\n")
    assert max(map(len, lines)) <= width
    assert {"pos", "token", "likeliest", "entropy"} <= set(lines[0].split())
    assert ("margin" in lines[0]) == (width >= 80)


def test_seq_follows_a_branch_through_its_parent(run: Run, tmp_path: Path) -> None:
    """Six rows of sequence 0, then sequence 1 leaves it at position 4 with two rows of its own."""
    path = tmp_path / "branch.sot"
    with RunWriter(path, run.spec) as writer:
        writer.sequence(Branch(0, 1))
        writer.commit(Step(0, 0, "ar", 0, tuple(range(10, 16)), tuple(range(11, 17))), blank(run, 6))
        writer.sequence(Branch(1, 1, parent=0, parent_pos=4))
        writer.commit(Step(1, 1, "ar", 4, (70, 71), (71, 72)), blank(run, 2))
    rows = call("show", path, "--seq", 1, "--json").json["rows"]
    assert [row["id"] for row in rows] == [10, 11, 12, 13, 70, 71]
    assert [row["pos"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert [row["row"] for row in rows] == [0, 1, 2, 3, 6, 7]
    assert len(call("show", path, "--json").json["rows"]) == 8
    lines = call("show", path, "--seq", 1).out.split("\n")
    assert lines[0].split()[:2] == ["row", "pos"], "where they differ, both are shown"


def blank(run: Run, count: int) -> Rows:
    spec = run.spec
    return Rows(
        states={site.name: np.zeros((count, *site.row), site.native) for site in spec.sites},
        scalars={scalar.name: np.zeros((count, *scalar.row), scalar.dtype) for scalar in spec.scalars},
        present=np.ones((count, len(spec.layers)), bool),
        top_id=np.full((count, spec.top_k), -1, np.int32),
        top_logprob=np.full((count, spec.top_k), np.nan, np.float32),
        segments=(3,) * count,
    )
