"""`sotscope train health`: from texts to a score, and what it says of itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli_helpers import call, mistake, model_folder

from sotscope.capture.plan import make_plan
from sotscope.errors import TrainingError
from sotscope.health.early import HORIZON
from sotscope.health.early_model import feature_names, load_early
from sotscope.health.loops import loop_start
from sotscope.health.rows import rows_of_run, watched_of
from sotscope.models.load import Loaded
from sotscope.recorder import record
from sotscope.testing.tiny import tiny
from sotscope.training.corpus import Sample, write_corpus
from sotscope.training.early_fit import auc, fit_score, predict, thresholds, warned
from sotscope.training.early_rows import Looks, choose, collect
from sotscope.training.rows import text_rows


class Quiet:
    def stage(self, name: str, total: int) -> None: ...

    def progress(self, done: int, note: str = "") -> None: ...

    def report(self, report: object) -> None: ...


def texts(count: int = 24, seed: int = 0) -> list[Sample]:
    """Every third loops from its 20th to 40th token on, in a cycle of 1 to 8."""
    draws = np.random.default_rng(seed)
    found = []
    for number in range(count):
        new = draws.integers(3, 97, 90).tolist()
        if number % 3 == 0:
            start = int(draws.integers(20, 40))
            new = new[:start] + (draws.integers(3, 97, 1 + number % 8).tolist() * 90)[: 90 - start]
        found.append(
            Sample(
                "chat",
                draws.integers(3, 97, 6).tolist(),
                new,
                "test" if number % 4 == 1 or number % 12 == 0 else "train",
            )
        )
    return found


def test_rows_of_a_text_are_those_of_its_recording(tmp_path: Path) -> None:
    model = tiny("llama")
    run = record(Loaded(model, None, "tiny", "in memory"), "5 17 3 9", max_new_tokens=40, do_sample=False,
                 eos_token_id=[], out=tmp_path / "a.sot")  # fmt: skip
    ids = [int(i) for i in run.tokens.all_ids]
    live = list(rows_of_run(run, run.rows(0), watched_of(run)))
    again = list(text_rows(make_plan(model, []), ids[:4], ids[4:]))
    assert len(live) == len(again) == len(ids) - 1
    for one, other in zip(live, again, strict=True):
        assert (one.pos, one.token, one.given) == (other.pos, other.token, other.given)
        assert one.given or one.next_id == other.next_id
        for name in ("norm", "cosine", "entropy", "logprob", "margin"):
            assert getattr(other, name) == pytest.approx(getattr(one, name), abs=1e-4, nan_ok=True)
        if one.states is not None:
            assert other.states == pytest.approx(one.states, abs=1e-4)


def test_looks_end_where_the_text_loops_and_where_nobody_knows_how_it_went_on(tmp_path: Path) -> None:
    samples = texts()
    looks = collect(Loaded(tiny("llama"), None, "tiny", "in memory"), samples, [1.0] * len(samples), tmp_path, Quiet())
    for number, sample in enumerate(samples):
        left, start = looks.left[looks.text == number], loop_start(sample.new_ids)
        if start is None:
            assert set(left) == {-1}
            assert len(left) == pytest.approx((90 - HORIZON - 15) / 4, abs=1)
        else:
            assert left.min() >= 1
            assert left.max() <= start - 16
    assert looks.features.shape == (len(looks.left), len(feature_names(3)))


def test_prompts_are_in_one_part_only_and_texts_stand_for_those_left_out() -> None:
    samples = texts(60)
    chosen, weights = choose(samples, texts=12, seed=0)
    test = {tuple(sample.prompt_ids) for sample, weight in zip(chosen, weights, strict=True) if weight == 0}
    train = [(sample, weight) for sample, weight in zip(chosen, weights, strict=True) if weight]
    assert len(train) == 12
    assert not test & {tuple(sample.prompt_ids) for sample, _ in train}
    assert sum(weight for _, weight in train) == pytest.approx(sum(sample.split == "train" for sample in samples))
    assert sum(loop_start(sample.new_ids) is not None for sample, _ in train) == 4
    unsplit = [Sample("chat", sample.prompt_ids, sample.new_ids) for sample in texts(90)]
    assert 0 < sum(weight == 0 for weight in choose([*unsplit, *unsplit], 500, 0)[1]) < 90
    with pytest.raises(TrainingError, match="must be some of both"):
        choose([sample for sample in samples if loop_start(sample.new_ids) is None], 12, 0)


def made_looks(seed: int, count: int = 60) -> Looks:
    """Ten looks a text; in texts that loop, feature 0 rises in the last eight of them. Feature 1 says nothing."""
    draws = np.random.default_rng(seed)
    text = np.repeat(np.arange(count), 10)
    left = np.where(text % 2 == 0, np.tile(np.arange(40, 0, -4), count), -1)
    features = draws.normal(size=(len(text), 2))
    features[:, 0] += 3.0 * ((left >= 0) & (left <= 32))
    return Looks(features, left, text, np.ones(count), np.zeros(count, bool))


def test_the_score_finds_the_feature_that_tells_and_its_probabilities_are_rates() -> None:
    train, test = made_looks(0), made_looks(1, 400)
    score, inside = fit_score(train, ["a", "b"], ["a", "b"])
    assert abs(score.weights[0]) > 8 * abs(score.weights[1])
    chance = predict(score, test, ["a", "b"])
    assert auc(test, chance) == pytest.approx(0.983, abs=0.01)  # two normals, three deviations apart
    assert chance.mean() == pytest.approx(test.soon.mean(), abs=0.02)
    high = chance > 0.8
    assert test.soon[high].mean() == pytest.approx(chance[high].mean(), abs=0.04)
    by_rows, by_texts = thresholds(train, inside)
    found = warned(test, chance, by_rows)
    assert found["of_healthy_rows"] == pytest.approx(0.05, abs=0.03)
    assert by_texts > by_rows
    assert warned(train, inside, by_texts)["of_healthy_texts"] == pytest.approx(0.05, abs=0.02)
    assert found["lead_median"] in (32, 36, 40)
    assert warned(test, chance, 1.0)["lead_median"] == warned(test, chance, 1.0)["warned"] == 0


def test_a_score_is_trained_and_says_what_it_is_worth(tmp_path: Path) -> None:
    data = tmp_path / "texts.jsonl.gz"
    write_corpus(data, texts(36))
    options = ("-m", model_folder(), "--data", data, "--work", tmp_path / "work")
    answer = call("train", "health", *options, "-o", tmp_path / "out", "--json")
    assert answer.code == 0, answer.err
    model = load_early(tmp_path / "out" / "early.json")
    assert answer.json["fingerprint"] == model.fingerprint
    assert set(model.figures["auc"]) == {"all", "tokens", "doubt", "states", "tokens+doubt", "tokens+states"}
    assert model.figures["unseen"]["texts"] == sum(sample.split == "test" for sample in texts(36))
    again = call("train", "health", *options, "-o", tmp_path / "again")
    assert "AUC" in again.out
    assert load_early(tmp_path / "again" / "early.json") == model


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    prompts = tmp_path / "p.txt"
    prompts.write_text("why?\n")
    assert "--prompts is for" in mistake("train", "sot", "-m", model_folder(), "--prompts", prompts)
    refused = call("train", "health", "-m", model_folder(), "--prompts", prompts, "-n", 40, "--work", tmp_path)
    assert refused.code == 2
    assert "give more prompts" in refused.err.strip().split("\n")[-1]
