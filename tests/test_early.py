"""The early-warning score: its features against their definitions, its file, and the monitor that asks it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sotscope.errors import HealthError
from sotscope.health.contracts import Row
from sotscope.health.early import EVERY, LEAST, Features, Scorer
from sotscope.health.early_model import EarlyModel, feature_names, find_early, load_early
from sotscope.health.monitors.loop_risk import LoopRisk
from sotscope.testing.health import LAYERS, SUBJECT, alarms_of, any_early, healthy_rows, make_rows, token_rows

KNOWN = replace(SUBJECT, early=any_early())
NAMES = feature_names(len(SUBJECT.watched))


def looks(rows: list[Row]) -> dict[int, dict[str, float]]:
    """Features by name, of each position that is looked at."""
    features = Features()
    found = ((row.pos, features.observe(row)) for row in rows)
    return {pos: dict(zip(NAMES, seen, strict=True)) for pos, seen in found if seen is not None}


def test_one_row_in_four_is_looked_at_by_its_position_once_16_tokens_are_generated() -> None:
    rows = healthy_rows(60, prompt=8)
    assert list(looks(rows)) == [pos for pos in range(60) if pos % EVERY == EVERY - 1 and pos - 7 >= LEAST - 1]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=60, max_size=220), st.integers(1, 20))
def test_token_features_are_what_their_names_say(tokens: list[int], prompt: int) -> None:
    found = looks(token_rows(tokens, prompt))
    for pos in list(found)[-2:]:
        written = tokens[prompt : pos + 2]
        seen = found[pos]
        for size in (2, 4, 8):
            grams = [tuple(written[i - size : i]) if i >= size else None for i in range(1, len(written) + 1)]
            said = [gram is not None and gram in grams[:i] for i, gram in enumerate(grams)]
            assert seen[f"said{size}_32"] == pytest.approx(np.mean(said[-32:]))
            if size < 8:
                assert seen[f"said{size}_128"] == pytest.approx(np.mean(said[-128:]))
                streak = next((i for i, one in enumerate(reversed(said)) if not one), len(said))
                assert seen[f"streak{size}"] == pytest.approx(np.log1p(streak))
        assert seen["distinct_32"] == len(set(written[-32:])) / min(32, len(written))
        assert seen["distinct_64"] == len(set(written[-64:])) / min(64, len(written))
        for window in (16, 32):
            shares = [agreement(written, window, period) for period in range(1, 129)]
            assert seen[f"period_{window}"] == pytest.approx(max(shares))


def agreement(ids: list[int], window: int, period: int) -> float:
    newest = range(max(0, len(ids) - window), len(ids))
    return sum(i >= period and ids[i] == ids[i - period] for i in newest) / window


def states_rows(states: NDArray[np.float32]) -> list[Row]:
    """All generated; the same states in all layers."""
    tokens = np.random.default_rng(3).integers(0, 50, len(states) + 1).tolist()
    return make_rows(tokens, np.repeat(states[:, None], LAYERS, 1), prompt=1)


def test_states_that_come_back_are_seen_at_their_distance_and_other_states_are_not() -> None:
    draws = np.random.default_rng(0)
    ever_new = draws.normal(size=(160, 64)).astype(np.float32)
    periodic = np.concatenate([ever_new[:80], np.tile(ever_new[80:90], (8, 1))])
    common = np.float32(5.0)  # a direction that all states share is not counted
    new, back = (looks(states_rows(states + common))[159] for states in (ever_new, periodic))
    for place in range(len(SUBJECT.watched)):
        for name in ("back", "back_mean", "back_steady"):
            assert back[f"{name}{place}"] > 0.9
            assert new[f"{name}{place}"] < 0.5
        assert np.exp(back[f"rank{place}"]) < 10 < np.exp(new[f"rank{place}"])


def test_the_rank_is_the_number_of_directions_in_which_states_differ() -> None:
    corners = np.eye(64, dtype=np.float32)[:4]
    seen = looks(states_rows(np.tile(corners, (20, 1))))[79]
    assert np.exp(seen["rank0"]) == pytest.approx(
        3.0, abs=0.1
    )  # four corners lie in three directions around their mean


def test_what_is_not_finite_leaves_the_features_finite() -> None:
    rows = healthy_rows(120)
    for i in range(40, 80):
        states = rows[i].states
        assert states is not None
        rows[i] = replace(rows[i], states=np.full_like(states, np.inf if i % 2 else np.nan), entropy=np.nan)
    assert all(np.isfinite(list(seen.values())).all() for seen in looks(rows).values())


def test_the_monitor_warns_where_the_probability_is_above_the_threshold_and_not_before() -> None:
    tokens = [*range(100, 180), *([5, 6, 7] * 20)]
    (alarm,) = alarms_of("loop_risk", token_rows(tokens), KNOWN)
    assert alarm.severity == "warning"
    assert 80 + 2 * 32 // 3 < alarm.pos < 80 + 32 + EVERY
    assert alarm.data["probability"] > alarm.data["threshold"] == 0.5
    earlier = alarms_of("loop_risk", token_rows(tokens), KNOWN, threshold=0.001)
    assert [one.pos < alarm.pos for one in earlier] == [True]
    assert not alarms_of("loop_risk", token_rows(tokens), KNOWN, threshold=0.9999999)


def test_without_a_score_or_with_other_layers_it_says_why_it_cannot_watch() -> None:
    assert "sotscope train health" in LoopRisk.lacks(SUBJECT)
    assert "layers 0, 1" in LoopRisk.lacks(replace(KNOWN, watched=(0, 1)))
    assert not LoopRisk.lacks(KNOWN)


def test_a_score_survives_its_file_and_is_found_by_any_of_its_fingerprints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = any_early().model_copy(update={"fingerprint": "a" * 16, "also": ["b" * 16]})
    monkeypatch.setattr("sotscope.health.early_model.health_folders", lambda mark: [tmp_path / "none", tmp_path])
    model.save(tmp_path / "early.json")
    assert load_early(tmp_path / "early.json") == model
    assert find_early("a" * 16) == find_early("b" * 16) == model
    assert find_early("c" * 16) is None


def test_the_shipped_score_is_that_of_the_shipped_model_and_says_what_it_is_worth() -> None:
    model = find_early("e565e6d9abce7807")  # smollm2 in float32
    assert model is not None
    assert model.figures["auc"]["all"]["unseen"] > 0.85
    assert {"all", "tokens", "states"} <= set(model.scores)
    assert 0 < model.threshold_rows < model.threshold_texts < 1
    assert 0 <= Scorer(model).probability(np.zeros(len(feature_names(len(model.layers))))) <= 1


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: data["scores"].pop("all"), "no score called all"),
        (lambda data: data["scores"]["all"]["features"].__setitem__(0, "moon"), "does not know"),
        (lambda data: data["scores"]["all"]["weights"].append(1.0), "other weights"),
        (lambda data: data.pop("fingerprint"), "fingerprint"),
    ],
)
def test_a_file_that_is_no_score_is_refused_in_one_line(damage: object, says: str, tmp_path: Path) -> None:
    data = any_early().model_dump()
    damage(data)  # type: ignore[operator]
    path = tmp_path / "early.json"
    path.write_text(json.dumps(data))
    with pytest.raises(HealthError, match=says) as caught:
        load_early(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(HealthError, match="cannot read"):
        load_early(tmp_path / "missing.json")


def test_a_layer_count_of_one_works_too() -> None:
    assert len(feature_names(1)) == len(set(feature_names(1))) == len(NAMES) - 8
    assert isinstance(any_early(), EarlyModel)
