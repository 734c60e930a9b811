"""`lens`: what it says of known states is what numpy and scipy say, and it ends where the model does."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.special
import scipy.stats
from safetensors.numpy import load_file, save_file
from steps_helpers import model_attributes, write_head

from sotscope.analysis import lens_look
from sotscope.analysis.head import FILE, FORMAT, load_head
from sotscope.analysis.lens_look import Task, look
from sotscope.analysis.report import Report
from sotscope.analysis.run import analyze
from sotscope.config import CaptureConfig, RunConfig
from sotscope.store.reader import Run
from sotscope.testing.runs import write_run

EMBED = RunConfig(capture=CaptureConfig(embed_head=True, sites=["resid", "final"]))
WORDS = 6
SURE = 20.0
"""A state that points to a word so strongly is as good as certain of it."""


@pytest.fixture
def run(go: Callable[..., Any], llama: Any) -> Run:
    """A tiny model's own text, with its head: 5 prompt tokens, 30 rows."""
    found: Run = go(llama, max_new_tokens=26, config=EMBED)
    return found


def spelled(tmp_path: Path, said: list[list[int]], *, layers: int | None = None, **more: Any) -> Run:
    """A run whose states spell one word a layer: ``said [token][layer]``. The head knows as many words as it has
    dimensions."""
    states = SURE * np.eye(WORDS, dtype=np.float32)[np.array(said)]
    return given(tmp_path, states, layers=layers, **more)


def given(tmp_path: Path, states: np.ndarray, *, layers: int | None = None, **more: Any) -> Run:
    run = write_run(tmp_path / "given.sot", {"resid": states}, attributes=model_attributes(), **more)
    write_head(run, np.eye(WORDS, states.shape[-1], dtype=np.float32), layers=layers or states.shape[1])
    return run


def texts(report: Report) -> str:
    return " ".join(found.text for found in report.findings)


# -- right values ------------------------------------------------------------------------------------------------


def test_every_layer_is_read_as_scipy_reads_it(run: Run) -> None:
    report = analyze("lens", run, all_rows=True)
    by_token = report.tables["by_token"]
    assert by_token["token"].values.tolist() == list(range(30))
    head = load_head(run)
    assert head is not None
    logits = np.stack([head.logits(head.normed(run.states("resid", layer))) for layer in range(4)], 1)
    logs = scipy.special.log_softmax(logits.astype(np.float64), -1)
    final = logs[:, -1:]
    np.testing.assert_allclose(by_token["kl"], (np.exp(final) * (final - logs)).sum(-1), atol=1e-5)
    np.testing.assert_allclose(by_token["entropy"], scipy.stats.entropy(np.exp(logs), axis=-1), atol=1e-5)
    order = np.argsort(-logs, -1)[..., :5]
    np.testing.assert_array_equal(by_token["id"], order)
    np.testing.assert_allclose(by_token["prob"], np.exp(np.take_along_axis(logs, order, -1)), atol=1e-6)
    following = run.tokens.next_ids
    np.testing.assert_allclose(
        by_token["following_logprob"], np.take_along_axis(logs, following[:, None, None], -1)[..., 0], atol=1e-5
    )
    assert (by_token["kl"].values[:, -1] == 0).all()


def test_the_last_layer_is_what_was_recorded(run: Run) -> None:
    report = analyze("lens", run, all_rows=True)
    check = report.tables["check"]
    assert len(check) == 26
    assert (check.recorded == check.rebuilt).all()
    np.testing.assert_allclose(check.rebuilt_logprob, check.recorded_logprob, atol=1e-4)
    assert not any(found.severity == "alarm" for found in report.findings)
    by_layer = report.tables["by_layer"]
    assert by_layer.agrees.iloc[-1] == by_layer.settled.iloc[-1] == 1
    words = report.tables["by_token"]["final_word"].values
    assert words[0] == f"#{report.tables['by_token']['id'].values[0, -1, 0]}"  # this model has no tokenizer


