"""Layouts show what is there and nothing else; tokens, layers, queries and MLP activations find their place."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.cluster import HDBSCAN
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.metrics import pairwise_distances

from sotscope.analysis.clusters import clusters
from sotscope.analysis.layouts import align, distinct, layout
from sotscope.analysis.pool import Threads
from sotscope.analysis.report import Report
from sotscope.analysis.run import analyze
from sotscope.errors import AnalysisError
from sotscope.store.reader import Run
from sotscope.testing.runs import write_run

RNG = np.random.default_rng(7)
NORMAL = RNG.normal(size=(40, 16)).astype(np.float32)
EQUAL = np.tile(RNG.normal(size=16), (12, 1))
NEARLY = EQUAL + 1e-14 * RNG.normal(size=(12, 16))
TWO = np.repeat(RNG.normal(size=(2, 16)), 6, 0)
WAYS = ["pca", "tsne"]


def blobs(rows: int = 90, dim: int = 12) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Three far groups of ``rows / 3`` each, and which group a row is of."""
    rng = np.random.default_rng(3)
    group = np.repeat(np.arange(3), rows // 3)
    return (rng.normal(size=(3, dim)) * 12)[group] + rng.normal(size=(rows, dim)), group


def resid(tmp_path: Path, states: Any, **more: Any) -> Run:
    """A run with one layer of these states [token, dim], or with those given [token, layer, dim]."""
    array = np.asarray(states, np.float32)
    return write_run(tmp_path / "given.sot", {"resid": array[:, None] if array.ndim == 2 else array}, **more)


def texts(report: Report) -> str:
    return "\n".join(found.text for found in report.findings)


def same_up_to_sign(found: Any, expected: Any) -> None:
    signs = np.sign((np.asarray(found) * expected).sum(0))
    np.testing.assert_allclose(found * signs, expected, rtol=1e-4, atol=1e-4)


# -- the layout, a function of a matrix --------------------------------------------------------------------------


def test_pca_is_scikit_learns() -> None:
    found = layout(NORMAL, components=3)
    model = PCA(3, svd_solver="full")
    same_up_to_sign(found.coordinates, model.fit_transform(NORMAL.astype(np.float64)))
    np.testing.assert_allclose(found.variance, model.explained_variance_ratio_, rtol=1e-6)
    assert found.verdict == ""
    assert found.distinct == 40


def test_tsne_is_scikit_learns_and_says_what_took_effect() -> None:
    found = layout(NORMAL, "tsne", seed=4)
    np.testing.assert_array_equal(found.coordinates, TSNE(perplexity=13, random_state=4).fit_transform(NORMAL))
    assert found.used["perplexity"] == 13
    assert found.notes == ["perplexity lowered from 30 to 13, all that 40 distinct rows allow"]
    assert layout(NORMAL, "tsne", perplexity=5).notes == []


@pytest.mark.parametrize("method", WAYS)
def test_c59_the_same_input_gives_the_same_picture(method: Any) -> None:
    x = np.random.default_rng(0).normal(size=(60, 16)).astype(np.float32)
    first, again = layout(x, method, seed=3), layout(x, method, seed=3)
    np.testing.assert_array_equal(first.coordinates, again.coordinates)


C09 = """
import json, sys
import numpy as np
from sotscope.analysis.layouts import layout
rng = np.random.default_rng(7)
equal = np.tile(rng.normal(size=16), (12, 1))
cases = [equal, equal + 1e-14 * rng.normal(size=(12, 16)), np.repeat(rng.normal(size=(2, 16)), 6, 0), np.zeros((12, 4))]
for method in sys.argv[1:]:
    for case in cases:
        found = layout(case, method)
        print(json.dumps([found.verdict, found.coordinates.tolist()]))
"""


def check_c09(*methods: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", C09, *methods], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    one = "degenerate, 1 distinct row"
    assert [line[0] for line in lines] == [one, one, "degenerate, 2 distinct rows", one] * len(methods)
    for verdict, coordinates in lines:
        assert np.isfinite(coordinates).all()
        assert len(np.unique(coordinates, axis=0)) == (2 if "2" in verdict else 1)
    assert lines[2][1][0] != lines[2][1][-1]


def test_c09_equal_rows_neither_crash_nor_spread() -> None:
    check_c09(*WAYS)


@pytest.mark.parametrize("method", WAYS)
@pytest.mark.parametrize("components", [2, 3])
@pytest.mark.parametrize("rows", range(1, 8))
def test_few_rows_are_laid_out_as_far_as_they_go(rows: int, components: int, method: Any) -> None:
    found = layout(NORMAL[:rows], method, components=components)
    assert found.coordinates.shape == (rows, components)
    assert np.isfinite(found.coordinates).all()
    assert (found.method == "pca") == (method == "pca" or rows <= components + 1)
    if rows <= components + 1:  # so few points have their true distances
        np.testing.assert_allclose(
            pairwise_distances(found.coordinates), pairwise_distances(NORMAL[:rows].astype(float)), atol=1e-4
        )


@pytest.mark.parametrize("method", WAYS)
def test_equal_rows_among_others_have_one_place(method: Any) -> None:
    rows = np.concatenate([NORMAL[:20], NORMAL[:10]])
    found = layout(rows, method)
    np.testing.assert_array_equal(found.coordinates[:10], found.coordinates[20:])
    assert len(np.unique(found.coordinates, axis=0)) == 20
    assert (found.distinct, found.verdict) == (20, "")
    assert "30 rows are 20 distinct ones; equal rows have one place" in found.notes


def test_rows_as_equal_as_float32_can_tell_are_one() -> None:
    rows = np.array([[1.0, 1000.0], [1.0 + 1e-7, 1000.0], [1.00001, 1000.0], [1.0, 1000.1]])
    first, group = distinct(rows)
    assert group.tolist() == [0, 0, 1, 2]
    assert first.tolist() == [0, 2, 3]


def test_c23_rows_that_are_not_finite_keep_their_place_and_the_input_is_left_alone() -> None:
    rows = NORMAL.copy()
    rows[5, 3], rows[9, 0] = np.nan, np.inf
    before = rows.copy()
    for method in ("pca", "tsne"):
        found = layout(rows, method)  # type: ignore[arg-type]
        assert found.coordinates.shape == (40, 2)
        assert np.flatnonzero(np.isnan(found.coordinates).any(1)).tolist() == [5, 9]
        assert found.dropped.tolist() == [5, 9]
        np.testing.assert_array_equal(rows, before)
        rest = layout(np.delete(before, [5, 9], 0), method)  # type: ignore[arg-type]
        np.testing.assert_array_equal(np.delete(found.coordinates, [5, 9], 0), rest.coordinates)
    assert layout(np.full((4, 3), np.nan)).verdict == "no finite rows"


def test_c30_no_variance_is_no_nan_and_more_components_than_dimensions_are_empty() -> None:
    flat = layout(np.full((10, 4), 3.0))
    assert flat.variance.tolist() == [0, 0]
    assert not flat.coordinates.any()
    line = layout(np.arange(12.0)[:, None], components=3)
    np.testing.assert_allclose(np.abs(line.coordinates[:, 0]), np.abs(np.arange(12) - 5.5))
    assert not line.coordinates[:, 1:].any()
    assert line.variance.tolist() == [1, 0, 0]


@pytest.mark.parametrize("method", WAYS)
def test_c11_half_precision_and_huge_numbers_are_computed_in_full(method: Any) -> None:
    half = (NORMAL * 100).astype(np.float16)
    found = layout(half, method)
    np.testing.assert_array_equal(found.coordinates, layout(half.astype(np.float32), method).coordinates)
    scaled = layout(NORMAL.astype(np.float32) * 2.0**90, method)
    assert np.isfinite(scaled.coordinates).all()


# -- staying where it was ----------------------------------------------------------------------------------------


def jump(after: np.ndarray[Any, Any], before: np.ndarray[Any, Any]) -> float:
    """How far points moved on average, in mean distances from the middle."""
    moved = np.linalg.norm(after[: len(before)] - before, axis=1).mean()
    return float(moved / np.linalg.norm(before - before.mean(0), axis=1).mean())


def test_a_mirrored_or_turned_picture_is_put_back() -> None:
    first = layout(NORMAL).coordinates
    turn = np.array([[0.6, 0.8], [0.8, -0.6]])
    found = layout(NORMAL, previous=first @ turn + 5)
    np.testing.assert_allclose(found.coordinates, first @ turn + 5, atol=1e-9)
    assert found.used["aligned_to"] == 40


def test_tsne_stays_where_it_was_when_rows_come_in() -> None:
    rows, _ = blobs(120)
    rows = rows[np.random.default_rng(1).permutation(120)].astype(np.float32)
    before = layout(rows[:100], "tsne", seed=1).coordinates
    warm = layout(rows, "tsne", seed=2, previous=before)
    assert jump(warm.coordinates, before) < 0.25
    cold = layout(rows, "tsne").coordinates
    known = np.concatenate([before, np.full((20, 2), np.nan)])
    assert jump(warm.coordinates, before) < 0.7 * jump(align(cold, known, {}), before)
    assert np.isfinite(warm.coordinates).all()
    nearest = pairwise_distances(rows[100:], rows[:100]).argmin(1)
    reach = np.linalg.norm(before - before.mean(0), axis=1).mean()
    assert (np.linalg.norm(warm.coordinates[100:] - warm.coordinates[nearest], axis=1) < reach / 2).all()


def test_previous_coordinates_of_another_shape_are_refused_and_too_few_ignored() -> None:
    with pytest.raises(AnalysisError, match=r"previous: coordinates \[row, 2\] are needed \(got shape \(3, 3\)\)"):
        layout(NORMAL, previous=np.zeros((3, 3)))
    np.testing.assert_array_equal(layout(NORMAL, previous=np.zeros((2, 2))).coordinates, layout(NORMAL).coordinates)


# -- clusters ----------------------------------------------------------------------------------------------------


def test_clusters_are_hdbscans_with_the_rows_in_their_middle() -> None:
    rows, group = blobs()
    found = clusters(rows, Threads())
    assert len(found) == 3
    for k, medoid in enumerate(found.medoids):
        members = np.flatnonzero(found.labels == k)
        assert len(set(group[members])) == 1
        distances = pairwise_distances(rows[members])  # 12 dimensions: none is lost to the reduction
        assert members[distances.sum(0).argmin()] == medoid
    reduced = PCA(12, random_state=0).fit_transform(rows)
    theirs = HDBSCAN(min_cluster_size=5, copy=True).fit_predict(reduced)
    assert ((found.labels >= 0) == (theirs >= 0)).all()
    assert found.score > found.chance


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dim", [2, 5, 30])
def test_noise_has_no_clusters(dim: int, seed: int) -> None:
    rows = np.random.default_rng(seed + 100).normal(size=(80, dim)) * np.geomspace(4, 1, dim)
    found = clusters(rows, Threads())
    assert len(found) == 0
    assert (found.labels == -1).all()


def test_a_report_names_the_tokens_that_stand_for_clusters(tmp_path: Path) -> None:
    rows, group = blobs()
    words = {0: " cat", 1: " dog", 2: " sky"}
    report = analyze("project", resid(tmp_path, rows, ids=group.tolist(), words=words))
    table = report.tables["clusters"]
    assert sorted(zip(table.medoid_label, table.commonest, strict=True)) == [
        (f"␣{w}",) * 2 for w in ("cat", "dog", "sky")
    ]
    assert all(table.medoid.to_numpy() // 30 == [words_at(label) for label in table.medoid_label])
    assert "3 clusters (HDBSCAN in the first 12 principal components, not in the picture)" in texts(report)
    coordinates = report.tables["coordinates"]
    for k, label in zip(table.cluster, table.medoid_label, strict=True):
        assert set(coordinates[coordinates.cluster == k].label) == {label}
    made = report.figure("clusters")
    assert sum(len(trace.x) for trace in made.data) == 90
    assert "No clusters" in texts(analyze("project", resid(tmp_path / "b", NORMAL)))


def words_at(label: str) -> int:
    return ["␣cat", "␣dog", "␣sky"].index(label)


# -- what is laid out --------------------------------------------------------------------------------------------


def everything(tmp_path: Path) -> Run:
    rng = np.random.default_rng(2)
    sites = {
        "resid": rng.normal(size=(24, 5, 12)),
        "mlp_act": rng.normal(size=(24, 5, 20)),
        "query": rng.normal(size=(24, 5, 3, 4)),
        "final": rng.normal(size=(24, 12)),
    }
    return write_run(tmp_path / "all.sot", {name: array.astype(np.float32) for name, array in sites.items()})


def places(report: Report) -> np.ndarray[Any, Any]:
    return report.tables["coordinates"][["x", "y"]].to_numpy()


@pytest.mark.parametrize(
    ("given", "site", "layer", "index"),
    [
        ({}, "resid", 2, ...),
        ({"layer": 0}, "resid", 0, ...),
        ({"layer": -1}, "resid", 4, ...),
        ({"what": "mlp"}, "mlp_act", 2, ...),
        ({"site": "final"}, "final", None, ...),
        ({"what": "queries", "head": 1}, "query", 2, (slice(None), 1)),
    ],
)
def test_the_states_that_were_asked_for_are_laid_out(
    given: dict[str, Any], site: str, layer: int | None, index: Any, tmp_path: Path
) -> None:
    run = everything(tmp_path)
    report = analyze("project", run, **given)
    expected = run.states(site, layer=layer)[index].astype(np.float64)
    same_up_to_sign(places(report), PCA(2, svd_solver="full").fit_transform(expected))
    assert report.tables["coordinates"].token.tolist() == list(range(24))
    assert site in report.title


def test_queries_have_a_line_for_every_token_and_head(tmp_path: Path) -> None:
    run = everything(tmp_path)
    report = analyze("project", run, what="queries", layer=3)
    table = report.tables["coordinates"]
    assert table[["token", "head"]].to_numpy().tolist() == [[i, h] for i in range(24) for h in range(3)]
    assert table.label[4] == "␣1"
    same_up_to_sign(
        places(report), PCA(2, svd_solver="full").fit_transform(run.states("query", layer=3).reshape(72, 4))
    )
    few = analyze("project", run, what="queries", rows=30).tables["coordinates"]
    assert few.x.notna().sum() == 30
    assert few[few.x.notna()].token.nunique() == 10


def test_layer_means_are_numpys_and_the_way_between_them_is_measured_in_the_states(tmp_path: Path) -> None:
    run = everything(tmp_path)
    report = analyze("project", run, what="layers")
    means = run.states("resid").astype(np.float64).mean(0)
    same_up_to_sign(places(report), PCA(2, svd_solver="full").fit_transform(means))
    steps = report.tables["steps"]
    np.testing.assert_allclose(steps.distance, np.linalg.norm(np.diff(means, axis=0), axis=1), rtol=1e-6)
    longest = steps.iloc[int(steps.distance.argmax())]
    assert f"longest step from layer {longest.layer:.0f} to {longest.next:.0f}" in texts(report)
    assert "cluster" not in report.tables["coordinates"]


def test_no_more_rows_than_stated(tmp_path: Path) -> None:
    report = analyze("project", resid(tmp_path, NORMAL), rows=10)
    table = report.tables["coordinates"]
    assert len(table) == 40
    assert table.x.notna().sum() == 10
    assert "10 of 40 tokens are laid out, evenly spread (rows=...)" in report.left_out


@pytest.mark.parametrize("at", [0, 17])
def test_c02_a_sink_is_left_out_wherever_it_stands(at: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(32, 64))
    rows[at] = 0.1 * rng.normal(size=64)
    rows[at, 7] = 3000
    report = analyze("project", resid(tmp_path, rows))
    assert f"token {at} " in report.left_out[0]
    others = np.delete(rows.astype(np.float32), at, 0).astype(np.float64)
    model = PCA(2, svd_solver="full").fit(others)
    np.testing.assert_allclose(report.tables["variance"].variance, model.explained_variance_ratio_, rtol=1e-5)
    assert np.flatnonzero(np.isnan(places(report)).any(1)).tolist() == [at]
    whole = analyze("project", resid(tmp_path / "b", rows), all_rows=True)
    assert whole.tables["variance"].variance[0] > 0.99
    assert not whole.left_out


def test_c02_a_row_that_stands_out_in_the_layer_alone_is_left_out(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(32, 8, 16))
    rows[9, 3] *= 50
    run = resid(tmp_path, rows)
    assert analyze("project", run, layer=3).left_out == [
        "1 of 32 rows (norm far above the others' in layer 3): token 9 '␣9'"
    ]
    assert analyze("project", run, layer=4).left_out == []


@pytest.mark.parametrize("method", WAYS)
def test_c23_a_report_keeps_rows_and_labels_in_step(method: str, tmp_path: Path) -> None:
    rows = NORMAL.copy()
    rows[5, 3], rows[9, 0] = np.nan, np.inf
    report = analyze("project", resid(tmp_path, rows), method=method)
    table = report.tables["coordinates"]
    assert table.label.tolist() == [f"␣{i}" for i in range(40)]
    assert np.flatnonzero(table.x.isna()).tolist() == [5, 9]
    (found,) = [found for found in report.findings if "NaN" in found.text]
    assert list(found.numbers["dropped"]) == [5, 9]
    assert found.severity == "warning"


def test_c23_nothing_finite_is_a_message(tmp_path: Path) -> None:
    for method in WAYS:
        report = analyze("project", resid(tmp_path / method, np.full((8, 4), np.nan)), method=method)
        assert "No row is left" in texts(report)
        assert report.tables["coordinates"].x.isna().all()
        assert report.figure("layout").to_json()


@pytest.mark.parametrize(("rows", "verdict"), [(EQUAL, "1 distinct row among 12"), (TWO, "2 distinct rows among 12")])
def test_c09_a_report_calls_degenerate_rows_so(rows: Any, verdict: str, tmp_path: Path) -> None:
    for method in WAYS:
        report = analyze("project", resid(tmp_path / method, rows), method=method)
        assert f"degenerate, {verdict}" in report.findings[0].text
        assert "clusters" not in report.tables


def test_c12_a_constant_dimension_makes_no_rows_alike_and_a_collapse_is_said(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(32, 64))
    rows[:, 7] = 50
    assert "nearly one" not in texts(analyze("project", resid(tmp_path, rows)))
    collapsed = rng.normal(size=64) + 1e-4 * rng.normal(size=(32, 64))
    report = analyze("project", resid(tmp_path / "b", collapsed))
    assert "rows are nearly one" in texts(report)
    assert "degenerate" not in texts(report)


def test_a_report_goes_on_from_an_earlier_one(tmp_path: Path) -> None:
    states = np.random.default_rng(5).normal(size=(40, 2, 16)) * np.geomspace(9, 1, 16)
    run = resid(tmp_path, states)
    before = analyze("project", run, tokens=(0, 32))
    mirrored = places(before) * [-1, 1]
    mirrored[3] = np.nan
    after = analyze("project", run, previous=json.loads(json.dumps(mirrored.tolist()).replace("NaN", "null")))
    np.testing.assert_array_less(
        np.linalg.norm(places(after)[:3] - mirrored[:3], axis=1), np.linalg.norm(places(before)[:3] * 2, axis=1)
    )
    assert (np.sign(places(after)[:32, 0]) == np.sign(mirrored[:, 0])).mean() > 0.8
    used = after.tables["parameters"].set_index("parameter").used
    assert used["aligned_to"] == "31"
    assert "axis 1" in after.figure("layout").layout.xaxis.title.text
    assert "previous" not in after.params


def test_parameters_that_took_effect_are_a_table(tmp_path: Path) -> None:
    table = analyze("project", resid(tmp_path, NORMAL), method="tsne").tables["parameters"].set_index("parameter")
    assert table.asked["perplexity"] == "30.0"
    assert float(table.used["perplexity"]) == 13
    assert table.used["distinct rows"] == "40"


def test_figures_draw_the_table_and_name_tokens(tmp_path: Path) -> None:
    report = analyze("project", resid(tmp_path, NORMAL))
    (trace,) = report.figure("layout").data
    np.testing.assert_array_equal(trace.x, report.tables["coordinates"].x)
    assert trace.customdata[3].startswith("token 3<br>label ␣3")
    assert "% of the variance" in report.figure("layout").layout.xaxis.title.text
    solid = analyze("project", everything(tmp_path), what="layers", components=3).figure("layout")
    assert solid.data[0].type == "scatter3d"
    assert list(solid.data[0].text) == list(range(5))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"layer": 9}, r"layer 9 is not among those of resid in this view, \(0, 1, 2, 3, 4\)"),
        ({"what": "queries", "head": 3}, "query has heads 0 to 2; there is no head 3"),
        ({"what": "queries", "site": "resid"}, "resid has no heads"),
        ({"what": "layers", "site": "final"}, "final has no layers"),
        ({"what": "mlp", "site": "mlp_out"}, "has no mlp_out; record it with --sites"),
        ({"method": "pcaa"}, "project: method"),
        ({"previous": "here"}, "project: previous"),
        ({"previous": [[1.0, 2.0, 3.0]]}, "previous: coordinates"),
    ],
)
def test_what_cannot_be_is_one_line(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(AnalysisError, match=said):
        analyze("project", everything(tmp_path), **given)


# -- UMAP, an optional part (it takes seconds to start) ------------------------------------------------------------


def test_umap_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(AnalysisError, match=r"method umap needs: pip install 'sotscope\[umap\]'"):
        layout(NORMAL, "umap")


@pytest.mark.slow
def test_c09_umap_neither_crashes_nor_spreads_equal_rows() -> None:
    pytest.importorskip("umap")
    check_c09("umap")


UMAP = """
import hashlib, sys
import numpy as np
from sotscope.analysis.layouts import layout
x = np.random.default_rng(0).normal(size=(60, 16)).astype(np.float32)
first, again = layout(x, "umap", seed=3), layout(x, "umap", seed=3)
assert np.array_equal(first.coordinates, again.coordinates)
assert np.isfinite(first.coordinates).all()
print(hashlib.sha256(first.coordinates.tobytes()).hexdigest())
if sys.argv[1] == "short":
    sys.exit()

holes = x.copy()
holes[5, 3], holes[9, 0] = np.nan, np.inf
found = layout(holes, "umap")
assert np.flatnonzero(np.isnan(found.coordinates).any(1)).tolist() == [5, 9]
assert layout(x[:9], "umap").notes == ["neighbors lowered from 15 to 8, all that 9 distinct rows allow"]
for rows in range(1, 9):
    for components in (2, 3):
        assert np.isfinite(layout(x[:rows], "umap", components=components).coordinates).all(), (rows, components)
assert np.isfinite(layout(np.outer(np.arange(30.0), np.ones(8)), "umap").coordinates).all()

from umap import UMAP
import warnings
warnings.simplefilter("ignore")
theirs = UMAP(n_neighbors=15, min_dist=0.1, random_state=3, n_jobs=1).fit_transform(x)
assert np.array_equal(first.coordinates, theirs)

rng = np.random.default_rng(3)
blobs = ((rng.normal(size=(3, 12)) * 12)[rng.integers(0, 3, 140)] + rng.normal(size=(140, 12))).astype(np.float32)
before = layout(blobs[:120], "umap", seed=1).coordinates
warm = layout(blobs, "umap", seed=2, previous=before).coordinates[:120]
reach = np.linalg.norm(before - before.mean(0), axis=1).mean()
assert np.linalg.norm(warm - before, axis=1).mean() < 0.2 * reach
"""


@pytest.mark.slow
def test_c59_umap_is_the_same_in_every_process_and_stays_where_it_was() -> None:
    pytest.importorskip("umap")
    printed = [
        subprocess.run(
            [sys.executable, "-W", "error::RuntimeWarning", "-c", UMAP, length],
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        for length in ("long", "short")
    ]
    assert [done.returncode for done in printed] == [0, 0], printed[0].stderr[-2000:]
    assert printed[0].stdout == printed[1].stdout
    assert printed[0].stderr == ""
