"""`compare`: where tokens part, how far apart states are where they are the same, and what it says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_helpers import call

from sotscope.analysis.comparison import aligned, compare, first_difference
from sotscope.analysis.pool import Threads
from sotscope.errors import AnalysisError
from sotscope.store.reader import Run
from sotscope.testing.runs import write_run

STATES = np.random.default_rng(2).normal(size=(12, 3, 8)).astype(np.float32)


def write(path: Path, ids: list[int] | None = None, states: Any = STATES, **more: Any) -> Run:
    return write_run(path, {"resid": states[: len(ids or states)]}, ids=ids, prompt=4, **more)


def said(runs: list[Run], **more: Any) -> list[tuple[str, str]]:
    return [(found.severity, found.text) for found in compare(runs, Threads(), **more).findings]


def test_the_same_run_twice_is_identical_and_at_distance_zero(tmp_path: Path) -> None:
    runs = [write(tmp_path / "a.sot"), write(tmp_path / "b.sot")]
    report = compare(runs, Threads())
    table = report.tables["runs"]
    assert table.first_difference.isna().all()
    assert table.distance_max[1] == 0
    assert report.tables["distance b.sot"]["cosine"].values.min() == pytest.approx(1)
    assert ("note", "b.sot says the same as a.sot, token for token.") in said(runs)


def test_distances_are_numpys_on_the_aligned_rows_only(tmp_path: Path) -> None:
    noise = np.random.default_rng(3).normal(size=STATES.shape).astype(np.float32)
    other = STATES + 0.1 * noise
    ids = [*range(7), 50, 51, 52, 53, 54]
    runs = [write(tmp_path / "a.sot"), write(tmp_path / "b.sot", ids, other)]
    assert (aligned(*runs), first_difference(*runs)) == (7, 7)
    found = compare(runs, Threads()).tables["distance b.sot"]
    a, b = STATES[:7].astype(np.float64), other[:7].astype(np.float64)
    size = np.linalg.norm(a, axis=-1)
    np.testing.assert_allclose(found["relative"], np.linalg.norm(b - a, axis=-1) / size, rtol=1e-6)
    np.testing.assert_allclose(found["cosine"], (a * b).sum(-1) / size / np.linalg.norm(b, axis=-1), rtol=1e-6)
    texts = said(runs)
    assert ("warning", "b.sot parts from a.sot at token 7, 3 tokens into the answer.") in texts
    assert any(severity == "warning" and "rounding explains no more" in text for severity, text in texts)


def test_a_text_that_only_ends_earlier_is_no_difference_of_words(tmp_path: Path) -> None:
    runs = [write(tmp_path / "a.sot", last=12), write(tmp_path / "b.sot", list(range(9)), last=9)]
    assert ("note", "b.sot and a.sot say the same for 6 tokens; then only a.sot goes on.") in said(runs)
    assert first_difference(*runs) == 10


def test_another_models_run_compares_what_both_have(tmp_path: Path) -> None:
    other = np.random.default_rng(4).normal(size=(12, 2, 5)).astype(np.float32)
    theirs = write_run(
        tmp_path / "b.sot", {"resid": other}, prompt=4, attributes={"model": {"name": "other", "dtype": "float32"}}
    )
    report = compare([write(tmp_path / "a.sot"), theirs], Threads())
    assert any("of another model (other)" in found.text for found in report.findings)
    assert report.left_out == ["states of b.sot: resid has other sizes ([2, 5], not [3, 8])"]
    assert "distance b.sot" not in report.tables


def test_the_same_ids_of_another_tokenizer_are_not_aligned(tmp_path: Path) -> None:
    runs = [write(tmp_path / "a.sot"), write(tmp_path / "b.sot", words={2: "two"})]
    assert (aligned(*runs), first_difference(*runs)) == (2, 2)


def test_half_precision_is_told_from_a_fault(tmp_path: Path) -> None:
    runs = [write(tmp_path / "a.sot"), write(tmp_path / "b.sot", dtype="bfloat16")]
    assert any("which rounding explains" in text for _, text in said(runs))


def test_too_few_runs_and_a_missing_site_are_one_line(tmp_path: Path) -> None:
    run = write(tmp_path / "a.sot")
    with pytest.raises(AnalysisError, match="at least two runs"):
        compare([run], Threads())
    with pytest.raises(AnalysisError, match="has no final"):
        compare([run, run], Threads(), site="final")


def test_the_command_prints_a_table_and_writes_a_page(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / f"{name}.sot")
    paths = [tmp_path / "a.sot", tmp_path / "b.sot"]
    answer = call("compare", *paths, "--html", tmp_path / "page.html")
    assert answer.code == 0, answer.err
    assert "identical" in answer.out
    page = (tmp_path / "page.html").read_text()
    assert "src=" not in page.split("<script>")[0]
    assert "token for token" in page
    found = call("compare", *paths, "--json").json
    assert [line["first_difference"] for line in found["runs"]] == [None, None]
    assert found["runs"][1]["distance_max"] == 0
    lone = call("compare", paths[0])
    assert (lone.code, lone.err.count("\n")) == (2, 1)
