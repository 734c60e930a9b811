"""`dims`: statistics of single dimensions are numpy's and scipy's; outliers, and what is left of the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats
from analysis_heads import MODEL, give_head

from sotscope.analysis.report import Report
from sotscope.analysis.run import analyze
from sotscope.analysis.survival import PERCENT
from sotscope.testing.runs import write_run

RNG = np.random.default_rng(6)
SCALE = np.exp(RNG.normal(size=20))
STATES = (RNG.normal(size=(60, 3, 20)) * SCALE + RNG.normal(size=20)).astype(np.float32)


def run_of(path: Path, states: np.ndarray, **more: Any) -> Any:
    return write_run(path / "given.sot", {"resid": states}, **more)


def texts(report: Report) -> str:
    return "\n".join(found.text for found in report.findings)


def histogram_entropy(column: np.ndarray, bins: int) -> float:
    low, high = np.percentile(column, [0.5, 99.5])
    return float(scipy.stats.entropy(np.histogram(np.clip(column, low, high), bins, (low, high))[0]))


def test_statistics_are_numpys_however_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path, STATES)
    x = STATES.astype(np.float64)
    c = x - x.mean(0)
    stability = 2 * (c[1:] * c[:-1]).sum(0) / ((c[1:] ** 2).sum(0) + (c[:-1] ** 2).sum(0))
    expected = {
        "mean": x.mean(0),
        "variance": x.var(0),
        "share": x.var(0) / x.var(0).sum(1, keepdims=True),
        "median_size": np.median(np.abs(x), 0),
        "stability": stability,
        "entropy": [[histogram_entropy(x[:, layer, dim], 16) for dim in range(20)] for layer in range(3)],
    }
    agreement = [scipy.stats.spearmanr(x[:30, i].var(0), x[30:, i].var(0)).statistic for i in range(3)]
    reliability = [scipy.stats.spearmanr(x[::2, i].var(0), x[1::2, i].var(0)).statistic for i in range(3)]
    for numbers in (1 << 18, 20 * 7, 1):
        monkeypatch.setattr("sotscope.analysis.moments.PIECE_NUMBERS", numbers)
        report = analyze("dims", run, bins=16)
        for name, wanted in expected.items():
            np.testing.assert_allclose(report.tables["by_dim"][name].values, wanted, rtol=1e-9, err_msg=name)
        by_layer = report.tables["by_layer"]
        np.testing.assert_allclose(by_layer.rank_agreement, agreement)
        np.testing.assert_allclose(by_layer.rank_reliability, reliability)
    np.testing.assert_allclose(by_layer.variance, x.var(0).sum(1))
    np.testing.assert_allclose(by_layer.share_top_10pct, np.sort(expected["share"], 1)[:, -2:].sum(1))
    assert by_layer.bins.tolist() == [16] * 3
    assert by_layer.sampled_rows.tolist() == [60] * 3


def test_the_ranking_lists_the_largest_first(tmp_path: Path) -> None:
    table = analyze("dims", run_of(tmp_path, STATES), top=4).tables["ranking"]
    first = table[(table.layer == 1) & (table.by == "variance")]
    wanted = np.argsort(-STATES[:, 1].astype(np.float64).var(0))[:4]
    assert (first.dim.tolist(), first["rank"].tolist()) == (wanted.tolist(), [1, 2, 3, 4])
    assert set(table.by) == {"variance", "entropy"}


def test_a_dimension_that_changes_slowly_is_stable(tmp_path: Path) -> None:
    states = RNG.normal(size=(400, 1, 3))
    states[:, 0, 1] = np.sin(np.arange(400) / 20)
    states[:, 0, 2] = np.tile([-1.0, 1.0], 200)
    found = analyze("dims", run_of(tmp_path, states.astype(np.float32))).tables["by_dim"]["stability"].values[0]
    assert abs(found[0]) < 0.15
    assert found[1] > 0.99
    assert found[2] == pytest.approx(-1)


# -- outliers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 17])
def test_c02_the_dimension_of_a_sink_is_an_outlier_and_counts_in_nothing_else(at: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(32, 1, 64)).astype(np.float32)
    states[at] = 0.1 * rng.normal(size=64)
    states[at, 0, 7] = 3000
    run = run_of(tmp_path, states)
    report = analyze("dims", run)
    found = report.tables["by_dim"]
    assert np.flatnonzero(found["outlier"].values[0]).tolist() == [7]
    assert np.flatnonzero(found["sink_only"].values[0]).tolist() == [7]
    assert "dimension 7 in layer 0 (in sinks only)" in texts(report)
    others = np.delete(states[:, 0], at, 0).astype(np.float64)
    np.testing.assert_allclose(found["variance"].values[0], others.var(0))
    np.testing.assert_allclose(found["entropy"].values[0], [histogram_entropy(x, 32) for x in others.T])
    assert f"token {at} " in report.left_out[0]
    everything = analyze("dims", run, all_rows=True).tables["by_dim"]
    assert everything["share"].values[0, 7] > 0.99


def test_c12_a_large_constant_dimension_is_an_outlier_that_varies_not(tmp_path: Path) -> None:
    states = np.random.default_rng(0).normal(size=(32, 2, 64)).astype(np.float32)
    states[:, 1, 7] = 50
    report = analyze("dims", run_of(tmp_path, states))
    found = report.tables["by_dim"].sel(layer=1)
    assert np.flatnonzero(found["outlier"].values).tolist() == [7]
    assert not report.tables["by_dim"]["sink_only"].values.any()
    assert (found["variance"].values[7], found["share"].values[7], found["entropy"].values[7]) == (0, 0, 0)
    assert np.isnan(found["stability"].values[7])
    assert "1 of 64 dimensions never change in layer 1" in texts(report)
    assert "dimension 7 in layer 1;" in texts(report).replace(".", ";")


def test_c11_half_precision_is_never_computed_in(tmp_path: Path) -> None:
    column = np.array([-300.0, 300.0] * 32)[:, None, None]
    run = write_run(tmp_path / "half.sot", {"resid": column}, dtype="float16")
    assert np.sqrt(analyze("dims", run).tables["by_dim"]["variance"].values) == 300.0


def test_c23_rows_that_are_not_finite_are_left_out_and_said(tmp_path: Path) -> None:
    states = STATES[:40].copy()
    states[5, 0, 3], states[9, 2, 0] = np.nan, np.inf
    report = analyze("dims", run_of(tmp_path, states))
    np.testing.assert_allclose(
        report.tables["by_dim"]["variance"], np.delete(STATES[:40], [5, 9], 0).astype(np.float64).var(0)
    )
    assert "token 5 " in report.left_out[0]
    nothing = analyze("dims", write_run(tmp_path / "none.sot", {"resid": states * np.nan}))
    assert np.isnan(nothing.tables["by_dim"]["variance"].values).all()
    assert "No row is left" in texts(nothing)


def test_dimensions_that_take_turns_are_told_from_chance(tmp_path: Path) -> None:
    turns = np.ones((400, 1, 40))
    turns[:200, :, :20], turns[200:, :, 20:] = 5, 5
    noise = RNG.normal(size=turns.shape)
    changing = analyze("dims", write_run(tmp_path / "a.sot", {"resid": (noise * turns).astype(np.float32)}))
    assert "Which dimensions vary most changes along the text in layer 0" in texts(changing)
    even = analyze("dims", write_run(tmp_path / "b.sot", {"resid": noise.astype(np.float32)}))
    assert "changes along the text" not in texts(even)


# -- the answer --------------------------------------------------------------------------------------------------


def with_head(path: Path, dim: int = 20, **more: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """A run with ``final``, its states [token, dim] and the head's weight [vocab, dim]."""
    final = (RNG.normal(size=(60, dim)) * np.exp(RNG.normal(size=dim)) + 1).astype(np.float32)
    weight = (RNG.normal(size=(50, dim)) * np.exp(RNG.normal(size=dim)) + 0.5).astype(np.float32)
    run = write_run(path / "head.sot", {"resid": STATES[:, :, :dim], "final": final}, attributes=MODEL)
    give_head(run, weight, **more)
    return run, final.astype(np.float64), weight.astype(np.float64)


