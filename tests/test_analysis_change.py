"""`change`: distances and cosines are numpy's, pairs are true neighbours, and a switch of topic shows when it does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from store_helpers import Source, make_spec, piece_of

from sotscope.analysis.moments import successive
from sotscope.analysis.report import Report
from sotscope.analysis.run import analyze, make_view
from sotscope.analysis.switch import find_switch
from sotscope.errors import AnalysisError
from sotscope.events import Branch
from sotscope.store.writer import RunWriter
from sotscope.testing.runs import write_run

RNG = np.random.default_rng(5)
STATES = (RNG.normal(size=(30, 3, 16)) * [[[1.0], [3.0], [10.0]]] + 2).astype(np.float32)


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def run_of(path: Path, states: np.ndarray, **more: Any) -> Any:
    return write_run(path / "given.sot", {"resid": states}, **more)


def texts(report: Report, severity: str = "") -> list[str]:
    return [found.text for found in report.findings if not severity or found.severity == severity]


def test_distances_and_cosines_are_numpys_however_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path, STATES)
    x = STATES.astype(np.float64)
    c = x - x.mean(0)
    step = np.diff(x, axis=0)
    expected = {
        "velocity": np.linalg.norm(step, axis=-1),
        "acceleration": np.linalg.norm(np.diff(step, axis=0), axis=-1),
        "cosine": cosine(x[1:], x[:-1]),
        "cosine_centred": cosine(c[1:], c[:-1]),
        "layer_cosine": cosine(x[:, 1:], x[:, :-1]),
        "layer_cosine_centred": cosine(c[:, 1:], c[:, :-1]),
        "step": np.sqrt((step**2 / (x**2).mean(0)).mean(-1)),
    }
    for numbers in (1 << 18, 16 * 7, 1):  # all at once, seven rows, one row
        monkeypatch.setattr("sotscope.analysis.moments.PIECE_NUMBERS", numbers)
        found = analyze("change", run).tables["by_token"]
        for name, wanted in expected.items():
            got = found[name].values
            rows, columns = wanted.shape
            np.testing.assert_allclose(got[-rows:, -columns:], wanted, rtol=1e-9, err_msg=f"{name} {numbers}")
            assert np.isnan(got[:-rows]).all()
            assert np.isnan(got[:, :-columns]).all()
    relative = expected["velocity"] / np.median(expected["velocity"], 0)
    np.testing.assert_allclose(found["velocity_relative"].values[1:], relative)
    by_layer = analyze("change", run).tables["by_layer"]
    np.testing.assert_allclose(by_layer.velocity_p95, np.percentile(expected["velocity"], 95, axis=0))
    np.testing.assert_allclose(by_layer.cosine_median, np.median(expected["cosine"], 0))


def test_neighbours_are_the_tokens_of_one_sequence_or_lineage(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "branch.sot", make_spec(("resid",)), piece_of=piece_of) as writer:
        writer.sequence(Branch(0, 5))
        source = Source(writer)
        source.step(5)
        writer.sequence(Branch(1, 5, parent=0, parent_pos=3))
        source.step(3, seq=1, pos=3)
    path = tmp_path / "branch.sot"
    assert successive(make_view(path)).tolist() == [False, *[True] * 4, False, True, True]
    view = make_view(path, seq=1)
    assert view.rows.tolist() == [0, 1, 2, 5, 6, 7]
    assert successive(view).tolist() == [False, *[True] * 5]
    apart = analyze("change", path).tables["by_token"]["velocity"].values
    assert np.isnan(apart[5]).all()
    assert np.isfinite(apart[[4, 6]]).all()


def test_c23_a_row_that_is_left_out_ends_what_is_successive(tmp_path: Path) -> None:
    states = STATES.copy()
    states[9, 1, 3] = np.nan
    before = states.copy()
    report = analyze("change", run_of(tmp_path, states))
    found = report.tables["by_token"]
    assert len(found["token"]) == 30
    missing = {"velocity": [0, 9, 10], "acceleration": [0, 1, 9, 10, 11], "cosine": [0, 9, 10], "layer_cosine": [9]}
    for name, rows in missing.items():
        assert np.flatnonzero(np.isnan(found[name].values[:, 2])).tolist() == rows, name
    assert "token 9 " in report.left_out[0]
    assert found["label"].values[9] == "␣9"
    np.testing.assert_array_equal(states, before)


@pytest.mark.parametrize("at", [0, 17])
def test_c02_a_sink_is_left_out_wherever_it_stands(at: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(32, 1, 64)).astype(np.float32)
    states[at] = 0.1 * rng.normal(size=64)
    states[at, 0, 7] = 3000
    run = run_of(tmp_path, states)
    report = analyze("change", run)
    assert not texts(report, "alarm")
    assert f"token {at} " in report.left_out[0]
    assert np.isnan(report.tables["by_token"]["velocity"].values[[at, at + 1]]).all()
    assert report.tables["by_layer"].velocity_p95[0] < 20
    everything = analyze("change", run, all_rows=True)
    assert everything.tables["by_token"]["velocity"].values[at + 1, 0] > 2990


def test_c11_half_precision_is_never_computed_in(tmp_path: Path) -> None:
    states = np.tile(np.array([-300.0, 300.0]), 16)[:, None, None] * np.ones((1, 1, 64))
    run = write_run(tmp_path / "half.sot", {"resid": states}, dtype="float16")
    table = analyze("change", run).tables["by_layer"]
    assert table.velocity_median[0] == 600 * 8
    assert table.acceleration_median[0] == 1200 * 8


# -- what all states share ---------------------------------------------------------------------------------------


def test_c12_a_constant_large_dimension_is_no_collapse(tmp_path: Path) -> None:
    states = np.random.default_rng(0).normal(size=(32, 1, 64)).astype(np.float32)
    states[:, :, 7] = 50
    report = analyze("change", run_of(tmp_path, states))
    table = report.tables["by_layer"]
    assert table.cosine_median[0] > 0.96
    assert abs(table.cosine_centred_median[0]) < 0.15
    assert table.step_median[0] > 1.3
    assert not texts(report, "alarm")
    assert any(re.search(r"look alike \(cosine 0.9\d in layer 0\) because of", text) for text in texts(report))


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_c12_states_that_stand_still_are_an_alarm(seed: int, first: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(1, 2, 64)) + 1e-4 * rng.normal(size=(32, 2, 64))
    if first:
        states[0] = rng.normal(size=(2, 64))
    (alarm,) = texts(analyze("change", run_of(tmp_path, states.astype(np.float32))), "alarm")
    assert alarm.startswith("The states hardly change from token to token any more in layers 0-1")


def test_identical_rows_have_no_direction_of_their_own(tmp_path: Path) -> None:
    states = np.broadcast_to(RNG.normal(size=(1, 2, 16)), (12, 2, 16)).astype(np.float32)
    report = analyze("change", run_of(tmp_path, states))
    found = report.tables["by_token"]
    assert found["velocity"].values[1:].max() == 0
    np.testing.assert_allclose(found["cosine"].values[1:], 1)
    assert np.isnan(found["cosine_centred"].values).all()
    assert len(texts(report, "alarm")) == 1


# -- layers ------------------------------------------------------------------------------------------------------


def test_layers_are_compared_only_where_they_share_a_space(tmp_path: Path) -> None:
    sites = {"resid": STATES, "head_out": STATES.reshape(30, 3, 4, 4), "final": STATES[:, 2]}
    run = write_run(tmp_path / "sites.sot", sites)
    heads = analyze("change", run, site="head_out")
    assert any("each layer of head_out has axes of its own" in line for line in heads.left_out)
    assert np.isnan(heads.tables["by_token"]["layer_cosine"].values).all()
    np.testing.assert_allclose(
        heads.tables["by_token"]["velocity"], analyze("change", run).tables["by_token"]["velocity"]
    )
    for report in (analyze("change", run, site="final"), analyze("change", run, layers=[1])):
        assert any("there is one layer of" in line for line in report.left_out)
        assert "layer_cosine" not in report.figures
    two = analyze("change", run, layers=[0, 2]).tables["by_token"]["layer_cosine"].values[:, 1]
    np.testing.assert_allclose(two, cosine(STATES[:, 2].astype(float), STATES[:, 0].astype(float)))


def test_the_layer_that_turns_states_most_is_named(tmp_path: Path) -> None:
    base = RNG.normal(size=(40, 16))
    states = np.stack([base, base, base + RNG.normal(size=(40, 16)), base], 1).astype(np.float32)
    states[:, 3] = states[:, 2]
    assert any(
        text.startswith("Layer 2 turns the states most") for text in texts(analyze("change", run_of(tmp_path, states)))
    )


def test_a_site_without_one_of_the_layers_is_one_line(tmp_path: Path) -> None:
    run = write_run(tmp_path / "few.sot", {"resid": STATES, "mlp_out": STATES[:, :1]})
    with pytest.raises(AnalysisError, match=r"no mlp_out of layers \(2,\)"):
        analyze("change", run, site="mlp_out", layers=[2])


# -- a switch of topic -------------------------------------------------------------------------------------------


def switched(lags: list[int], at: int = 40, after: int = 40, size: float = 3.0, seed: int = 0) -> np.ndarray:
    """States [token, layer, dim] whose layers move by ``size`` a dimension, each so many tokens after row ``at``."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(at + after, len(lags), 48))
    for layer, lag in enumerate(lags):
        states[at + lag :, layer] += size
    return states.astype(np.float32)


