"""`drafts`: rates are vLLM's, groups are of the token that was true, confidence is held against what was right."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss
from steps_helpers import Turn, write_turns

from sotscope.analysis.report import Report
from sotscope.analysis.run import analyze
from sotscope.analysis.steps import word_class
from sotscope.config import DecodeConfig, RunConfig
from sotscope.events import Draft
from sotscope.store.reader import Run
from sotscope.store.tokens import Pieces
from sotscope.testing.drafters import greedy, mix

UNCLOCKED = RunConfig(decode=DecodeConfig(controller="none", guard=False))
TEXT = {1: " the", 2: "ing", 3: " 42", 4: ",", 5: "\n", 6: "<end>", 7: "The", 8: " cat"}


def draft(slot: int, target: int, token: int, reason: str, probability: float = 0.5, **more: float) -> Draft:
    return Draft(slot, target, token, probability, 1.0, reason, **more)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Two prompt tokens, then four steps: two of three drafts taken, none of two, nothing drafted, all of one."""
    return write_turns(
        tmp_path / "given.sot",
        [
            Turn([8, 1], [1, 8], mode="prompt", segment="user"),
            Turn(
                [8, 1, 2], [1, 2, 3], mode="sot", entropy=[0.1, 0.7, 2.5],
                drafts=[
                    draft(0, 3, 1, "accepted", 0.9, cosine=0.8, relative_error=0.5),
                    draft(1, 4, 2, "accepted", 0.7, cosine=0.6, relative_error=0.7),
                    draft(2, 5, 4, "later_slot_miss", 0.8, cosine=0.2, relative_error=1.1),
                ],
            ),
            Turn(
                [3], [4], mode="sot", entropy=[4.0],
                drafts=[draft(0, 6, 5, "outside_vocabulary", 0.3), draft(1, 7, 5, "after_miss", 0.2)],
            ),
            Turn([4], [5], mode="ar"),
            Turn([5, 7], [7, 6], mode="lookup", drafts=[draft(0, 8, 7, "accepted", 1.0)]),
        ],
        words=TEXT, special=6,
    )  # fmt: skip


def table(report: Report, name: str) -> Any:
    return report.tables[name]


def texts(report: Report) -> str:
    return " ".join(found.text for found in report.findings)


# -- rates -------------------------------------------------------------------------------------------------------


def test_rates_are_vllms(run: Run) -> None:
    report = analyze("drafts", run)
    modes = table(report, "by_mode").set_index("mode")
    assert modes.index.tolist() == ["sot", "lookup", "all"]
    assert modes.drafted.tolist() == [5, 1, 6]
    assert modes.accepted.tolist() == [2, 1, 3]
    assert modes.acceptance_rate.tolist() == [0.4, 1.0, 0.5]
    assert modes.mean_acceptance_length.tolist() == [1 + 2 / 2, 1 + 1 / 1, 1 + 3 / 3]
    assert modes.steps_with_drafts.tolist() == [2, 1, 3]
    assert modes.steps.tolist() == [2, 1, 4]
    slots = table(report, "by_slot")
    assert slots.per_position_acceptance_rate.tolist() == [2 / 3, 1 / 3, 0]
    assert slots.judged.tolist() == [3, 1, 1]
    assert slots.acceptance_of_judged.tolist() == [2 / 3, 1, 0]
    np.testing.assert_allclose(slots.cosine_median, [0.8, 0.6, 0.2], rtol=1e-6)
    assert slots.states.tolist() == [1, 1, 1]
    assert "3 of 6 drafted tokens were accepted, an acceptance rate of 50 % (sot 40 %, lookup 100 %)" in texts(report)
    assert "gives 2.00 tokens (mean acceptance length, 3 of 4 steps)" in texts(report)


def test_every_draft_is_explained(run: Run) -> None:
    report = analyze("drafts", run)
    reasons = table(report, "by_reason").set_index("reason").drafts
    assert reasons.to_dict() == {"accepted": 3, "later_slot_miss": 1, "outside_vocabulary": 1, "after_miss": 1}
    lines = table(report, "drafts")
    assert lines["text"].tolist() == ["␣the", "ing", ",", "⏎", "⏎", "The"]
    assert lines.true_text.tolist() == ["␣the", "ing", "␣42", ",", "", "The"]
    assert lines["class"].tolist() == ["word start", "continuation", "number", "punctuation", "unknown", "word start"]
    np.testing.assert_allclose(lines.true_entropy, [0.1, 0.7, 2.5, 4.0, np.nan, 1.0], rtol=1e-6)
    assert lines["mode"].tolist() == ["sot"] * 5 + ["lookup"]
    assert lines.segment.tolist() == ["generated"] * 4 + ["unknown", "generated"]
    assert "1 of 2 refusals (50 %) fall on the first slot, and with the refused ones 1 later drafts were lost" in texts(
        report
    )
    assert "1 times the true token is outside the drafter's vocabulary" in texts(report)


