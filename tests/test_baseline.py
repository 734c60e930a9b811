"""What is normal for a model: how a baseline is made of rows, kept, found and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_helpers import call, mistake, model_folder

from sotscope.errors import HealthError
from sotscope.health import baseline as module
from sotscope.health.baseline import QUANTILES, find_baseline, load_baseline
from sotscope.health.collect import Collector
from sotscope.testing.health import LAYERS, SUBJECT, healthy_rows, token_rows

SMOLLM2 = "e565e6d9abce7807"


def collected(texts: int = 3, **changes: Any) -> Collector:
    made = Collector(range(LAYERS))
    for seed in range(texts):
        made.add([replace(row, **changes) for row in healthy_rows(seed=seed)])
    return made


def test_medians_and_spreads_are_those_of_the_generated_rows() -> None:
    found = collected().baseline("m", "f")
    rows = [row for seed in range(3) for row in healthy_rows(seed=seed) if not row.given]
    logs = np.log(np.stack([row.norm for row in rows]))
    middle = np.median(logs, 0)
    assert found.log_norm == pytest.approx(middle, abs=1e-4)
    assert found.log_norm_spread == pytest.approx(1.4826 * np.median(np.abs(logs - middle), 0), abs=1e-4)
    assert found.cosine == pytest.approx(np.median([row.cosine for row in rows], 0), abs=1e-4)
    assert found.entropy == pytest.approx(np.quantile([row.entropy for row in rows], QUANTILES), abs=1e-4)
    assert (found.rows, found.prompts, found.layers) == (len(rows), 3, list(range(LAYERS)))


def test_the_spread_of_a_head_reaches_to_its_outermost_hundredths() -> None:
    """A head that is loud in one row of twelve is quiet by its median absolute deviation, and yet not odd then."""
    made = Collector(range(LAYERS))
    for seed in range(3):
        rows = healthy_rows(seed=seed)
        for row in rows[::12]:
            assert row.head_norm is not None
            row.head_norm[3, 1] *= 50
        made.add(rows)
    found = made.baseline("m", "f")
    assert found.head_log_norm_spread[3][1] > 1.4
    assert found.head_log_norm_spread[3][0] < 0.6


def test_sinks_and_rows_that_are_not_finite_move_nothing() -> None:
    plain = collected().baseline("m", "f")
    made = Collector(range(LAYERS))
    for seed in range(3):
        rows = healthy_rows(seed=seed)
        rows[50] = replace(rows[50], norm=rows[50].norm * 1e4)
        bad = np.ones(LAYERS, np.int32)
        rows[60] = replace(rows[60], norm=np.full(LAYERS, np.nan, np.float32), nonfinite=bad)
        made.add(rows)
    found = made.baseline("m", "f")
    assert found.rows == plain.rows - 3
    assert found.log_norm == pytest.approx(plain.log_norm, abs=0.02)
    assert found.log_norm_spread == pytest.approx(plain.log_norm_spread, abs=0.02)


def test_texts_that_loop_or_are_empty_are_left_out_and_counted() -> None:
    made = collected(2)
    assert not made.add(token_rows([1, 2, *[5] * 60, 9]))
    assert not made.add(healthy_rows(8, prompt=9))
    assert (made.prompts, made.left_out) == (2, 2)
    assert made.baseline("m", "f").rows == 2 * 193


def test_too_few_rows_and_rows_without_logits_are_refused_in_one_line() -> None:
    with pytest.raises(HealthError, match=r"^193 healthy rows of 1 texts are too few [^\n]*give more prompts"):
        collected(1).baseline("m", "f")
    with pytest.raises(HealthError, match="no entropy"):
        collected(entropy=np.nan).baseline("m", "f")


def test_without_head_norms_there_are_no_heads() -> None:
    found = collected(head_norm=None).baseline("m", "f")
    assert found.head_log_norm == found.head_log_norm_spread == []


def test_a_layer_that_is_always_skipped_is_unknown(tmp_path: Path) -> None:
    present = np.arange(LAYERS) != 2
    made = Collector(range(LAYERS))
    for seed in range(2):
        made.add([replace(row, present=present) for row in healthy_rows(seed=seed)])
    made.baseline("m", "f").save(tmp_path / "b.json")
    known = load_baseline(tmp_path / "b.json")
    assert known.layers == [0, 1, 3, 4, 5]
    assert np.isnan(known.of("log_norm", SUBJECT.layers)).tolist() == [False, False, True, False, False, False]


def test_it_is_kept_found_by_its_model_and_preferred_to_the_one_that_ships(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "user_data_path", lambda name: tmp_path / name)
    shipped = find_baseline(SMOLLM2)
    assert shipped is not None
    assert shipped.model == "smollm2"
    made = collected().baseline("mine", SMOLLM2)
    made.save(tmp_path / "sotscope" / "health" / SMOLLM2 / "baseline.json")
    assert find_baseline(SMOLLM2) == made
    assert find_baseline("0123456789abcdef") is None


def test_the_shipped_baseline_knows_the_embedded_model_in_every_type() -> None:
    known = find_baseline(SMOLLM2)
    assert known is not None
    assert known.layers == list(range(30))
    assert np.shape(known.head_log_norm) == np.shape(known.head_log_norm_spread) == (30, 9)
    assert known.rows > 4000
    assert known.entropy == sorted(known.entropy)
    card = Path(module.__file__).parents[1] / "decode" / "weights" / "smollm2" / "sot" / "card.json"
    assert known.also == json.loads(card.read_text())["base"]["also"]


@pytest.mark.parametrize("text", ["", "{}", '{"model": 3}', "[1]"])
def test_a_file_that_is_no_baseline_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(HealthError, match=r"^[^\n]*is not a baseline \([^\n]*make one with sotscope baseline"):
        load_baseline(tmp_path / "b.json")
    with pytest.raises(HealthError, match="cannot read"):
        load_baseline(tmp_path / "none.json")


def test_the_command_makes_one_for_any_model(tmp_path: Path) -> None:
    """An untrained model soon loops, so it is given many prompts and writes few tokens."""
    prompts = tmp_path / "p.txt"
    prompts.write_text("\n".join(f"question {number}?" for number in range(14)))
    answer = call("baseline", "-m", model_folder(), "--prompts", prompts, "-n", 20, "-o", tmp_path / "b.json", "--json")
    assert answer.code == 0, answer.err
    assert (answer.json["heads"], answer.json["left_out"]) == (True, 0)
    known = load_baseline(tmp_path / "b.json")
    assert (known.rows, known.prompts) == (280, 14)
    assert np.shape(known.head_log_norm)[0] == len(known.layers)


def test_the_command_refuses_what_it_cannot_use(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("only one\n")
    assert "too few" in mistake("baseline", "-m", model_folder(), "--prompts", tmp_path / "p.txt", "-n", 8,
                                "-o", tmp_path / "b.json")  # fmt: skip
    assert not (tmp_path / "b.json").exists()
    assert "cannot read" in mistake("baseline", "--prompts", tmp_path / "none.txt")
