"""`latency`: percentiles are numpy's, tokens are those that were chosen, drifts are found and noise is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from steps_helpers import Turn, write_turns

from sotscope.analysis.report import Report
from sotscope.analysis.run import analyze
from sotscope.events import Draft
from sotscope.store.reader import Run

MS = 1_000_000
LEVELS = ["p50", "p95", "p99"]


def timed(tmp_path: Path, forward: np.ndarray, **more: Any) -> Run:
    """One token a step, whose forward takes so many milliseconds."""
    turns = [Turn([1, 2, 3], [2, 3, 4], mode="prompt", segment="user", ns=(0, 50 * MS, 0, 0))]
    turns += [Turn([4], [4], ns=(0, int(ms * MS), 0, MS), **more) for ms in forward]
    return write_turns(tmp_path / "timed.sot", turns)


def table(report: Report, name: str) -> Any:
    return report.tables[name]


def texts(report: Report) -> str:
    return " ".join(found.text for found in report.findings)


def test_percentiles_and_shares_are_numpys(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parts = (rng.uniform(1, 20, size=(50, 4)) * MS).astype(int)
    accepted = rng.integers(0, 3, 50)
    turns = [Turn([1], [1], mode="prompt")]
    for ns, n in zip(parts.tolist(), accepted.tolist(), strict=True):
        drafts = [Draft(slot, 0, 1, 0.5, 1.0, "accepted") for slot in range(n)]
        turns.append(Turn([1] * (n + 1), [1] * (n + 1), mode="sot" if n else "ar", drafts=drafts, ns=tuple(ns)))
    report = analyze("latency", write_turns(tmp_path / "parts.sot", turns))
    found = table(report, "parts").set_index("part")
    total = parts.sum(1) / MS
    for at, name in enumerate(("draft", "forward", "accept", "capture")):
        np.testing.assert_allclose(found.loc[name, LEVELS].tolist(), np.percentile(parts[:, at] / MS, [50, 95, 99]))
        assert found.share[name] == pytest.approx(parts[:, at].sum() / parts.sum())
    np.testing.assert_allclose(found.loc["total", LEVELS].tolist(), np.percentile(total, [50, 95, 99]))
    tokens = np.repeat(total / (accepted + 1), accepted + 1)
    np.testing.assert_allclose(found.loc["token", LEVELS].tolist(), np.percentile(tokens, [50, 95, 99]))
    modes = table(report, "by_mode").set_index("mode")
    for mode, those in (("ar", accepted == 0), ("sot", accepted > 0)):
        assert modes.tokens[mode] == (accepted + 1)[those].sum()
        assert modes.tokens_per_second[mode] == pytest.approx((accepted + 1)[those].sum() / total[those].sum() * 1000)
        assert modes.step_p95_ms[mode] == pytest.approx(np.percentile(total[those], 95))
    slowest = table(report, "slowest")
    assert slowest.step.tolist() == (1 + np.argsort(-total)[:10]).tolist()
    assert slowest.times_median[0] == pytest.approx(total.max() / np.median(total))


def test_speed_and_memory_over_time(tmp_path: Path) -> None:
    turns = [Turn([1], [1], mode="prompt")]
    for i in range(100):
        turns.append(Turn([1], [1], ns=(0, (10 if i < 50 else 20) * MS, 0, 0), rss=(1000 + 5 * i) * 10**6))
    report = analyze("latency", write_turns(tmp_path / "time.sot", turns), window=10)
    time = table(report, "over_time")
    np.testing.assert_allclose(time.tokens_per_second, [100] * 5 + [50] * 5)
    np.testing.assert_allclose(time.seconds, [0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.1, 1.3, 1.5])
    assert time.rss_mb.tolist() == [1045 + 50 * i for i in range(10)]
    assert "Memory of the process grows from 1045 to 1495 MB in 100 steps." in texts(report)
    assert (time.first_step[0], time.last_step[9]) == (1, 100)


def test_a_forward_that_grows_with_the_text_is_named(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).normal(scale=2, size=300)
    report = analyze("latency", timed(tmp_path, 30 + 0.1 * np.arange(300) + noise))
    found = next(one for one in report.findings if "grows with the text" in one.text)
    assert found.numbers["slope_ms_per_1000_tokens"] == pytest.approx(100, rel=0.05)
    assert found.numbers["begin_ms"] == pytest.approx(30, rel=0.05)
    assert found.numbers["end_ms"] == pytest.approx(60, rel=0.05)


@pytest.mark.parametrize("kind", ["even", "noise", "falling"])
def test_what_does_not_grow_is_not_said_to(kind: str, tmp_path: Path) -> None:
    forward = np.full(300, 30.0)
    if kind != "even":
        forward += np.random.default_rng(1).normal(scale=2, size=300)
    if kind == "falling":
        forward -= 0.05 * np.arange(300)
    said = texts(analyze("latency", timed(tmp_path, forward)))
    assert "grows with the text" not in said
    assert ("a longer text makes no step faster" in said) == (kind == "falling")


def test_a_step_far_slower_than_the_others_is_named(tmp_path: Path) -> None:
    forward = np.full(60, 20.0)
    forward[41] = 500
    said = texts(analyze("latency", timed(tmp_path, forward)))
    assert "The slowest step, 42 at position 44, took 501 ms, 23.9 times the median; most of it is forward." in said
    assert "slowest step" not in texts(analyze("latency", timed(tmp_path / "even", np.full(60, 20.0))))


def test_a_drafter_that_costs_more_than_the_model_is_a_warning(tmp_path: Path) -> None:
    turns = [Turn([1], [1], mode="prompt"), *[Turn([1], [1], mode="sot", ns=(30 * MS, 10 * MS, 0, 0))] * 30]
    report = analyze("latency", write_turns(tmp_path / "slow.sot", turns))
    warning = next(found for found in report.findings if found.severity == "warning")
    assert "75 % of the time of steps is draft, 25 % forward" in warning.text


def test_the_prefill_is_no_step(tmp_path: Path) -> None:
    run = timed(tmp_path, np.full(5, 20.0))
    report = analyze("latency", run)
    assert table(report, "prefill").rows.tolist() == [3]
    assert len(table(report, "steps")) == 5
    assert "the prefill of 3 tokens took 50 ms" in texts(report)
    assert table(report, "steps").tokens.tolist() == [1] * 5
    only = analyze("latency", run, part="prompt", tokens=(0, 2))
    assert texts(only).startswith("No decode steps here; the prefill of 3 tokens took 50 ms")
    assert not only.figures
    some = analyze("latency", run, tokens=(5, 7))
    assert table(some, "steps").step.tolist() == [3, 4]


def test_steps_without_times_say_so(tmp_path: Path) -> None:
    run = write_turns(tmp_path / "none.sot", [Turn([1], [1], ns=(0, 0, 0, 0))] * 3)
    report = analyze("latency", run)
    assert texts(report) == "The 3 steps have no times."
    for name in report.figures:
        assert report.figure(name).layout.title.text


def test_a_real_run_is_timed(go: Callable[..., Any], llama: Any) -> None:
    run = go(llama, max_new_tokens=8)
    report = analyze("latency", run)
    steps = run.steps[run.steps["mode"] != "prompt"]
    found = table(report, "steps")
    np.testing.assert_allclose(found.forward_ms, steps.forward_ns / MS)
    assert found.tokens.sum() == 8
    assert table(report, "by_mode").tokens.sum() == 8


def test_many_steps_are_drawn_by_the_slowest_of_their_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sotscope.analysis.figures.COLUMNS", 20)
    forward = np.full(60, 20.0)
    forward[41] = 500
    report = analyze("latency", timed(tmp_path, forward))
    made = report.figure("steps")
    assert len(made.data[0].x) == 20
    assert max(made.data[1].y) == 500
    assert made.layout.title.text == "Time of each step (slowest of every 3)"
    assert set(report.figures) == {"steps", "parts", "tokens_per_second", "memory"}
