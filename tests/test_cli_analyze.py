"""`sotscope analyze`: findings on stdout, a page that works offline, every number as JSON; mistakes are one line."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import call

from sotscope.analysis import figures
from sotscope.analysis.page import page
from sotscope.analysis.report import Report
from sotscope.errors import AnalysisError
from sotscope.testing.runs import write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    states = np.random.default_rng(0).normal(size=(30, 3, 16)).astype(np.float32)
    states[0] *= 500
    sites = {"resid": states, "final": states[:, -1]}
    return write_run(tmp_path / "a.sot", sites, prompt=4, scalars={"entropy": states[:, 0, 0] ** 2}).path


def test_findings_are_printed_worst_first_with_what_is_left_out(run: Path) -> None:
    answer = call("analyze", run)
    assert answer.code == 0, answer.err
    severities = re.findall(r"^(alarm|warning|note)\b", answer.out, re.MULTILINE)
    assert severities == sorted(severities, key=["alarm", "warning", "note"].index)
    assert "sink row (token 0)" in answer.out
    assert "norms leaves out 1 of 30 rows" in answer.out
    assert "not run: heads" in answer.out


def test_json_has_every_number_and_says_what_was_asked(run: Path) -> None:
    found = call("analyze", run, "--only", "norms", "--layers", "0,2", "--part", "generated", "--json").json
    assert (found["rows"], found["layers"], found["skipped"]) == (26, [0, 2], [])
    (report,) = found["reports"]
    assert np.shape(report["tables"]["by_token"]["arrays"]["norm"]["values"]) == (26, 2)
    assert report["params"] == {"site": None, "all_rows": False}


def test_the_page_holds_all_it_needs(run: Path, tmp_path: Path) -> None:
    """C60: no script, style or picture from elsewhere."""
    page = tmp_path / "sub" / "report.html"
    assert call("analyze", run, "--only", "norms,pca", "--html", page).code == 0
    text = page.read_text()
    assert not re.search(r"<(script|link|img|iframe)[^>]*(src|href)=", text)
    assert "Plotly.newPlot" in text
    assert text.index('id="summary"') < text.index('id="norms"') < text.index('id="pca"')


def test_words_of_a_run_cannot_steer_the_page(tmp_path: Path) -> None:
    bad = "</script><script>alert(1)</script>"
    states = np.random.default_rng(0).normal(size=(9, 2, 8)).astype(np.float32)
    states[3] *= 900
    path = write_run(tmp_path / "bad.sot", {"resid": states}, words={3: bad}).path
    page = tmp_path / "p.html"
    assert call("analyze", path, "--only", "norms", "--html", page).code == 0
    assert bad not in page.read_text()


def test_text_in_a_figure_cannot_end_the_script_it_stands_in() -> None:
    bad = "</script><script>alert(1)</script>"
    report = Report("norms", bad, figures={"bad": lambda: figures.lines({"a": [1, 2]}, bad, "x", "y")})
    assert bad not in page(bad, bad, {bad: bad}, [report], [bad])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--only", "normes"], "unknown analyzer 'normes'; did you mean norms"),
        (["--only", "heads"], "record it with --sites"),
        (["--layers", "two"], "--layers 'two'"),
        (["--layers", "99"], "layer 99 was not recorded"),
        (["--tokens", "5"], "--tokens '5': write FROM:TO"),
        (["--tokens", "90:"], "nothing is left of its 30 rows"),
        (["--part", "answer"], "part:"),
        (["--set", "norms"], "--set 'norms': write ANALYZER.PARAM=VALUE"),
        (["--set", "norms.sight=resid"], "norms: sight"),
        (["--only", "norms", "--set", "pca.site=final"], "--set pca"),
    ],
)
def test_a_mistake_is_one_line(options: list[str], said: str, run: Path) -> None:
    answer = call("analyze", run, *options)
    assert answer.code == 2
    assert said in answer.err
    assert answer.err.count("\n") == 1


def test_one_that_cannot_answer_leaves_the_others_their_say(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AnalysisError("no states to speak of.")

    monkeypatch.setattr("sotscope.analysis.pca.Pca.analyze", refuse)
    answer = call("analyze", run)
    assert answer.code == 0, answer.err
    assert "not run: pca: no states to speak of." in answer.out
    assert "sink row (token 0)" in answer.out
    alone = call("analyze", run, "--only", "pca")
    assert (alone.code, alone.err) == (2, "sotscope: no states to speak of.\n")