def test_the_effect_of_a_dimension_is_how_far_logits_move_without_it(tmp_path: Path) -> None:
    run, final, weight = with_head(tmp_path)
    report = analyze("dims", run)
    wanted = []
    for dim in range(20):
        without = final.copy()
        without[:, dim] = final[:, dim].mean()
        moved = (final - without) @ weight.T
        wanted.append(np.sqrt(((moved - moved.mean(1, keepdims=True)) ** 2).mean()))
    np.testing.assert_allclose(report.tables["logits"].effect, wanted, rtol=1e-6)
    ranking = report.tables["ranking"]
    assert ranking[ranking.by == "effect"].dim.tolist() == np.argsort(-np.array(wanted))[:10].tolist()


def test_what_survives_is_scipys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, final, weight = with_head(tmp_path)
    monkeypatch.setattr("sotscope.analysis.agreement.STATES", 64)  # a few rows a task
    report = analyze("dims", run, site="final")
    table = report.tables["survival"]
    assert table.groupby("by").percent.apply(list).tolist() == [list(PERCENT)] * 3
    true = scipy.special.log_softmax(final @ weight.T, axis=1)
    orders = {
        "variance": final.var(0),
        "effect": report.tables["logits"].effect,
        "entropy": report.tables["logits"].entropy,
    }
    for line in table.itertuples():
        kept = np.argsort(-np.asarray(orders[line.by]), kind="stable")[: line.dims]
        reduced = np.tile(final.mean(0), (60, 1))
        reduced[:, kept] = final[:, kept]
        other = scipy.special.log_softmax(reduced @ weight.T, axis=1)
        assert line.top1 == (true.argmax(1) == other.argmax(1)).mean()
        assert line.kl == pytest.approx((np.exp(true) * (true - other)).sum(1).mean(), rel=1e-4, abs=1e-6)
    assert "dimensions of final by effect on the logits" in texts(report)
    assert report.figure("survival").data[0].y.tolist() == table[table.by == "effect"].top1.tolist()


def test_without_a_head_the_report_says_how_to_get_one(tmp_path: Path) -> None:
    no_final = analyze("dims", run_of(tmp_path, STATES))
    assert "effect on the logits: the run has no final; record it with --sites resid,final" in no_final.left_out
    bare = write_run(tmp_path / "bare.sot", {"resid": STATES, "final": STATES[:, 2]})
    (line,) = [line for line in analyze("dims", bare).left_out if "effect on the logits" in line]
    assert "--embed-head" in line
    run, *_ = with_head(tmp_path, dim=19)
    give_head(run, np.ones((5, 7), np.float32))
    assert any("takes 7 numbers, not 19" in line for line in analyze("dims", run).left_out)
    (run.path / "head.safetensors").write_bytes(b"broken")
    assert any("not a head" in line for line in analyze("dims", run).left_out)
