"""Every analyzer of the catalog keeps the contract; views, pools and reports do what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from store_helpers import Source, make_spec, piece_of

from sotscope.analysis.pool import Dask
from sotscope.analysis.run import analyze, make_view
from sotscope.catalog import ANALYZERS
from sotscope.errors import AnalysisError, SotscopeError
from sotscope.events import Branch
from sotscope.store.reader import Run
from sotscope.store.writer import RunWriter
from sotscope.testing.analysis import check_analyzer
from sotscope.testing.runs import write_run


@pytest.mark.parametrize("name", ANALYZERS.names())
def test_analyzer_keeps_its_contract(name: str, tmp_path: Path) -> None:
    check_analyzer(name, tmp_path)


def given(tmp_path: Path, rows: int = 40, layers: int = 3, dim: int = 16, **more: Any) -> Run:
    states = np.random.default_rng(1).normal(size=(rows, layers, dim)).astype(np.float32)
    return write_run(tmp_path / "given.sot", {"resid": states, "final": states[:, -1]}, prompt=5, **more)


# -- selecting ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selection", "rows"),
    [
        ({}, list(range(40))),
        ({"part": "prompt"}, list(range(5))),
        ({"part": "generated"}, list(range(5, 40))),
        ({"tokens": (2, 4)}, [2, 3]),
        ({"tokens": (-3, None), "part": "prompt"}, [2, 3, 4]),
        ({"seq": 0, "tokens": (None, 1)}, [0]),
    ],
)
def test_a_view_holds_the_rows_that_were_selected(selection: dict[str, Any], rows: list[int], tmp_path: Path) -> None:
    run = given(tmp_path)
    view = make_view(run, layers=(2, 0), **selection)
    assert view.rows.tolist() == rows
    assert view.layers == (2, 0)
    assert view.labels == [f"␣{i}" for i in rows]
    found = np.concatenate([chunk.read() for chunk in view.chunks("resid")])
    np.testing.assert_array_equal(found, run.states("resid")[rows][:, [2, 0]])
    np.testing.assert_array_equal(view.states("resid", layer=1), run.states("resid", layer=1)[rows])
    np.testing.assert_array_equal(view.states("final"), run.states("final")[rows])


@pytest.mark.parametrize(
    ("selection", "said"),
    [
        ({"layers": (7,)}, "layer 7 was not recorded"),
        ({"tokens": (90, 95)}, "nothing is left of its 40 rows"),
        ({"part": "answer"}, "part:"),
        ({"seq": 3}, "sequence"),
    ],
)
def test_a_selection_that_holds_nothing_is_one_line(selection: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(SotscopeError, match=said):
        make_view(given(tmp_path), **selection)


def test_a_missing_site_names_the_flag_that_records_it(tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match="has no mlp_out; record it with --sites resid,final,mlp_out"):
        analyze("norms", given(tmp_path), site="mlp_out")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda run: analyze("normes", run), "unknown analyzer 'normes'; did you mean norms"),
        (lambda run: analyze("norms", run, sight="resid"), "norms: sight"),
        (lambda run: analyze("norms", run).figure("heat"), "unknown figure 'heat'; did you mean heatmap"),
    ],
)
def test_a_wrong_name_is_one_line(call: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match=said):
        call(given(tmp_path))


def test_samples_are_spread_evenly_and_always_the_same(tmp_path: Path) -> None:
    view = make_view(given(tmp_path))
    assert view.sample(4).tolist() == [0, 13, 26, 39]
    keep = np.arange(40) % 2 == 1
    assert set(view.sample(5, keep)) <= set(range(1, 40, 2))
    assert view.sample(99).tolist() == list(range(40))


# -- what is worked on at a time ---------------------------------------------------------------------------------


def test_chunks_change_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = given(tmp_path)
    whole = analyze("norms", run).to_dict()
    monkeypatch.setattr("sotscope.analysis.view.CHUNK_BYTES", 4 * 16 * 3 * 7)  # seven rows
    assert len(make_view(run).chunks("resid")) == 6
    pieces = analyze("norms", run).to_dict()
    assert pieces["tables"] == whole["tables"]


def test_a_dask_cluster_gives_what_threads_give(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    run = given(tmp_path)
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as cluster:
        told: list[tuple[str, int, int]] = []
        pool = Dask(cluster.scheduler_address, lambda *progress: told.append(progress))
        there = analyze("norms", run, pool=pool).to_dict()
        pool.close()
    assert there["tables"] == analyze("norms", run).to_dict()["tables"]
    assert told[-1] == ("rows of resid", 1, 1)


def test_a_scheduler_that_is_not_there_is_one_line() -> None:
    with pytest.raises(AnalysisError, match="no dask scheduler answers"):
        Dask("tcp://127.0.0.1:1", timeout="1s")


def test_a_run_that_grows_is_read_to_its_last_commit(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "live.sot", make_spec(("resid",)), piece_of=piece_of) as writer:
        source = Source(writer)
        writer.sequence(Branch(0, 5))
        source.step(5)
        writer.flush()
        assert len(make_view(tmp_path / "live.sot")) == 5
        report = analyze("norms", tmp_path / "live.sot")
        assert len(report.tables["by_token"]["token"]) == 5
        source.step(3)
        writer.flush()
        assert len(make_view(tmp_path / "live.sot")) == 8


# -- norms -------------------------------------------------------------------------------------------------------


def test_norms_are_numpys(tmp_path: Path) -> None:
    run = given(tmp_path)
    states = run.states("resid").astype(np.float64)
    found = analyze("norms", run).tables["by_token"]
    norm = np.linalg.norm(states, axis=-1)
    np.testing.assert_allclose(found["norm"], norm, rtol=1e-6)
    np.testing.assert_allclose(found["rms"], norm / 4, rtol=1e-6)
    np.testing.assert_allclose(found["max_abs"], np.abs(states).max(-1), rtol=1e-6)
    np.testing.assert_allclose(found["kurtosis"], scipy.stats.kurtosis(states, axis=-1, fisher=False), rtol=1e-4)
    by_layer = analyze("norms", run).tables["by_layer"]
    np.testing.assert_allclose(by_layer.norm_median, np.median(norm, 0), rtol=1e-6)


@pytest.mark.parametrize("at", [0, 17])
def test_c02_a_sink_is_tagged_wherever_it_stands_and_left_out(at: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(32, 64)).astype(np.float32)
    states[at] = 0.1 * rng.normal(size=64)
    states[at, 7] = 3000
    report = analyze("norms", write_run(tmp_path / "sink.sot", {"resid": states[:, None]}))
    rows = report.tables["rows"]
    assert (rows.token.tolist(), rows.tag.tolist(), rows.dim.tolist()) == ([at], ["sink"], [7])
    others = np.delete(states, at, 0)
    assert report.tables["by_layer"].norm_median[0] == pytest.approx(np.median(np.linalg.norm(others, axis=-1)))
    assert f"token {at} " in report.left_out[0]
    assert not any(found.severity == "alarm" for found in report.findings)
    everything = analyze("norms", tmp_path / "sink.sot", all_rows=True)
    assert everything.tables["by_layer"].norm_p95[0] > report.tables["by_layer"].norm_p95[0]
    assert not everything.left_out


def test_c11_half_precision_is_never_computed_in(tmp_path: Path) -> None:
    row = np.full((4, 1, 64), 100, np.float32)
    found = analyze("norms", write_run(tmp_path / "half.sot", {"resid": row}, dtype="float16")).tables["by_token"]
    assert found["norm"].values.tolist() == [[800.0]] * 4


def test_c23_rows_that_are_not_finite_keep_their_place(tmp_path: Path) -> None:
    states = np.random.default_rng(0).normal(size=(40, 2, 16)).astype(np.float32)
    states[5, 1, 3], states[9, 0, 0] = np.nan, np.inf
    report = analyze("norms", write_run(tmp_path / "nan.sot", {"resid": states}))
    norm = report.tables["by_token"]["norm"]
    assert norm.shape == (40, 2)
    assert np.isnan(norm.values[5, 1])
    assert np.isnan(norm.values[9, 0])
    assert np.isfinite(norm.values[5, 0])
    assert report.findings[0].severity == "alarm"
    assert "first at token 5 in layer 1" in report.findings[0].text
    assert report.tables["by_layer"]["nonfinite"].tolist() == [1, 1]
    assert norm["label"].values[5] == "␣5"
