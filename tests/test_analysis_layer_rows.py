"""Rows that are huge in one layer only: left out of that layer, and only there, where layers are looked at singly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sotscope.analysis.run import analyze
from sotscope.store.reader import Run
from sotscope.testing.runs import write_run

STATES = np.random.default_rng(5).normal(size=(40, 6, 8)).astype(np.float32)
FAR, LAYER = [9, 20], 2
SAID = "2 of 40 rows (in layer 2, where their norm is far above the others'): token 9 '␣9', 20 '␣20'"
REST = np.setdiff1d(np.arange(40), FAR)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    states = STATES.copy()
    states[FAR, LAYER, 5] = 1000
    return write_run(tmp_path / "far.sot", {"resid": states})


def test_pca_leaves_them_out_of_their_layer(run: Run) -> None:
    report = analyze("pca", run)
    table = report.tables["by_layer"]
    assert table.rows.tolist() == [40, 40, 38, 40, 40, 40]
    for layer, rows in ((LAYER, REST), (LAYER + 1, np.arange(40))):
        assert table.variance[layer] == pytest.approx(STATES[rows, layer].astype(float).var(0, ddof=1).sum())
    assert SAID in report.left_out
    assert table.first_token[LAYER] in REST


def test_dims_leaves_them_out_of_their_layer(run: Run) -> None:
    report = analyze("dims", run)
    variance = report.tables["by_dim"]["variance"].values
    np.testing.assert_allclose(variance[LAYER], STATES[REST, LAYER].astype(float).var(0))
    np.testing.assert_allclose(variance[LAYER + 1], STATES[:, LAYER + 1].astype(float).var(0))
    assert SAID in report.left_out


def test_change_pairs_them_with_nothing_in_their_layer(run: Run) -> None:
    report = analyze("change", run)
    table = report.tables["by_token"]
    velocity, layers = table["velocity"].values, table["layer_cosine"].values
    centred = table["layer_cosine_centred"].values
    assert np.isnan(velocity[[9, 10, 20, 21], LAYER]).all()
    assert np.isfinite(np.delete(velocity[1:], LAYER, 1)).all()
    assert np.isnan(layers[9, LAYER : LAYER + 2]).all()
    assert np.isfinite(layers[8, 1:]).all()
    here, under = STATES[:, LAYER + 1].astype(float), STATES[:, LAYER].astype(float)
    a, b = here[0] - here.mean(0), under[0] - under[REST].mean(0)
    assert centred[0, LAYER + 1] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    assert SAID in report.left_out


@pytest.mark.parametrize("name", ["pca", "dims", "change"])
def test_all_rows_counts_them_in(name: str, run: Run) -> None:
    assert not any("far above" in line for line in analyze(name, run, all_rows=True).left_out)