def test_groups_are_of_what_was_true_and_count_what_was_looked_at(run: Run) -> None:
    report = analyze("drafts", run)
    kinds = table(report, "by_class").set_index("class")
    assert kinds.judged.to_dict() == {"word start": 2, "continuation": 1, "number": 1, "punctuation": 1}
    assert kinds.acceptance.tolist() == [1, 1, 0, 0]
    assert kinds.share_of_refusals.tolist() == [0, 0, 0.5, 0.5]
    entropy = table(report, "by_entropy")
    assert entropy.entropy.tolist() == ["0–0.5", "0.5–1", "1–2", "2–3", "3 or more"]
    assert entropy.accepted.tolist() == [1, 1, 1, 0, 0]
    assert table(report, "by_position").position.tolist() == ["3", "4", "5", "6", "8"]


def test_positions_are_in_at_most_ten_groups_in_order(tmp_path: Path) -> None:
    turns = [Turn([1], [1], mode="prompt")]
    turns += [Turn([1], [2], mode="sot", drafts=[draft(0, 2 + i, 1, "first_slot_miss")]) for i in range(37)]
    found = table(analyze("drafts", write_turns(tmp_path / "long.sot", turns)), "by_position")
    assert found.position.tolist()[:3] == ["2–5", "6–9", "10–13"]
    assert len(found) == 10
    assert found.judged.sum() == 37


@pytest.mark.parametrize(
    ("token", "before", "kind"),
    [
        (1, 8, "word start"), (2, 8, "continuation"), (3, 8, "number"), (4, 8, "punctuation"), (5, 8, "whitespace"),
        (6, 8, "special"), (7, 5, "word start"), (7, 6, "word start"), (7, 8, "continuation"), (9, 8, "continuation"),
        (10, 8, "number"), (99, 8, "whitespace"),
    ],
)  # fmt: skip
def test_a_token_is_of_one_kind(token: int, before: int, kind: str) -> None:
    data = {key: text.encode() for key, text in TEXT.items()} | {9: b"\xe2\x82", 10: b"3.14"}
    assert word_class(Pieces(raw=TEXT, data=data, special={6}), token, before) == kind


# -- confidence --------------------------------------------------------------------------------------------------


