"""Heads: norms and shares as numpy has them; dead, dominant and diverging ones are found, and where they began."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import median_abs_deviation

from sotscope.analysis.head_norms import divergence, robust_z
from sotscope.analysis.report import Report
from sotscope.analysis.run import analyze, answerable, make_view
from sotscope.errors import AnalysisError, StoreError
from sotscope.store.reader import Run
from sotscope.testing.runs import write_run

Array = np.ndarray[Any, Any]
LAYERS, HEADS, DIM = 3, 4, 8


def heads(rows: int = 120, seed: int = 0) -> Array:
    """[token, layer, head, head_dim] of calm heads."""
    return np.random.default_rng(seed).normal(size=(rows, LAYERS, HEADS, DIM)).astype(np.float32)


def given(path: Path, states: Array, **more: Any) -> Run:
    return write_run(path, {"head_out": np.asarray(states, np.float32)}, **more)


def texts(report: Report) -> str:
    return "\n".join(found.text for found in report.findings)


def line(report: Report, layer: int, head: int) -> Any:
    table = report.tables["by_head"]
    return table[(table.layer == layer) & (table["head"] == head)].iloc[0]


# -- sizes -------------------------------------------------------------------------------------------------------


def test_medians_and_shares_are_numpys_and_scipys(tmp_path: Path) -> None:
    states = heads()
    table = analyze("heads", given(tmp_path / "a.sot", states)).tables["by_head"]
    norm = np.linalg.norm(states.astype(np.float64), axis=-1)
    share = norm**2 / (norm**2).sum(-1, keepdims=True)
    assert table[["layer", "head"]].to_numpy().tolist() == [[k, h] for k in range(LAYERS) for h in range(HEADS)]
    np.testing.assert_allclose(table.norm_median, np.median(norm, 0).ravel(), rtol=1e-6)
    np.testing.assert_allclose(table.norm_mad, median_abs_deviation(norm, axis=0).ravel(), rtol=1e-6)
    np.testing.assert_allclose(table.share_median, np.median(share, 0).ravel(), rtol=1e-6)
    np.testing.assert_allclose(table.share_p95, np.percentile(share, 95, axis=0).ravel(), rtol=1e-6)


def test_the_scalar_gives_what_the_site_gives(tmp_path: Path) -> None:
    states = heads()
    site = analyze("heads", given(tmp_path / "a.sot", states))
    run = write_run(
        tmp_path / "b.sot", {"head_out": states * 0},
        scalars={"head_norm": np.linalg.norm(states, axis=-1)},
    )  # fmt: skip
    scalar = analyze("heads", run)
    assert (site.title, scalar.title) == ("Attention heads (head_out)", "Attention heads (head_norm)")
    for column in ("norm_median", "share_median", "z", "times"):
        np.testing.assert_allclose(scalar.tables["by_head"][column], site.tables["by_head"][column], rtol=1e-4)
    some = analyze("heads", run, layers=[2, 0])
    assert some.tables["by_head"].layer.tolist() == [2] * HEADS + [0] * HEADS
    assert line(some, 2, 1).norm_median == line(scalar, 2, 1).norm_median


def test_dead_and_dominant_heads_are_named(tmp_path: Path) -> None:
    states = heads()
    states[:, 1, 2] *= 1e-4
    states[:, 2, 0] *= 8
    states[:, 0, 3] = 0
    report = analyze("heads", given(tmp_path / "a.sot", states))
    table = report.tables["by_head"]
    assert line(report, 1, 2).state == line(report, 0, 3).state == "dead"
    assert line(report, 2, 0).state == "dominant"
    assert (table.state != "").sum() == 3
    assert "2 of 12 heads put out next to nothing" in texts(report)
    assert "layer 0 head 3, layer 1 head 2" in texts(report)
    assert "comes from layer 2 head 0" in texts(report)
    assert report.findings[0].severity == "warning"
    calm = analyze("heads", given(tmp_path / "b.sot", heads()))
    assert "No head is dead, none dominates" in texts(calm)


def test_a_layer_of_one_or_two_heads_has_no_dominant_one(tmp_path: Path) -> None:
    states = heads()[:, :, :2]
    states[:, :, 0] *= 3
    assert (analyze("heads", given(tmp_path / "a.sot", states)).tables["by_head"].state == "").all()
    assert (analyze("heads", given(tmp_path / "b.sot", states[:, :, :1])).tables["by_head"].state == "").all()


def test_a_layer_of_zeros_is_dead_and_has_no_shares(tmp_path: Path) -> None:
    states = heads()
    states[:, 1] = 0
    report = analyze("heads", given(tmp_path / "a.sot", states))
    assert (report.tables["by_head"].state == "dead").sum() == HEADS
    assert np.isnan(line(report, 1, 0).share_median)
    assert "No head leaves its own past" in texts(report)


# -- history -----------------------------------------------------------------------------------------------------


def test_robust_z_is_scipys() -> None:
    rng = np.random.default_rng(0)
    window, past = rng.normal(size=(8, 5)), rng.normal(size=(50, 5))
    z, middle, deviation = robust_z(window, past)
    np.testing.assert_allclose(deviation, median_abs_deviation(past, axis=0, scale="normal"), rtol=1e-4)
    np.testing.assert_allclose(z, (np.median(window, 0) - np.median(past, 0)) / deviation)
    np.testing.assert_allclose(middle, np.median(past, 0))


@pytest.mark.parametrize("factor", [5.0, 0.2])
@pytest.mark.parametrize("at", [40, 71, 90])
def test_a_head_that_leaves_its_past_is_found_with_the_token_it_began_at(
    at: int, factor: float, tmp_path: Path
) -> None:
    states = heads()
    states[at:, 1, 2] *= factor
    report = analyze("heads", given(tmp_path / "a.sot", states), window=16)
    found = line(report, 1, 2)
    assert abs(found.onset - at) <= 3
    assert found.onset_label == f"␣{found.onset}"
    assert found.times == pytest.approx(factor, rel=0.35)
    assert np.sign(found.z) == np.sign(factor - 1)
    table = report.tables["by_head"]
    assert (table.onset >= 0).sum() == 1
    assert "1 of 12 heads leaves its own past" in texts(report)
    assert list(report.tables["course"].columns)[2] == "layer 1 head 2"


@pytest.mark.parametrize("seed", range(4))
def test_calm_heads_stay(seed: int, tmp_path: Path) -> None:
    report = analyze("heads", given(tmp_path / "a.sot", heads(200, seed)), window=8)
    assert "No head leaves its own past" in texts(report)
    assert (report.tables["by_head"].onset == -1).all()


def test_one_far_token_is_no_divergence(tmp_path: Path) -> None:
    states = heads()
    states[60:63, 1, 2] *= 50
    assert "No head leaves its own past" in texts(analyze("heads", given(tmp_path / "a.sot", states), window=16))


def test_the_past_is_all_before_the_window() -> None:
    rng = np.random.default_rng(1)
    logs = rng.normal(size=(96, 3)) * 0.1
    logs[70:, 1] += 2
    found = divergence(logs, 16, 4.0, 2.0)
    windows = [16, 32, 48, 64, 80]
    z = np.array([robust_z(logs[b : b + 16], logs[:b])[0] for b in windows])
    times = [np.exp(np.median(logs[b : b + 16], 0) - np.median(logs[:b], 0)) for b in windows]
    assert np.isin(np.round(found.z, 9), np.round(z, 9)).all()
    best = int(np.argmin(np.abs(z[:, 1] - found.z[1])))
    assert windows[best] in (64, 80)
    assert found.times[1] == pytest.approx(times[best][1])
    assert found.onset.tolist() == [-1, 70, -1]


def test_when_all_heads_change_it_is_the_text(tmp_path: Path) -> None:
    states = heads()
    states[64:] *= 6
    report = analyze("heads", given(tmp_path / "a.sot", states), all_rows=True)
    assert "so many are a change of the text rather than of heads" in texts(report)
    assert all(found.severity == "note" for found in report.findings)


def test_too_few_rows_for_a_past_are_said_to_be(tmp_path: Path) -> None:
    report = analyze("heads", given(tmp_path / "a.sot", heads(40)))
    assert "heads against their past: 64 rows are needed (window=...), 40 count" in report.left_out
    assert "z" not in report.tables["by_head"]
    for rows in (1, 3):
        few = analyze("heads", given(tmp_path / f"{rows}.sot", heads(rows)))
        assert few.tables["by_head"].norm_median.notna().all()
        assert few.figure("course").to_json()


# -- a baseline --------------------------------------------------------------------------------------------------


def test_heads_are_held_against_a_baseline(tmp_path: Path) -> None:
    base, states = heads(seed=1), heads(seed=2)
    states[:, 2, 1] *= 6
    other = given(tmp_path / "base.sot", base)
    report = analyze("heads", given(tmp_path / "a.sot", states), baseline=str(other.path))
    assert "1 of 12 heads differs from base.sot: layer 2 head 1" in texts(report)
    found = line(report, 2, 1)
    before, here = (np.linalg.norm(one[:, 2, 1].astype(np.float64), axis=-1) for one in (base, states))
    assert found.baseline_median == pytest.approx(np.median(before), rel=1e-6)
    z = (np.log(np.median(here)) - np.log(np.median(before))) / median_abs_deviation(np.log(before), scale="normal")
    assert found.baseline_z == pytest.approx(z, rel=0.01)
    assert found.baseline_times == pytest.approx(np.median(here) / np.median(before), rel=0.01)
    assert set(report.figures) == {"share", "divergence", "baseline", "course"}
    same = analyze("heads", given(tmp_path / "b.sot", heads(seed=3)), baseline=str(other.path))
    assert "All heads are about as in base.sot." in texts(same)


@pytest.mark.parametrize(
    ("baseline", "error", "said"),
    [
        ("nowhere.sot", StoreError, "does not exist"),
        ("final.sot", AnalysisError, "final.sot has no"),
        ("fewer.sot", AnalysisError, "fewer.sot has 3 layers of 2 heads, this run has 3 layers of 4 heads"),
        ("bad.sot", AnalysisError, "bad.sot: no row of it counts"),
    ],
)
def test_a_baseline_that_is_none_is_one_line(baseline: str, error: Any, said: str, tmp_path: Path) -> None:
    run = given(tmp_path / "a.sot", heads())
    given(tmp_path / "fewer.sot", heads()[:, :, :2])
    given(tmp_path / "bad.sot", np.full_like(heads(8), np.nan))
    write_run(tmp_path / "final.sot", {"final": np.ones((9, 4), np.float32)})
    with pytest.raises(error, match=said):
        analyze("heads", run, baseline=str(tmp_path / baseline))


# -- odd data ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 17])
@pytest.mark.parametrize("scalar", [False, True])
def test_c02_a_sink_is_left_out_wherever_it_stands(scalar: bool, at: int, tmp_path: Path) -> None:
    states = heads()
    states[at] *= 100
    report = analyze("heads", made(tmp_path, states, scalar))
    assert f"token {at} " in report.left_out[0]
    norm = np.linalg.norm(np.delete(states, at, 0).astype(np.float64), axis=-1)
    np.testing.assert_allclose(report.tables["by_head"].norm_median, np.median(norm, 0).ravel(), rtol=1e-5)
    course = report.tables["course"]
    assert len(course) == 120
    assert np.flatnonzero(course.iloc[:, 2].isna()).tolist() == [at]
    everything = analyze("heads", tmp_path / "made.sot", all_rows=True)
    assert not everything.left_out
    assert everything.tables["course"].iloc[:, 2].notna().all()


def made(tmp_path: Path, states: Array, scalar: bool) -> Run:
    if not scalar:
        return given(tmp_path / "made.sot", states)
    with np.errstate(invalid="ignore"):
        norm = np.linalg.norm(states, axis=-1)
    return write_run(tmp_path / "made.sot", {"head_out": np.zeros_like(states)}, scalars={"head_norm": norm})


@pytest.mark.parametrize("scalar", [False, True])
def test_c23_rows_that_are_not_finite_keep_their_place(scalar: bool, tmp_path: Path) -> None:
    states = heads()
    states[5, 1, 3, 0], states[9, 0, 0, 0] = np.nan, np.inf
    report = analyze("heads", made(tmp_path, states, scalar))
    assert "2 of 120 rows (NaN or infinity): token 5 '␣5', 9 '␣9'" in report.left_out
    assert report.tables["by_head"].norm_median.notna().all()
    course = report.tables["course"]
    assert course.label.tolist() == [f"␣{i}" for i in range(120)]
    assert np.flatnonzero(course.iloc[:, 2].isna()).tolist() == [5, 9]
    nothing = analyze("heads", given(tmp_path / "b.sot", np.full((8, LAYERS, HEADS, DIM), np.nan)))
    assert "No row is left" in texts(nothing)


def test_c11_half_precision_is_computed_in_full(tmp_path: Path) -> None:
    states = np.full((20, LAYERS, HEADS, 64), 100.0)
    found = analyze("heads", given(tmp_path / "a.sot", states, dtype="float16")).tables["by_head"]
    assert found.norm_median.tolist() == [800.0] * (LAYERS * HEADS)
    assert found.norm_mad.tolist() == [0.0] * (LAYERS * HEADS)


def test_figures_draw_the_tables_and_name_tokens(tmp_path: Path) -> None:
    report = analyze("heads", given(tmp_path / "a.sot", heads()))
    table, course = report.tables["by_head"], report.tables["course"]
    for figure, column in (("share", "share_median"), ("divergence", "z")):
        (drawn,) = report.figure(figure).data
        np.testing.assert_array_equal(np.ravel(drawn.z), table[column])
    drawn = report.figure("course").data
    assert [trace.name for trace in drawn] == list(course.columns[2:])
    np.testing.assert_array_equal(drawn[0].y, course.iloc[:, 2])
    assert drawn[0].customdata[3] == "token 3: ␣3"


def test_a_run_without_heads_names_the_flag_that_records_them(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a.sot", {"final": np.ones((9, 4), np.float32)})
    with pytest.raises(AnalysisError, match="has no head_out; record it with --sites final,head_out"):
        analyze("heads", run)
    able, why = answerable(make_view(run))
    assert "heads" not in [analyzer.name for analyzer in able]
    assert any(line.startswith("heads: ") for line in why)