def test_blocks_change_no_number(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = analyze("lens", run).tables["by_token"]
    monkeypatch.setattr(lens_look, "WORDS", 7)
    monkeypatch.setattr(lens_look, "VECTORS", 11)
    pieces = analyze("lens", run).tables["by_token"]
    np.testing.assert_array_equal(pieces["id"], whole["id"])
    for name in ("kl", "entropy", "prob", "following_logprob"):
        np.testing.assert_allclose(pieces[name], whole[name], atol=2e-5)


def test_a_task_can_be_sent_elsewhere(run: Run) -> None:
    head = load_head(run)
    assert head is not None
    task = Task(run, head, np.arange(4), (0, 3), 3, np.array([5, 6, 7, -1]), np.array([5, 6, -1, 9]), 3)
    here, there = look(task), look(pickle.loads(pickle.dumps(task)))
    for name, value in vars(here).items():
        np.testing.assert_array_equal(getattr(there, name), value)
    assert np.isnan(here.logprob[3]).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_c11_a_head_and_states_of_half_precision_are_computed_in_single(dtype: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    states = (300 * rng.normal(size=(12, 2, 8))).astype(np.float32)  # squares overflow float16
    run = write_run(tmp_path / "half.sot", {"resid": states}, dtype=dtype, attributes=model_attributes())
    weight = rng.normal(size=(50, 8)).astype(np.float16 if dtype == "float16" else ml_dtypes.bfloat16)
    write_head(run, weight, layers=2, norm="rms", norm_weight=np.ones(8, np.float32))
    found = analyze("lens", run, all_rows=True).tables["by_token"]
    kept = run.states("resid").astype(np.float64)
    normed = kept / np.sqrt((kept**2).mean(-1, keepdims=True) + 1e-6)
    logs = scipy.special.log_softmax(normed @ weight.astype(np.float64).T, -1)
    np.testing.assert_allclose(found["entropy"], -(np.exp(logs) * logs).sum(-1), atol=1e-5)
    kl = (np.exp(logs[:, -1:]) * (logs[:, -1:] - logs)).sum(-1)
    np.testing.assert_allclose(found["kl"], kl, atol=1e-5)


# -- where the model makes up its mind ---------------------------------------------------------------------------


def test_a_word_is_settled_where_it_comes_on_top_to_stay(tmp_path: Path) -> None:
    run = spelled(
        tmp_path,
        [
            [1, 1, 1, 1],  # from the beginning
            [2, 3, 3, 3],
            [4, 0, 4, 4],  # it was on top before, and lost it
            [5, 5, 5, 0],  # the last layer overturns it
        ],
    )
    report = analyze("lens", run)
    by_token, by_layer = report.tables["by_token"], report.tables["by_layer"]
    assert by_token["settles"].values.tolist() == [0, 1, 2, 3]
    assert by_layer.settles.tolist() == [0.25] * 4
    assert by_layer.settled.tolist() == [0.25, 0.5, 0.75, 1]
    assert by_layer.agrees.tolist() == [0.5, 0.5, 0.75, 1]
    assert "Half of the 4 words are settled by layer 1 of 3" in texts(report)
    assert "In 25 % of the rows the last layer overturns the word" in texts(report)
    assert "token 3 '#5' to '#0'" in texts(report)


def test_a_lens_that_does_not_end_where_the_model_did_is_an_alarm(tmp_path: Path) -> None:
    run = spelled(tmp_path, [[1, 2], [3, 4], [0, 0]])  # the run says that word 0 was the likeliest
    alarm = next(found for found in analyze("lens", run).findings if found.severity == "alarm")
    assert "in 2 of 3 rows the likeliest word of the last layer" in alarm.text
    assert alarm.numbers["equal"] == 1


def test_logits_that_the_model_changed_further_are_a_warning(run: Run) -> None:
    path = run.path / FILE
    tensors = load_file(path)
    tensors["weight"] *= 2  # as if a scale had been overlooked
    facts = {"format": FORMAT, "fingerprint": run.attributes["model"]["fingerprint"], "norm": "rms", "layers": "4"}
    save_file(tensors, path, {**facts, "eps": "1e-6", "softcap": "0", "scale": "1"})
    warning = next(found for found in analyze("lens", run).findings if found.severity == "warning")
    assert "log-probabilities differ" in warning.text


def test_a_layer_that_is_sure_of_something_else_is_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(30, 3, WORDS)).astype(np.float32)
    states[:, 1] = 0
    states[:, 1, 5] = SURE
    states[:, :, 5] -= np.array([9, 0, 9], np.float32)
    assert "Layer 1 is sure of other words" in texts(analyze("lens", given(tmp_path, states)))


# -- which rows and layers ---------------------------------------------------------------------------------------


def test_a_sample_is_spread_evenly_and_said(tmp_path: Path) -> None:
    run = spelled(tmp_path, [[i % WORDS, i % WORDS] for i in range(60)], prompt=50)
    report = analyze("lens", run, rows=7, window=4, begin=20)
    by_token = report.tables["by_token"]
    sample = by_token["token"].values[by_token["sampled"].values].tolist()
    assert sample == np.linspace(0, 59, 7).round().astype(int).tolist()
    assert set(range(20, 24)) <= set(by_token["token"].values.tolist())
    assert "7 of 60 rows are looked at, evenly spread" in report.left_out[-1]
    assert "of the 7 words" in texts(report)
    assert len(analyze("lens", run, full=True, window=4).tables["by_token"]["token"]) == 60
    shown = analyze("lens", run, rows=7, window=4).tables["by_token"]["token"].values
    assert set(range(49, 53)) <= set(shown.tolist())  # by default from where the model writes


@pytest.mark.parametrize("at", [0, 17])
def test_c02_a_sink_is_not_in_the_sample(at: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(32, 2, WORDS)).astype(np.float32)
    states[at, :, 3] = 3000
    run = given(tmp_path, states)
    report = analyze("lens", run, window=1, begin=5)
    assert at not in report.tables["by_token"]["token"].values
    assert f"token {at} " in report.left_out[0]
    assert at in analyze("lens", run, all_rows=True).tables["by_token"]["token"].values


def test_c23_rows_that_are_not_finite_are_left_out_and_named(tmp_path: Path) -> None:
    states = np.random.default_rng(0).normal(size=(40, 3, WORDS)).astype(np.float32)
    states[5, 1, 3], states[9, 0, 0] = np.nan, np.inf
    run = given(tmp_path, states)
    for all_rows in (False, True):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            report = analyze("lens", run, all_rows=all_rows)
        by_token = report.tables["by_token"]
        assert by_token["token"].values.tolist() == [i for i in range(40) if i not in (5, 9)]
        assert np.isfinite(by_token["kl"]).all()
        assert by_token["label"].values[5] == "␣6"
        assert "token 5 '␣5', 9 '␣9'" in " ".join(report.left_out)
    states[:] = np.nan
    report = analyze("lens", given(tmp_path / "all", states))
    assert report.findings[0].severity == "warning"


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("kind", ["normal", "equal", "zero"])
def test_few_or_equal_rows_give_a_report(rows: int, kind: str, tmp_path: Path) -> None:
    states = np.random.default_rng(0).normal(size=(rows, 3, WORDS)).astype(np.float32)
    if kind == "equal":
        states[:] = states[0]
    if kind == "zero":
        states[:] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = analyze("lens", given(tmp_path, states), all_rows=True)
        json.dumps(report.to_dict(), allow_nan=False)
        for name in report.figures:
            assert report.figure(name).layout.title.text
    if kind == "zero":
        np.testing.assert_allclose(report.tables["by_token"]["entropy"], np.log(WORDS), rtol=1e-6)


def test_a_view_of_some_layers_is_measured_against_the_models_last(run: Run) -> None:
    whole = analyze("lens", run, all_rows=True).tables["by_token"]
    some = analyze("lens", run, all_rows=True, layers=[2, 0]).tables["by_token"]
    assert some["layer"].values.tolist() == [0, 2]
    np.testing.assert_allclose(some["kl"], whole["kl"].values[:, [0, 2]], atol=1e-5)
    one = analyze("lens", run, layers=[1])
    assert one.findings
    assert one.tables["by_layer"].layer.tolist() == [1]


def test_where_the_last_layer_was_not_recorded_site_final_stands_for_it(
    go: Callable[..., Any], llama: Any, run: Run
) -> None:
    less = go(llama, max_new_tokens=26, config=EMBED, layers="0-1")
    found = analyze("lens", less, all_rows=True)
    whole = analyze("lens", run, all_rows=True).tables["by_token"]
    np.testing.assert_allclose(found.tables["by_token"]["kl"], whole["kl"].values[:, :2], atol=1e-4)
    assert (found.tables["check"].recorded == found.tables["check"].rebuilt).all()


def test_without_either_the_divergence_is_left_out(go: Callable[..., Any], llama: Any) -> None:
    less = go(llama, max_new_tokens=5, config=EMBED, layers="0-1", sites=["resid"])
    report = analyze("lens", less, all_rows=True)
    assert "neither layer 3 nor site final was recorded" in report.left_out[-1]
    assert np.isnan(report.tables["by_token"]["kl"]).all()
    assert np.isfinite(report.tables["by_token"]["entropy"]).all()
    assert report.findings[0].text.startswith("Median entropy")
    assert "kl" not in report.figures


# -- what is missing ---------------------------------------------------------------------------------------------


def test_without_a_head_the_command_that_gives_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOTSCOPE_CACHE", str(tmp_path / "cache"))
    states = np.ones((3, 2, WORDS), np.float32)
    for attributes in (model_attributes(name="some/model"), None):
        run = write_run(tmp_path / f"{attributes is None}.sot", {"resid": states}, attributes=attributes)
        report = analyze("lens", run)
        assert not report.findings
        assert "sotscope record hi -n 1 --model" in report.left_out[0]
        assert "--embed-head" in report.left_out[0]


def test_a_norm_that_could_not_be_rebuilt_and_a_head_of_another_width_are_said(tmp_path: Path) -> None:
    run = given(tmp_path, np.ones((3, 2, WORDS), np.float32))
    write_head(run, np.eye(WORDS, dtype=np.float32), layers=2, norm="unknown")
    assert "could not be rebuilt" in analyze("lens", run).left_out[0]
    write_head(run, np.eye(9, dtype=np.float32), layers=2)
    assert "takes states of 9 numbers, resid has 6" in analyze("lens", run).left_out[0]
    (run.path / FILE).write_bytes(b"half")
    assert "is not a head" in analyze("lens", run).left_out[0]


# -- figures -----------------------------------------------------------------------------------------------------


def test_the_table_of_words_shows_the_window(tmp_path: Path) -> None:
    names = {token: f"<{token}>" for token in range(WORDS)}
    run = spelled(tmp_path, [[i % WORDS, 0] for i in range(60)], ids=[i % WORDS for i in range(60)], words=names)
    report = analyze("lens", run, rows=3, begin=30, window=12)
    made = report.figure("words")
    assert made.data[0].z.shape == (2, 12)
    assert made.layout.xaxis.ticktext[0] == "30 &lt;0>"
    assert made.data[0].text[0][1] == "#1"
    assert "token 31 &lt;1>, then came &lt;2><br>layer 0" in made.data[0].customdata[0][1]
    assert "KL" in made.data[0].customdata[0][1]
    heat = report.figure("kl")
    assert heat.data[0].z.shape == (2, 60)
    assert np.isfinite(heat.data[0].z[0]).sum() == len(report.tables["by_token"]["token"])


def test_every_number_drawn_is_in_a_table(run: Run) -> None:
    report = analyze("lens", run)
    by_layer = report.tables["by_layer"]
    assert set(report.figures) == {"words", "kl", "kl_by_layer", "entropy_by_layer", "settles"}
    drawn = report.figure("kl_by_layer").data
    np.testing.assert_array_equal(drawn[0].y, by_layer.kl_median)
    np.testing.assert_array_equal(report.figure("settles").data[0].y, 100 * by_layer.settled)
    for name in report.figures:
        made = report.figure(name)
        assert "http" not in made.to_json()
        assert made.layout.title.text