def test_layers_lag_by_as_many_tokens_as_they_do(tmp_path: Path) -> None:
    lags = [0, 3, 5, 12]
    states = switched(lags)
    report = analyze("change", run_of(tmp_path, states, prompt=40))
    table = report.tables["switch"]
    assert table.lag.tolist() == lags
    assert table.moved.all()
    (text,) = [text for text in texts(report) if "switch" in text]
    assert text.startswith("After the switch at token 40 (first token that the model wrote) 4 of 4 layers move away")
    assert text.endswith("layer 0 first, within 1 token, layer 3 last, within 13 tokens.")
    x = states[:, 1].astype(np.float64)
    others = [np.linalg.norm(x[i] - np.delete(x[:40], i, 0).mean(0)) for i in range(40)]
    expected = np.concatenate([others, np.linalg.norm(x[40:] - x[:40].mean(0), axis=-1)]) / np.median(others)
    np.testing.assert_allclose(report.tables["response"].values[:, 1], expected)
    assert report.tables["response"]["since_switch"].values[[0, 40]].tolist() == [-40, 0]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("rows", [8, 60])
def test_no_switch_is_seen_in_noise(rows: int, seed: int, tmp_path: Path) -> None:
    report = analyze("change", run_of(tmp_path, switched([0, 0], rows, 60, 0.0, seed), prompt=rows))
    assert not report.tables["switch"].moved.any()
    assert report.tables["switch"].lag.isna().all()
    assert any(text.startswith("No layer moves clearly away") for text in texts(report))