def test_calibration_is_that_of_scikit_learn(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    probability = rng.uniform(size=300).astype(np.float32)
    right = rng.uniform(size=300) < probability**2  # too sure of itself
    turns = [Turn([1], [1], mode="prompt")]
    for i, (p, taken) in enumerate(zip(probability, right, strict=True)):
        reason = "accepted" if taken else "first_slot_miss"
        fed = [1, 2] if taken else [1]
        turns.append(Turn(fed, fed, mode="sot", drafts=[draft(0, i + 2, 2, reason, float(p))]))
    report = analyze("drafts", write_turns(tmp_path / "sure.sot", turns))
    found = table(report, "calibration")
    true, predicted = calibration_curve(right, probability, n_bins=10)
    np.testing.assert_allclose(found.right, true)
    np.testing.assert_allclose(found.confidence, predicted, rtol=1e-6)
    whole = table(report, "confidence").iloc[0]
    assert whole.brier == pytest.approx(brier_score_loss(right, probability), rel=1e-6)
    counts = np.histogram(probability, 10, (0, 1))[0]
    error = (counts * np.abs(true - predicted)).sum() / 300
    assert whole.expected_calibration_error == pytest.approx(error, rel=1e-6)
    assert "The drafter of sot is too sure of itself" in texts(report)


def test_a_group_that_loses_more_than_chance_is_named(tmp_path: Path) -> None:
    turns = [Turn([1], [1], mode="prompt")]
    for i in range(40):  # words are always right, numbers never
        turns.append(Turn([1, 1], [1, 8], mode="sot", drafts=[draft(0, 4 * i + 2, 1, "accepted")]))
        if i % 2:
            turns.append(Turn([8], [3], mode="sot", drafts=[draft(0, 4 * i + 4, 1, "first_slot_miss")]))
    report = analyze("drafts", write_turns(tmp_path / "numbers.sot", turns, words=TEXT))
    found = next(one for one in report.findings if "a number" in one.text)
    assert "0 % of 20 drafts against 67 % on average; 100 % of all refusals are there" in found.text
    assert found.numbers["p_value"] == pytest.approx(scipy.stats.binomtest(0, 20, 40 / 60).pvalue)
    assert "segment" not in found.text


# -- which drafts ------------------------------------------------------------------------------------------------


def test_c01_a_real_run_counts_what_its_drafter_did(go: Callable[..., Any], llama: Any) -> None:
    prompt = [5, 17, 3, 88, 41]
    run = go(llama, config=UNCLOCKED, max_new_tokens=24, drafter=mix(greedy(llama, prompt, 30), 4, 97))
    report = analyze("drafts", run)
    steps, drafts = run.steps, run.drafts
    whole = table(report, "by_mode").iloc[-1]
    assert whole.accepted == steps.accepted.sum() == drafts.accepted.sum()
    assert whole.acceptance_rate == pytest.approx(drafts.accepted.mean())
    drafted = steps[steps.step.isin(drafts.step)]
    assert whole.mean_acceptance_length == pytest.approx(1 + drafted.accepted.mean())
    lines = table(report, "drafts")
    written = pd.Series(run.tokens.next_ids, index=run.tokens.pos + 1)  # by the position the token has
    judged = lines[lines.judged]
    assert (judged.true_text == [f"#{token}" for token in written[judged.target]]).all()
    assert (judged.token[judged.accepted] == written[judged.target[judged.accepted]].to_numpy()).all()
    assert (judged.token[~judged.accepted] != written[judged.target[~judged.accepted]].to_numpy()).all()
    entropy = pd.Series(run.scalars("entropy"), index=run.tokens.pos + 1)
    np.testing.assert_array_equal(judged.true_entropy, entropy[judged.target])


def test_a_view_has_the_drafts_of_its_steps(run: Run) -> None:
    report = analyze("drafts", run, tokens=(5, 7))  # the second and third step
    assert table(report, "drafts").step.tolist() == [2, 2]
    assert not analyze("drafts", run, part="prompt").tables
    whole = analyze("drafts", run, part="generated")
    assert len(table(whole, "drafts")) == 6


def test_a_run_without_drafts_says_so(tmp_path: Path) -> None:
    run = write_turns(tmp_path / "ar.sot", [Turn([1, 2], [2, 3], mode="prompt"), Turn([3], [4])])
    report = analyze("drafts", run)
    assert texts(report) == "No tokens were drafted here (mode ar)."
    assert not report.tables
    assert texts(analyze("drafts", run, part="all", tokens=(0, 2))) == "No tokens were drafted here (prompt)."


def test_tokens_that_a_lossy_policy_believed_are_a_warning(tmp_path: Path) -> None:
    turns = [Turn([1], [1], mode="prompt"), Turn([1, 2], [2, 3], mode="sot", drafts=[draft(0, 2, 2, "believed")])]
    report = analyze("drafts", write_turns(tmp_path / "lossy.sot", turns))
    warning = next(found for found in report.findings if found.severity == "warning")
    assert "1 drafts were believed" in warning.text
    assert table(report, "calibration").right.tolist() == [0]


def test_drafts_whose_drafter_gives_no_probability(tmp_path: Path) -> None:
    nan = float("nan")
    turns = [Turn([1], [1], mode="prompt"), Turn([1], [3], mode="other", drafts=[draft(0, 2, 2, "near_tie", nan)])]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = analyze("drafts", write_turns(tmp_path / "none.sot", turns))
        assert not len(table(report, "calibration"))
        assert "reliability" not in report.figures
        assert "states" not in report.figures
        for name in report.figures:
            report.figure(name)


def test_figures_draw_the_tables(run: Run) -> None:
    report = analyze("drafts", run)
    assert set(report.figures) == {
        "slots", "reasons", "class", "segment", "position", "entropy", "reliability", "states",
    }  # fmt: skip
    np.testing.assert_array_equal(report.figure("class").data[0].x, table(report, "by_class").acceptance)
    assert report.figure("class").data[0].customdata[0] == "word start: 2 of 2 drafts"
    assert [line.name for line in report.figure("reliability").data] == ["as it should be", "lookup", "sot"]
