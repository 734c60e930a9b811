"""The word table: what each layer would say, by plain numpy, and what is not finite."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.special
from analysis_heads import MODEL, give_head

from sotscope.store.reader import Run
from sotscope.testing.runs import write_run
from sotscope_dashboards.look import Look
from sotscope_dashboards.panels.words import Words
from sotscope_dashboards.scene import Scene

RNG = np.random.default_rng(4)
STATES = RNG.normal(size=(20, 3, 8)).astype(np.float32)
HEAD = RNG.normal(size=(50, 8)).astype(np.float32)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    states = STATES.copy()
    states[12, 1, 3] = np.nan
    states[13, 2, 0] = np.inf
    made = write_run(tmp_path / "a.sot", {"resid": states}, attributes=MODEL)
    give_head(made, HEAD)
    return made


def test_words_are_those_of_the_head(run: Run) -> None:
    memo: dict[object, object] = {}
    table = Words().table(Scene(Look(cursor=14), run, memo=memo))
    assert sorted(set(table.token)) == list(range(9, 17))
    assert sorted(set(table.layer)) == [0, 1, 2]
    for line in table.itertuples():
        if (line.token, line.layer) in ((12, 1), (13, 2)):
            assert (line.word, line.probability) == ("not finite", None) or np.isnan(line.probability)
            continue
        probs = scipy.special.softmax(HEAD.astype(float) @ STATES[line.token, line.layer].astype(float))
        assert line.word == f"#{probs.argmax()}"
        assert line.probability == pytest.approx(probs.max(), abs=1e-4)


def test_a_cell_is_worked_out_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from sotscope_dashboards.panels import words

    asked: list[list[int]] = []
    real = words.look
    monkeypatch.setattr(words, "look", lambda task: asked.append(task.rows.tolist()) or real(task))
    memo: dict[object, object] = {}
    for cursor in (10, 11, 11, 5):
        Words().draw(Scene(Look(cursor=cursor), run, memo=memo))
    assert asked == [list(range(5, 13)), [13], list(range(5))]
