"""`pca`: components are scikit-learn's, intrinsic dimensions those of known shapes, and what compression costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special
from analysis_heads import MODEL, give_head
from scipy.spatial.distance import cdist
from sklearn.decomposition import PCA

from sotscope.analysis.report import Report
from sotscope.analysis.run import analyze
from sotscope.analysis.spectrum import twonn
from sotscope.testing.runs import write_run

RNG = np.random.default_rng(7)
STATES = (RNG.normal(size=(101, 3, 8)) * [8, 6, 4, 3, 2, 1, 0.5, 0.1] + 30).astype(np.float32)


def run_of(path: Path, states: np.ndarray, **more: Any) -> Any:
    return write_run(path / "given.sot", {"resid": states}, **more)


def texts(report: Report) -> str:
    return "\n".join(found.text for found in report.findings)


def test_components_are_scikit_learns(tmp_path: Path) -> None:
    report = analyze("pca", run_of(tmp_path, STATES))
    table, shares = report.tables["by_layer"], report.tables["spectrum"]["share"]
    for layer in range(3):
        wanted = PCA(svd_solver="full").fit(STATES[:, layer].astype(np.float64))
        np.testing.assert_allclose(shares.values[layer], wanted.explained_variance_ratio_, rtol=1e-9)
        assert table.variance[layer] == pytest.approx(wanted.explained_variance_.sum(), rel=1e-12)
        running = np.cumsum(wanted.explained_variance_ratio_)
        np.testing.assert_allclose(report.tables["spectrum"]["cumulative"].values[layer], running)
        assert table.components_90[layer] == 1 + np.argmax(running >= 0.90)
        assert table.components_95[layer] == 1 + np.argmax(running >= 0.95)
        values = wanted.explained_variance_
        assert table.participation_ratio[layer] == pytest.approx(values.sum() ** 2 / (values**2).sum())
        assert table.first_dim[layer] == np.abs(wanted.components_[0]).argmax()
        along = wanted.transform(STATES[:, layer].astype(np.float64))[:, 0] ** 2
        assert table.first_token[layer] == along.argmax()
        assert table.first_token_share[layer] == pytest.approx(along.max() / along.sum())


def test_c30_batches_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path, STATES)
    whole = analyze("pca", run, components=2).tables["spectrum"]["share"].values
    assert whole.shape == (3, 2)
    for numbers in (8 * 10, 8):  # 101 rows in tens: the last piece has one row; then all have
        monkeypatch.setattr("sotscope.analysis.moments.PIECE_NUMBERS", numbers)
        np.testing.assert_allclose(analyze("pca", run, components=2).tables["spectrum"]["share"], whole, rtol=1e-12)


def test_c30_components_are_no_more_than_rows(tmp_path: Path) -> None:
    report = analyze("pca", run_of(tmp_path, RNG.normal(size=(10, 1, 32)).astype(np.float32)), components=50)
    assert report.tables["spectrum"].sizes["component"] == 10
    assert report.tables["by_layer"].components[0] == 10
    assert "components beyond 10: 10 rows of 32 numbers have no more" in report.left_out
    assert report.tables["spectrum"]["share"].values[0, 9] == 0  # ten rows span nine directions
    assert any("at most 9 and grow with more rows" in line for line in report.left_out)


@pytest.mark.parametrize(("rows", "said"), [(12, "its 12 rows are all the same"), (1, "there is one row")])
def test_c30_constant_states_have_no_variance(rows: int, said: str, tmp_path: Path) -> None:
    states = np.broadcast_to(RNG.normal(size=(1, 2, 8)), (rows, 2, 8)).astype(np.float32)
    report = analyze("pca", run_of(tmp_path, states))
    assert not report.tables["spectrum"]["share"].values.any()
    table = report.tables["by_layer"]
    assert table.variance.tolist() == [0, 0]
    assert table.components_90.tolist() == [0, 0]
    assert table.error_half.tolist() == table.error_8bit.tolist() == [0, 0]
    assert f"There is no variance in layers 0-1: {said}" in texts(report)


@pytest.mark.parametrize("at", [0, 17])
def test_c02_a_sink_is_no_component(at: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(32, 1, 64)).astype(np.float32)
    states[at] = 0.1 * rng.normal(size=64)
    states[at, 0, 7] = 3000
    run = run_of(tmp_path, states)
    table = analyze("pca", run).tables["by_layer"]
    assert table.first_share[0] < 0.1
    assert table.rows[0] == 31
    wanted = PCA().fit(np.delete(states[:, 0], at, 0).astype(np.float64)).explained_variance_ratio_[0]
    assert table.first_share[0] == pytest.approx(wanted)
    everything = analyze("pca", run, all_rows=True)
    assert everything.tables["by_layer"].first_share[0] == pytest.approx(0.9998, abs=1e-4)
    assert everything.tables["by_layer"].first_token[0] == at
    assert everything.tables["by_layer"].first_token_share[0] > 0.9
    assert "One direction holds over half of the variance in layer 0: in layer 0 it holds 100%" in texts(everything)
    assert "of it lies in dimension 7" in texts(everything)
    assert f"comes from token {at} '␣{at}' alone" in texts(everything)


def test_c23_rows_that_are_not_finite_are_left_out_and_said(tmp_path: Path) -> None:
    states = RNG.normal(size=(40, 1, 16)).astype(np.float32)
    states[5, 0, 3], states[9, 0, 0] = np.nan, np.inf
    report = analyze("pca", run_of(tmp_path, states))
    wanted = PCA().fit(np.delete(states[:, 0], [5, 9], 0).astype(np.float64)).explained_variance_ratio_
    np.testing.assert_allclose(report.tables["spectrum"]["share"].values[0], wanted, rtol=1e-9)
    assert "2 of 40 rows (NaN or infinity): token 5 '␣5', 9 '␣9'" in report.left_out[0]
    nothing = analyze("pca", write_run(tmp_path / "none.sot", {"resid": states * np.nan}))
    assert "No row is left" in texts(nothing)


# -- intrinsic dimension -----------------------------------------------------------------------------------------


def reference_twonn(states: np.ndarray) -> float:
    """Facco et al. 2017, by the letter."""
    distance = np.sort(cdist(states, states), axis=1)
    ratio = np.sort(distance[:, 2] / distance[:, 1])
    kept = int(len(ratio) * 0.9)
    x, y = np.log(ratio[:kept]), -np.log(1 - np.arange(kept) / len(ratio))
    return float(np.linalg.lstsq(x[:, None], y, rcond=None)[0][0])


@pytest.mark.parametrize("dimension", [2, 3, 5])
def test_twonn_finds_the_dimension_of_a_known_shape(dimension: int) -> None:
    axes = np.linalg.qr(RNG.normal(size=(20, dimension)))[0]
    states = RNG.uniform(size=(1000, dimension)) @ axes.T + 1000  # far from the origin
    found, rows = twonn(states)
    assert rows == 1000
    assert found == pytest.approx(dimension, rel=0.15)
    assert found == pytest.approx(reference_twonn(states), rel=1e-6)


def test_twonn_counts_equal_rows_once_and_wants_some() -> None:
    states = RNG.normal(size=(200, 3))
    assert twonn(np.concatenate([states, states[:50]])) == twonn(states)
    almost = states + 1e-9 * RNG.normal(size=states.shape)
    assert np.isnan(twonn(np.concatenate([states, almost]))[0])  # nobody has a neighbour of its own
    assert np.isnan(twonn(states[:9])[0])
    assert np.isnan(twonn(np.ones((50, 3)))[0])


def test_the_intrinsic_dimension_is_of_a_stated_sample(tmp_path: Path) -> None:
    report = analyze("pca", run_of(tmp_path, STATES), neighbours=50)
    assert report.tables["by_layer"].intrinsic_rows.tolist() == [50] * 3
    assert "by TwoNN on 50 rows" in texts(report)


# -- compression -------------------------------------------------------------------------------------------------


def rebuilt(states: np.ndarray) -> dict[str, np.ndarray]:
    """From half of the components by scikit-learn, and from 8 bits a number."""
    half = PCA(n_components=-(-min(states.shape) // 2), svd_solver="full").fit(states)
    low, high = states.min(0), states.max(0)
    codes = np.round((states - low) / (high - low) * 255).astype(np.uint8)
    return {"half": half.inverse_transform(half.transform(states)), "8bit": codes / 255 * (high - low) + low}


def test_what_compression_loses_is_numpys(tmp_path: Path) -> None:
    table = analyze("pca", run_of(tmp_path, STATES)).tables["by_layer"]
    for layer in range(3):
        states = STATES[:, layer].astype(np.float64)
        for name, other in rebuilt(states).items():
            size = np.linalg.norm(other - states)
            assert table[f"error_{name}"][layer] == pytest.approx(size / np.linalg.norm(states), rel=1e-6)
            assert table[f"lost_{name}"][layer] == pytest.approx(
                size / np.linalg.norm(states - states.mean(0)), rel=1e-6
            )


@pytest.mark.parametrize("site", ["final", "resid"])
def test_what_the_head_makes_of_rebuilt_states_is_scipys(site: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "head.sot", {"resid": STATES, "final": STATES[:, 2]}, attributes=MODEL)
    weight, scale = RNG.normal(size=(50, 8)).astype(np.float32), np.linspace(1, 2, 8, dtype=np.float32)
    give_head(run, weight, norm="rms", norm_weight=scale)
    report = analyze("pca", run, site=site)
    states = STATES[:, 2].astype(np.float64)

    def log_probabilities(x: np.ndarray) -> np.ndarray:
        if site == "resid":
            x = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5) * scale
        return scipy.special.log_softmax(x @ weight.T.astype(np.float64), axis=1)

    true = log_probabilities(states)
    table = report.tables["logits"]
    assert table.name.tolist() == ["4 components", "8 bits"]
    for line, other in zip(table.itertuples(), rebuilt(states).values(), strict=True):
        found = log_probabilities(other)
        assert line.top1 == (found.argmax(1) == true.argmax(1)).mean()
        assert line.kl == pytest.approx((np.exp(true) * (true - found)).sum(1).mean(), rel=1e-3, abs=1e-5)
    assert "4 components rebuild the states" in texts(report)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"layers": [0, 1]}, "the last layer, 2, is not in this view"),
        ({"site": "mlp_act"}, "only final, or resid of the last layer, leads to logits"),
    ],
)
def test_states_that_lead_to_no_logits_are_said(how: dict[str, Any], said: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "head.sot", {"resid": STATES, "mlp_act": STATES}, attributes=MODEL)
    give_head(run, np.ones((5, 8), np.float32))
    assert any(said in line for line in analyze("pca", run, **how).left_out)


def test_without_a_head_the_report_says_how_to_get_one(tmp_path: Path) -> None:
    assert any("--embed-head" in line for line in analyze("pca", run_of(tmp_path, STATES)).left_out)