def test_rows_that_are_left_out_do_not_shift_the_lag(tmp_path: Path) -> None:
    states = switched([6])
    states[42, 0, 0], states[10, 0, 0] = np.nan, np.inf
    assert analyze("change", run_of(tmp_path, states, prompt=40)).tables["switch"].lag.tolist() == [6]


def test_only_so_many_rows_around_the_switch_count(tmp_path: Path) -> None:
    report = analyze("change", run_of(tmp_path, switched([0, 4]), prompt=40), around=20)
    assert report.tables["response"]["token"].values.tolist() == list(range(20, 60))
    assert report.tables["switch"].lag.tolist() == [0, 4]


@pytest.mark.parametrize(
    ("segments", "at", "which"),
    [
        (["system"] * 4 + ["user"] * 4 + ["generated"] * 4, 8, "first token that the model wrote"),
        (["user"] * 2 + ["assistant"] * 2 + ["user"] * 4 + ["generated"] * 4, 4, "last user turn"),
        (["raw"] * 5 + ["think"] * 7, 5, "first token that the model wrote"),
        (["system"] * 5 + ["user"] * 7, 5, "user turn"),
        (["raw"] * 12, None, ""),
        (["generated"] * 12, None, ""),
    ],
)
def test_the_switch_is_found_in_the_segments(segments: list[str], at: int | None, which: str, tmp_path: Path) -> None:
    run = run_of(tmp_path, STATES[:12], segments=segments)
    assert find_switch(make_view(run)) == (at, which)
    if at is None:
        assert any("this view shows none; give one with switch=ROW" in line for line in analyze("change", run).left_out)


def test_a_given_switch_is_used_and_a_useless_one_is_said(tmp_path: Path) -> None:
    run = run_of(tmp_path, switched([0, 2]), prompt=5)
    assert analyze("change", run, switch=40).tables["switch"].lag.tolist() == [0, 2]
    for switch in (2, 78):
        report = analyze("change", run, switch=switch)
        assert any(f"answer to the switch at token {switch} (given)" in line for line in report.left_out)
    assert any("this view shows none" in line for line in analyze("change", run, switch=500).left_out)
    with pytest.raises(AnalysisError, match="change: switch"):
        analyze("change", run, switch=0)


def test_equal_rows_before_a_switch_give_no_measure(tmp_path: Path) -> None:
    states = switched([0])
    states[:40] = 1
    report = analyze("change", run_of(tmp_path, states, prompt=40))
    assert any("are all the same, so nothing says how far is far" in text for text in texts(report))
