"""Monitors of states and of doubt: what each must notice, and what must not alarm it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sotscope.catalog import MONITORS
from sotscope.errors import HealthError
from sotscope.events import AlarmEnd
from sotscope.health.contracts import Row, Subject
from sotscope.health.watch import HealthWatch, make_monitors
from sotscope.testing.health import (
    LAYERS,
    OPTIONAL,
    SUBJECT,
    WRONG,
    alarms_of,
    check_monitor,
    healthy_baseline,
    healthy_rows,
    make_rows,
    token_rows,
    watch_rows,
)

KNOWN = replace(SUBJECT, baseline=healthy_baseline())
BUILT_IN = ["non_finite", "norms", "collapse", "repetition", "entropy", "perplexity", "heads", "lag"]
ALL_BUT_REPETITION = [name for name in BUILT_IN if name != "repetition"]


def noise(rows: int = 32, dim: int = 64, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)


def everywhere(states: NDArray[np.float32]) -> list[Row]:
    """Rows whose states are the same in all layers, all generated; their tokens all differ."""
    layers = np.repeat(states[:, None], LAYERS, 1)
    return make_rows(list(range(len(states) + 1)), layers, prompt=0)


def changed(start: int, stop: int, **fields: Any) -> list[Row]:
    """A healthy text with other values at some positions; functions are given the row."""
    rows = healthy_rows()
    for i in range(start, stop):
        made = {name: value(rows[i]) if callable(value) else value for name, value in fields.items()}
        rows[i] = replace(rows[i], **made)
    return rows


@pytest.mark.parametrize("name", MONITORS.names())
def test_every_monitor_keeps_the_contract(name: str) -> None:
    raised = check_monitor(name)
    assert raised or name not in BUILT_IN


def test_monitors_load_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None\nfrom sotscope.catalog import MONITORS\n" + "\n".join(
        f"MONITORS.get({name!r})" for name in MONITORS.names()
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- sinks, outlier dimensions, unwritten rows (cases C02, C10, C11, C12) ------------------------------------------


@pytest.mark.parametrize("place", [0, 17])
@pytest.mark.parametrize("name", ALL_BUT_REPETITION)
def test_a_sink_alarms_nothing_wherever_it_is(name: str, place: int) -> None:
    states = noise(64)
    states[place] *= 0.1
    states[place, 7] = 3000
    assert not alarms_of(name, everywhere(states))


def test_a_sink_is_left_out_of_the_collapse_that_it_is_in() -> None:
    states = noise(1) + 1e-4 * noise(32)
    states[17] = 0.1 * noise(1, seed=2)
    states[17, 7] = 3000
    (alarm,) = alarms_of("collapse", everywhere(states))
    assert alarm.data["sinks"] == 1


@pytest.mark.parametrize("name", ALL_BUT_REPETITION)
def test_a_constant_large_dimension_is_no_collapse(name: str) -> None:
    states = noise(64)
    states[:, 7] = 50
    assert not alarms_of(name, everywhere(states))


def test_states_that_are_nearly_equal_have_collapsed() -> None:
    states = noise(1) + 1e-4 * noise(32)
    (alarm,) = alarms_of("collapse", everywhere(states))
    assert (alarm.onset, alarm.pos, alarm.data["what"], alarm.data["layer"]) == (0, 31, "frozen", 2)
    states[0] = noise(1, seed=5)
    assert alarms_of("collapse", everywhere(states)), "another first row hides it"


def test_states_that_are_nearly_equal_but_for_a_constant_large_dimension_have_collapsed() -> None:
    states = noise(1) + 1e-4 * noise(32)
    states[:, 7] = 50
    assert alarms_of("collapse", everywhere(states))


def test_states_that_span_one_direction_have_collapsed() -> None:
    states = noise(1) + noise(32, 1) * noise(1, seed=3)
    (alarm,) = alarms_of("collapse", everywhere(states))
    assert alarm.data["what"] == "few"
    assert alarm.data["rank"] == pytest.approx(1, abs=0.3)


def test_states_that_all_turn_one_way_have_collapsed() -> None:
    states = noise(96)
    states[48:] = 0.4 * states[48:] + 1.2 * noise(1, seed=4)
    (alarm,) = alarms_of("collapse", everywhere(states))
    assert alarm.data["what"] == "one way"
    assert alarm.data["centred_cosine"] > 0.8


def test_the_effective_rank_is_that_of_the_eigenvalues() -> None:
    states = noise(32, 40)
    rows = everywhere(states)
    (alarm,) = alarms_of("collapse", rows, rank=39.0)
    unit = states / np.linalg.norm(states, axis=1, keepdims=True)
    values = np.linalg.eigvalsh(np.cov(unit.T))
    assert alarm.data["rank"] == pytest.approx(values.sum() ** 2 / (values**2).sum(), rel=1e-3)


def test_a_collapse_in_the_prompt_alone_does_not_alarm() -> None:
    rows = everywhere(np.concatenate([noise(1) + 1e-4 * noise(64), noise(64, seed=1)]))
    assert not alarms_of("collapse", [replace(row, given=row.pos < 64) for row in rows])


def test_collapse_needs_states() -> None:
    made, left_out = make_monitors({"collapse": {}}, SUBJECT, ["head_norm"])
    assert not made
    assert "it needs states" in left_out[0]
    _, (why,) = make_monitors({"collapse": {}}, Subject((0, 1)), ["states"])
    assert why.endswith("no layer's states are watched")


# -- non_finite (case C14) -----------------------------------------------------------------------------------------


def test_the_first_layer_and_position_that_are_not_finite_are_named() -> None:
    bad = np.zeros(LAYERS, np.int32)
    bad[2:] = 3
    (alarm,) = alarms_of("non_finite", changed(30, 33, nonfinite=bad))
    assert (alarm.severity, alarm.onset, alarm.pos) == ("critical", 30, 30)
    assert (alarm.data["layer"], alarm.data["layers"], alarm.data["count"]) == (2, 4, 3)


def test_a_prompt_that_is_not_finite_alarms_at_once() -> None:
    (alarm,) = alarms_of("non_finite", changed(0, 3, nonfinite=np.ones(LAYERS, np.int32)))
    assert (alarm.onset, alarm.data["layer"]) == (0, 0)


def test_skipped_layers_are_not_broken() -> None:
    present = np.arange(LAYERS) % 2 == 0
    assert not alarms_of("non_finite", changed(20, 60, nonfinite=np.where(present, 0, 32), present=present))


# -- norms ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("subject", [SUBJECT, KNOWN], ids=["own past", "baseline"])
@pytest.mark.parametrize(("times", "word"), [(10.0, "explode"), (0.05, "vanish")])
def test_norms_that_explode_or_vanish_alarm_from_where_they_do(subject: Subject, times: float, word: str) -> None:
    rows = changed(60, 100, norm=lambda row: np.where(np.arange(LAYERS) >= 3, row.norm * times, row.norm))
    (alarm,) = alarms_of("norms", rows, subject)
    assert word in alarm.message
    assert (alarm.onset, alarm.pos) == (60, 63)
    assert (alarm.data["layer"], alarm.data["layers"]) == (3, 3)
    assert alarm.data["factor"] == pytest.approx(times, rel=0.5)


def test_zero_norms_have_vanished() -> None:
    assert alarms_of("norms", changed(60, 100, norm=np.zeros(LAYERS, np.float32)))


def test_a_run_that_is_wrong_from_its_beginning_is_known_by_the_baseline_alone() -> None:
    rows = changed(0, 200, norm=lambda row: row.norm * 20)
    assert not alarms_of("norms", rows)
    (alarm,) = alarms_of("norms", rows, KNOWN)
    assert alarm.data["against"] == "the baseline"


def test_three_large_rows_or_one_large_layer_are_massive_activations() -> None:
    assert not alarms_of("norms", changed(60, 63, norm=lambda row: row.norm * 100))
    assert not alarms_of("norms", changed(60, 99, norm=lambda row: np.where(np.arange(LAYERS) == 3, 9e4, row.norm)))


def test_norms_that_drift_as_a_text_grows_do_not_alarm() -> None:
    rows = [replace(row, norm=row.norm * np.float32(1.01) ** row.pos) for row in healthy_rows(260)]
    assert rows[-1].norm[1] > 8 * rows[1].norm[1]
    assert not alarms_of("norms", rows)


def test_a_single_recorded_layer_is_enough() -> None:
    rows = [replace(row, norm=row.norm[:1] * (50 if row.pos >= 60 else 1), present=row.present[:1])
            for row in healthy_rows()]  # fmt: skip
    assert alarms_of("norms", rows, Subject((5,)))[0].data["layer"] == 5


# -- doubt ---------------------------------------------------------------------------------------------------------


def test_no_doubt_for_long_is_a_floor() -> None:
    (alarm,) = alarms_of("entropy", changed(60, 100, entropy=0.01))
    assert (alarm.severity, alarm.onset, alarm.pos) == ("warning", 60, 91)
    assert not alarms_of("entropy", changed(60, 91, entropy=0.01))


def test_doubt_about_everything_is_a_ceiling() -> None:
    assert alarms_of("entropy", changed(60, 100, entropy=8.0))[0].data["limit"] == 6.0
    (alarm,) = alarms_of("entropy", changed(60, 100, entropy=8.0), KNOWN)
    assert 3 < alarm.data["limit"] < 8, "the baseline's own limit"
    assert not alarms_of("entropy", changed(60, 64, entropy=8.0))


def test_unlikely_tokens_make_a_spike_from_the_first_of_them_on() -> None:
    (alarm,) = alarms_of("perplexity", changed(60, 90, logprob=-5.0))
    assert alarm.onset == 61, "row 60 chose the token at position 61"
    assert alarm.data["perplexity"] > 20
    assert alarm.data["before"] == pytest.approx(np.exp(0.5), rel=0.01)


def test_one_impossible_token_is_no_spike() -> None:
    assert not alarms_of("perplexity", changed(60, 61, logprob=-300.0))


def test_a_text_that_was_always_unlikely_makes_no_spike() -> None:
    assert not alarms_of("perplexity", [replace(row, logprob=-4.0 - row.pos % 3) for row in healthy_rows()])


# -- heads and lag -------------------------------------------------------------------------------------------------


def one_head(factor: float) -> Any:
    def change(row: Row) -> NDArray[np.float32]:
        assert row.head_norm is not None
        made = row.head_norm.copy()
        made[4, 2] *= factor
        return made

    return change


@pytest.mark.parametrize("subject", [SUBJECT, KNOWN], ids=["own past", "baseline"])
@pytest.mark.parametrize("factor", [200.0, 0.0])
def test_a_head_that_diverges_is_named(subject: Subject, factor: float) -> None:
    (alarm,) = alarms_of("heads", changed(101, 160, head_norm=one_head(factor)), subject)
    assert (alarm.data["layer"], alarm.data["head"], alarm.data["heads"]) == (4, 2, 1)
    assert (alarm.onset, alarm.pos) == (104, 116)
    assert "head 2 of layer 4" in alarm.message


def test_a_baseline_makes_heads_judged_more_finely() -> None:
    rows = changed(101, 160, head_norm=one_head(10.0))
    assert not alarms_of("heads", rows)
    assert alarms_of("heads", rows, KNOWN)


def test_a_head_that_is_loud_for_a_few_tokens_does_not_alarm() -> None:
    assert not alarms_of("heads", changed(101, 112, head_norm=one_head(200.0)), KNOWN)


@pytest.mark.parametrize("subject", [SUBJECT, KNOWN], ids=["own past", "baseline"])
def test_states_that_stay_while_tokens_change_lag(subject: Subject) -> None:
    stays = {"cosine": np.full(LAYERS, 0.99, np.float32)}
    (alarm,) = alarms_of("lag", changed(60, 80, **stays), subject)
    assert (alarm.onset, alarm.pos) == (60, 65)
    assert alarm.data["cosine"] == pytest.approx(0.99, abs=1e-4)
    assert not alarms_of("lag", changed(60, 65, **stays), subject)


def test_states_that_stay_while_the_token_stays_do_not_lag() -> None:
    rows = changed(60, 100, token=7, next_id=7, cosine=np.full(LAYERS, 0.999, np.float32))
    assert not alarms_of("lag", rows)


def test_only_the_upper_layers_say_that_states_lag() -> None:
    lower = np.where(np.arange(LAYERS) < 3, 0.999, 0.1).astype(np.float32)
    assert not alarms_of("lag", changed(60, 100, cosine=lower))


# -- episodes and parameters ---------------------------------------------------------------------------------------


def test_what_goes_on_is_one_alarm_and_what_comes_back_is_another() -> None:
    rows = changed(60, 100, entropy=0.01)
    rows[130:170] = [replace(row, entropy=0.01) for row in rows[130:170]]
    events = [event for _, event in watch_rows("entropy", rows)]
    assert [type(event) is AlarmEnd for event in events] == [False, True, False, True]
    assert (events[1].pos, [event.episode for event in events]) == (99, [0, 0, 1, 1])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("norms", {"times": 1.0}),
        ("norms", {"share": 1.5}),
        ("collapse", {"window": 4}),
        ("collapse", {"same": 1.0}),
        ("repetition", {"repeats": 1.0}),
        ("repetition", {"longest": 0}),
        ("entropy", {"ceiling_rows": 0}),
        ("perplexity", {"factor": 1.0}),
        ("heads", {"looks": 0}),
        ("lag", {"share": 0.0}),
        ("lag", {"share": float("inf")}),
    ],
)
def test_values_out_of_range_are_refused_in_one_line(name: str, options: dict[str, float]) -> None:
    with pytest.raises(HealthError, match=rf"^monitor {name} needs .*; got [^\n]*\.$"):
        make_monitors({name: options}, SUBJECT, ["states", "head_norm"])


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_run_of_one_row_raises_nothing(name: str) -> None:
    assert not alarms_of(name, token_rows([5, 6]))
    assert WRONG


def test_what_was_wrong_in_a_parent_is_raised_anew_where_it_goes_on_in_a_branch() -> None:
    rows = token_rows([1, 2, 3, *[5] * 60])
    first = HealthWatch(make_monitors({"repetition": {}}, SUBJECT, OPTIONAL)[0])
    raised = [event for row in rows[:40] for event in first.observe(row)]
    assert [event.episode for event in raised] == [0]
    branch = HealthWatch(make_monitors({"repetition": {}}, SUBJECT, OPTIONAL)[0], first.episodes)
    branch.prime(rows[:40])
    again = [event for row in rows[40:] for event in branch.observe(row)]
    assert len(again) == 1
    assert (again[0].kind, again[0].pos) == ("repetition", 40)


def test_a_monitor_that_is_left_out_says_how_to_record_what_it_needs() -> None:
    made, left_out = make_monitors({"heads": {}, "repetition": {}}, Subject((0, 1)), ())
    assert list(made) == ["repetition"]
    assert left_out == ["monitor heads is left out: it needs head_norm; record with --sites head_out"]
