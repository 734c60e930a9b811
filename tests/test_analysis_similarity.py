"""Layers that are alike are found to be, with the numbers of the formulas; two runs are compared where they may be."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sotscope.analysis.cka import blocks, cka, vector
from sotscope.analysis.report import Report
from sotscope.analysis.run import analyze
from sotscope.errors import AnalysisError, StoreError
from sotscope.store.reader import Run
from sotscope.testing.runs import write_run

Array = np.ndarray[Any, Any]


def kornblith(x: Array, y: Array) -> float:
    """Linear CKA, equation 3 and section 3 of the paper, in features."""
    x, y = x - x.mean(0), y - y.mean(0)
    return float(np.linalg.norm(y.T @ x) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)))


def hsic(k: Array, m: Array) -> float:
    """The unbiased estimate of Song et al. 2012, equation 5."""
    n = len(k)
    k, m = k - np.diag(np.diag(k)), m - np.diag(np.diag(m))
    one = np.ones(n)
    middle = (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2))
    return float((np.trace(k @ m) + middle - 2 / (n - 2) * (one @ k @ m @ one)) / (n * (n - 3)))


def debiased(x: Array, y: Array) -> float:
    k, m = x @ x.T, y @ y.T
    return hsic(k, m) / np.sqrt(hsic(k, k) * hsic(m, m))


def cosine(a: Array, b: Array) -> Array:
    return (a * b).sum(-1) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1))


def turning(rows: int = 60, dim: int = 24) -> Array:
    """[token, layer, dim]: layers 0-1 alike, 2-4 alike, 5 on its own."""
    rng = np.random.default_rng(1)
    a, b, c = (rng.normal(size=(rows, dim)) for _ in range(3))
    layers = [a, a * 2, b, b + 0.1 * rng.normal(size=b.shape), b, c]
    return np.stack(layers, axis=1).astype(np.float32)


def given(path: Path, states: Array, **more: Any) -> Run:
    return write_run(path, {"resid": np.asarray(states, np.float32)}, **more)


def texts(report: Report) -> str:
    return "\n".join(found.text for found in report.findings)


# -- the numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "formula"), [(True, debiased), (False, kornblith)])
def test_cka_is_the_papers(kind: bool, formula: Any) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 50))
    sets = [x, x[:, :20] + rng.normal(size=(30, 20)), rng.normal(size=(30, 7))]
    vectors = np.stack([vector(one, kind) for one in sets])
    found = cka(vectors, vectors)
    np.testing.assert_allclose(found, [[formula(a, b) for a in sets] for b in sets], atol=1e-6)


def test_cka_is_blind_to_turning_and_scaling_and_debiased_to_the_number_of_rows() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 40, 300))
    turn, _ = np.linalg.qr(rng.normal(size=(300, 300)))
    assert cka(vector(x)[None], vector(1e20 * x @ turn + 5e20)[None])[0, 0] == pytest.approx(1, abs=1e-6)
    assert abs(cka(vector(x)[None], vector(y)[None])[0, 0]) < 0.1
    assert cka(vector(x, False)[None], vector(y, False)[None])[0, 0] > 0.8  # what debiasing is for


def test_rows_that_do_not_vary_have_no_cka() -> None:
    same = np.tile(np.random.default_rng(0).normal(size=8), (10, 1))
    for rows in (same, same * (1 + 1e-9 * np.arange(10)[:, None]), same[:3], same[:0]):
        assert np.isnan(vector(rows)).all()
        assert np.isnan(vector(rows, debiased=False)).all()


def test_blocks_are_the_fewest_runs_of_layers_that_are_all_alike() -> None:
    similar = np.array([[1, 0.95, 0.8, 0.1], [0.95, 1, 0.95, 0.1], [0.8, 0.95, 1, 0.2], [0.1, 0.1, 0.2, 1]])
    assert blocks(similar, 0.9) == [(0, 1), (2, 2), (3, 3)]
    assert blocks(similar, 0.8) == [(0, 2), (3, 3)]
    assert blocks(np.full((2, 2), np.nan), 0.9) == [(0, 0), (1, 1)]


def test_tables_are_numpys(tmp_path: Path) -> None:
    run = given(tmp_path / "a.sot", turning())
    report = analyze("similarity", run)
    x = run.states("resid").astype(np.float64)
    count = x.shape[1]
    pairs = [(a, b) for a in range(count) for b in range(count)]
    expected = np.reshape([debiased(x[:, a], x[:, b]) for a, b in pairs], (count, count))
    np.testing.assert_allclose(report.tables["cka"], expected, atol=1e-6)
    rows = np.reshape([cosine(x[:, a], x[:, b]).mean() for a, b in pairs], (count, count))
    np.testing.assert_allclose(report.tables["cosine"]["rows"], rows, atol=1e-9)
    means = np.reshape([cosine(x[:, a].mean(0), x[:, b].mean(0)) for a, b in pairs], (count, count))
    np.testing.assert_allclose(report.tables["cosine"]["means"], means, atol=1e-9)
    neighbours = report.tables["neighbours"]
    np.testing.assert_allclose(neighbours.cka, np.diagonal(expected, 1), atol=1e-6)
    np.testing.assert_allclose(neighbours.cosine_rows, np.diagonal(rows, 1), atol=1e-9)


def test_blocks_and_the_turn_are_said(tmp_path: Path) -> None:
    report = analyze("similarity", given(tmp_path / "a.sot", turning()))
    assert "fall into 3 blocks with a CKA of at least 0.9 throughout: 0-1, 2-4, 5." in texts(report)
    assert report.tables["blocks"][["first", "last"]].to_numpy().tolist() == [[0, 1], [2, 4], [5, 5]]
    turn = report.tables["neighbours"].sort_values("cka").iloc[0]
    assert f"It turns most from layer {turn.layer:.0f} to {turn.next:.0f}" in texts(report)
    alike = analyze("similarity", given(tmp_path / "b.sot", turning()[:, [2, 3, 4]]))
    assert "All 3 layers of resid are alike: no two have a CKA below 0.99" in texts(alike)


def test_figures_draw_the_tables(tmp_path: Path) -> None:
    report = analyze("similarity", given(tmp_path / "a.sot", turning()))
    assert set(report.figures) == {"cka", "cosine", "neighbours"}
    (drawn,) = report.figure("cka").data
    np.testing.assert_array_equal(drawn.z, report.tables["cka"])
    np.testing.assert_array_equal(report.figure("cosine").data[0].z, report.tables["cosine"]["rows"])


def test_no_more_rows_than_stated(tmp_path: Path) -> None:
    run = given(tmp_path / "a.sot", turning())
    report = analyze("similarity", run, rows=20)
    at = np.linspace(0, 59, 20).round().astype(int)
    x = run.states("resid").astype(np.float64)[at]
    assert float(report.tables["cka"][0, 2]) == pytest.approx(debiased(x[:, 0], x[:, 2]), abs=1e-6)
    assert "20 of 60 rows count, evenly spread (rows=...)" in report.left_out


# -- odd data ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 17])
def test_c02_a_sink_is_left_out_wherever_it_stands(at: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(32, 3, 64))
    states[at] *= 0.1
    states[at, :, 7] = 3000
    report = analyze("similarity", given(tmp_path / "a.sot", states))
    assert f"token {at} " in report.left_out[0]
    assert abs(float(report.tables["cka"][0, 1])) < 0.3
    with_it = analyze("similarity", tmp_path / "a.sot", all_rows=True, debiased=False)
    assert float(with_it.tables["cka"][0, 1]) > 0.99
    assert not with_it.left_out


def test_c02_a_row_that_stands_out_in_few_layers_does_not_decide(tmp_path: Path) -> None:
    states = np.random.default_rng(0).normal(size=(40, 10, 16))
    states[[9, 20], 3:5, 2] = 500  # in 2 of 10 layers: no sinks
    report = analyze("similarity", given(tmp_path / "a.sot", states))
    assert abs(float(report.tables["cka"][3, 4])) < 0.3
    assert report.left_out == ["2 of 40 rows (norm far above the others' in layers 3-4): token 9 '␣9', 20 '␣20'"]
    assert float(analyze("similarity", tmp_path / "a.sot", all_rows=True).tables["cka"][3, 4]) > 0.99


def test_c11_half_precision_is_computed_in_full(tmp_path: Path) -> None:
    states = np.round(np.random.default_rng(0).normal(size=(20, 3, 32)) * 100)
    full = analyze("similarity", given(tmp_path / "a.sot", states))
    half = analyze("similarity", given(tmp_path / "b.sot", states, dtype="float16"))
    np.testing.assert_array_equal(half.tables["cka"], full.tables["cka"])


def test_c12_a_constant_dimension_lifts_the_cosine_and_not_cka(tmp_path: Path) -> None:
    states = np.random.default_rng(0).normal(size=(64, 2, 32))
    plain = analyze("similarity", given(tmp_path / "a.sot", states))
    states[:, :, 7] = 50
    report = analyze("similarity", given(tmp_path / "b.sot", states))
    assert report.tables["cosine"]["rows"][0, 1] > 0.95
    assert abs(float(report.tables["cka"][0, 1] - plain.tables["cka"][0, 1])) < 0.1


def test_c23_rows_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    states = turning()
    states[5, 1, 3], states[9, 0, 0] = np.nan, np.inf
    report = analyze("similarity", given(tmp_path / "a.sot", states))
    x = np.delete(states, [5, 9], 0).astype(np.float64)
    assert float(report.tables["cka"][0, 2]) == pytest.approx(debiased(x[:, 0], x[:, 2]), abs=1e-6)
    assert "2 of 60 rows (NaN or infinity): token 5 '␣5', 9 '␣9'" in report.left_out
    nothing = analyze("similarity", given(tmp_path / "b.sot", np.full((8, 2, 4), np.nan)))
    assert "No row is left" in texts(nothing)


def test_c09_equal_rows_are_said_to_be_and_have_no_cka(tmp_path: Path) -> None:
    states = turning()
    states[:, 2] = states[0, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = analyze("similarity", given(tmp_path / "a.sot", states))
    assert "The rows of resid are all equal in layer 2" in texts(report)
    assert np.isnan(report.tables["cka"][2]).all()
    assert np.isfinite(np.delete(np.delete(report.tables["cka"].values, 2, 0), 2, 1)).all()


def test_few_rows_and_sites_without_a_common_space_or_layers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sites = {"query": rng.normal(size=(12, 3, 2, 4)), "final": rng.normal(size=(12, 6))}
    run = write_run(tmp_path / "a.sot", {name: array.astype(np.float32) for name, array in sites.items()})
    assert "CKA needs 4 rows; there are 3." in texts(analyze("similarity", run, tokens=(0, 3)))
    query = analyze("similarity", run, site="query")
    x = sites["query"].reshape(12, 3, 8).astype(np.float32).astype(np.float64)
    assert float(query.tables["cka"][0, 1]) == pytest.approx(debiased(x[:, 0], x[:, 1]), abs=1e-6)
    assert "cosine" not in query.tables
    assert "cosines between layers: those of query do not share a space" in query.left_out
    final = analyze("similarity", run, site="final")
    assert "layers against each other: there is one of final" in final.left_out


# -- another run -------------------------------------------------------------------------------------------------


def test_a_run_of_the_same_model_is_matched_layer_by_layer(tmp_path: Path) -> None:
    states = turning()
    noise = 0.01 * np.random.default_rng(2).normal(size=states.shape)
    ids = [*range(50), *range(200, 210)]
    run = given(tmp_path / "a.sot", states)
    other = given(tmp_path / "b.sot", states + noise, ids=ids)
    report = analyze("similarity", run, other=str(other.path))
    a, b = (one.states("resid")[:50].astype(np.float64) for one in (run, other))
    table = report.tables["matched"]
    assert table.layer.tolist() == table.other_layer.tolist() == list(range(6))
    np.testing.assert_allclose(table.cka, [debiased(a[:, k], b[:, k]) for k in range(6)], atol=1e-6)
    np.testing.assert_allclose(table.cosine, cosine(a, b).mean(0), atol=1e-9)
    relative = np.linalg.norm(b - a, axis=-1) / np.linalg.norm(a, axis=-1)
    np.testing.assert_allclose(table.relative, np.median(relative, 0), atol=1e-9)
    assert float(report.tables["cka_other"][0, 3]) == pytest.approx(debiased(a[:, 0], b[:, 3]), abs=1e-6)
    assert "Next to b.sot, over 50 rows" in texts(report)
    np.testing.assert_array_equal(report.figure("cka_other").data[0].z, report.tables["cka_other"])


def test_a_model_of_another_depth_and_width_is_compared_by_cka_alone(tmp_path: Path) -> None:
    states = turning()
    rng = np.random.default_rng(3)
    wider = np.stack([states[:, k] @ rng.normal(size=(24, 40)) for k in (0, 2, 5)], axis=1)
    run, other = given(tmp_path / "a.sot", states), given(tmp_path / "b.sot", wider)
    report = analyze("similarity", run, other=str(other.path))
    assert report.tables["cka_other"].shape == (6, 3)
    assert report.tables["matched"].nearest.tolist() == [0, 0, 1, 1, 1, 2]
    assert "cosine" not in report.tables["matched"]
    assert any("it has 3 layers of resid, not 6" in line for line in report.left_out)
    as_deep = given(tmp_path / "c.sot", np.repeat(wider, 2, axis=1))
    report = analyze("similarity", run, other=str(as_deep.path))
    assert "cka" in report.tables["matched"]
    assert "cosines with c.sot: their states have other sizes (24 and 40 numbers)" in report.left_out


def test_rows_count_that_count_in_both_runs(tmp_path: Path) -> None:
    states = turning()
    broken = states.copy()
    broken[7, 2, 0] = np.nan
    run, other = given(tmp_path / "a.sot", states), given(tmp_path / "b.sot", broken)
    report = analyze("similarity", run, other=str(other.path))
    assert "over 59 rows" in texts(report)
    assert "b.sot: 1 of 60 rows (NaN or infinity): token 7 '␣7'" in report.left_out


def test_runs_that_share_no_beginning_are_not_compared(tmp_path: Path) -> None:
    run = given(tmp_path / "a.sot", turning())
    other = given(tmp_path / "b.sot", turning(), ids=list(range(100, 160)))
    report = analyze("similarity", run, other=str(other.path))
    assert "b.sot cannot be compared: 0 rows stand after the same tokens" in texts(report)
    assert "matched" not in report.tables
    same_ids = given(tmp_path / "c.sot", turning(), words=dict.fromkeys(range(60), " x"))  # another tokenizer's
    assert "cannot be compared: 0 rows" in texts(analyze("similarity", run, other=str(same_ids.path)))


@pytest.mark.parametrize(
    ("other", "error", "said"),
    [("nowhere.sot", StoreError, "does not exist"), ("b.sot", AnalysisError, "b.sot has no resid; record it")],
)
def test_another_run_that_cannot_answer_is_one_line(other: str, error: Any, said: str, tmp_path: Path) -> None:
    run = given(tmp_path / "a.sot", turning())
    write_run(tmp_path / "b.sot", {"final": np.ones((60, 4), np.float32)})
    with pytest.raises(error, match=said):
        analyze("similarity", run, other=str(tmp_path / other))
