"""The contract suite of monitors, and rows whose right answer is known. Plugin authors run it on their own:
``check_monitor("my_monitor")``, once it is registered in the entry-point group ``sotscope.monitors``."""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sotscope.capture.scalars import head_norms, layer_scalars
from sotscope.catalog import MONITORS
from sotscope.errors import HealthError
from sotscope.events import Alarm, AlarmEnd, Step
from sotscope.health.collect import Collector
from sotscope.health.contracts import Row, Subject
from sotscope.health.early_model import EarlyModel, Score
from sotscope.health.rows import rows_of_step, watched_layers
from sotscope.health.watch import HealthWatch, make_monitors
from sotscope.plain import plain

LAYERS, DIM, HEADS = 6, 32, 4
OPTIONAL = frozenset({"states", "head_norm", "attn_entropy"})
"""Fields of a row that a run need not have."""
SUBJECT = Subject(tuple(range(LAYERS)), watched_layers(range(LAYERS)))
WRONG = range(100, 148)
"""Positions of a troubled text at which everything is wrong."""


def healthy_rows(count: int = 200, prompt: int = 8, seed: int = 0) -> list[Row]:
    """Rows of a text in which nothing is wrong: any tokens, any states around a common mean, a sink at position 0."""
    draws = np.random.default_rng(seed)
    tokens = [int(token) for token in draws.integers(0, 1000, count + 1)]
    states = draws.normal(size=(count, LAYERS, DIM)).astype(np.float32) + np.float32(0.3)
    states[0] *= 100
    return make_rows(tokens, states, prompt=prompt, entropy=draws.gamma(2.0, 0.6, count))


def troubled_rows() -> list[Row]:
    """A healthy text, but at ``WRONG`` its tokens go round in a cycle of 2 and are improbable although the model is in
    no doubt, its states are frozen, one of them is NaN, half of them are large, and in the other half the heads are."""
    rows = healthy_rows(260)
    frozen = rows[WRONG.start - 1]
    for i in WRONG:
        times, heads = (30, 1) if i < WRONG.start + len(WRONG) // 2 else (1, 2000)
        cosine = np.full(LAYERS, 0.9999, np.float32)
        rows[i] = replace(
            rows[i], token=7 + i % 2, next_id=7 + (i + 1) % 2, norm=frozen.norm * times, cosine=cosine,
            states=None if frozen.states is None else frozen.states * times, entropy=0.001, logprob=-12.0,
            head_norm=None if frozen.head_norm is None else frozen.head_norm * heads,
        )  # fmt: skip
    bad = rows[WRONG.start + 20]
    nonfinite = np.zeros(LAYERS, np.int32)
    nonfinite[2:] = 5
    norm, cosine = (np.where(nonfinite > 0, np.nan, value).astype(np.float32) for value in (bad.norm, bad.cosine))
    rows[bad.pos] = replace(bad, nonfinite=nonfinite, norm=norm, cosine=cosine)
    return rows


def make_rows(
    tokens: Sequence[int], states: NDArray[np.float32], *, prompt: int = 1, entropy: NDArray[Any] | float = 1.0,
    logprob: float = -0.5,
) -> list[Row]:  # fmt: skip
    """A row for each of ``states [token, layer, dim]``; ``tokens`` has one more, the one that the last row chose.

    As in a run, the row of the last of ``prompt`` tokens is not given: it chose the first generated one.
    """
    count, layers = states.shape[:2]
    scalars = layer_scalars(states, None)
    watched = [list(range(layers)).index(layer) for layer in watched_layers(range(layers))]
    heads = head_norms(states.reshape(count, layers, HEADS, -1)) if states.shape[2] % HEADS == 0 else None
    doubt = np.broadcast_to(np.asarray(entropy, np.float32), (count,))
    return [
        Row(
            i, tokens[i], tokens[i + 1], i < prompt - 1, scalars["norm"][i], scalars["max_abs"][i],
            scalars["nonfinite"][i], scalars["cosine"][i], np.ones(layers, bool),
            float("nan") if i < prompt - 1 else float(doubt[i]), float("nan") if i < prompt - 1 else logprob, 1.0,
            states[i, watched], None if heads is None else heads[i],
        )
        for i in range(count)
    ]  # fmt: skip


def token_rows(tokens: Sequence[int], prompt: int = 1) -> list[Row]:
    """Rows of these tokens, the first ``prompt`` of them given, with states in which nothing is wrong."""
    states = np.random.default_rng(0).normal(size=(max(1, len(tokens) - 1), LAYERS, DIM)).astype(np.float32)
    return make_rows(tokens if len(tokens) > 1 else [*tokens, -1], states, prompt=prompt)


def watch_rows(
    name: str, rows: Iterable[Row], subject: Subject = SUBJECT, **options: Any
) -> list[tuple[int, Alarm | AlarmEnd]]:
    """What one monitor says of ``rows``, each with the position of the row at which it says so."""
    watch = HealthWatch(make_monitors({name: options}, subject, OPTIONAL)[0])
    return [(row.pos, event) for row in rows for event in watch.observe(row)]


def alarms_of(name: str, rows: Iterable[Row], subject: Subject = SUBJECT, **options: Any) -> list[Alarm]:
    """The alarms that one monitor raises."""
    return [event for _, event in watch_rows(name, rows, subject, **options) if isinstance(event, Alarm)]


def in_steps(rows: Sequence[Row], width: int) -> Iterator[Row]:
    """The same rows as they come from steps of ``width`` rows."""
    for start in range(0, len(rows), width):
        part = rows[start : start + width]
        same = [row for row in part if row.given == part[0].given]
        for some in (same, part[len(same) :]):
            if some:
                yield from _step_rows(some)


def _step_rows(rows: Sequence[Row]) -> Iterator[Row]:
    names = ("norm", "max_abs", "nonfinite", "cosine", "entropy", "logprob", "margin", "head_norm", "attn_entropy")
    scalars = {
        name: np.stack([getattr(row, name) for row in rows]) for name in names if getattr(rows[0], name) is not None
    }
    states = None if rows[0].states is None else np.stack([row.states for row in rows if row.states is not None])
    step = Step(
        0, 0, "prompt" if rows[0].given else "ar", rows[0].pos,
        tuple(row.token for row in rows), tuple(row.next_id for row in rows),
    )  # fmt: skip
    return rows_of_step(step, scalars, np.stack([row.present for row in rows]), states)


def healthy_baseline() -> Any:
    """A baseline made of healthy rows."""
    collector = Collector(SUBJECT.layers)
    for seed in range(4):
        collector.add(healthy_rows(seed=seed + 10))
    return collector.baseline("healthy", "0" * 16)


def any_early() -> EarlyModel:
    """An early-warning score by hand: likely where more than two thirds of the newest 32 tokens are periodic."""
    score = Score(features=["period_32"], weights=[30.0], bias=-20.0)
    return EarlyModel(
        model="healthy", fingerprint="0" * 16, layers=list(SUBJECT.watched), scores={"all": score, "tokens": score},
        threshold_rows=0.3, threshold_texts=0.5,
    )  # fmt: skip


def check_monitor(name: str) -> list[Alarm]:
    """What every monitor must do, with what is known of a model and without; returns what ``troubled_rows`` raised.

    It says what to try, refuses parameters out of range in one line, is silent on a healthy text, raises the same
    alarms whatever the width of a step, survives rows that are not finite, skipped layers and a text of one row, and
    its alarms end.
    """
    factory = MONITORS.get(name)
    assert factory.name == name
    assert factory.advice, "advice: what to try"
    assert "\n" not in factory.advice
    assert factory.calm >= 1
    assert factory.needs <= OPTIONAL, "needs names fields of a row that may be missing"
    known = replace(SUBJECT, baseline=healthy_baseline(), early=any_early())
    _check_parameters(name, known)
    raised: list[Alarm] = []
    for subject in (SUBJECT, known):
        if why := factory.lacks(subject):
            assert "\n" not in why
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for seed in range(3):
                assert not alarms_of(name, healthy_rows(seed=seed), subject), "an alarm where nothing is wrong"
            raised = _check_trouble(name, subject)
            for rows in odd_rows():
                alarms_of(name, rows, subject)
    return raised


def odd_rows() -> Iterator[list[Row]]:
    """Texts that a monitor must survive: of one row, all given, without logits, all zero, skipped layers, all NaN."""
    yield healthy_rows(1, prompt=1)
    yield healthy_rows(80, prompt=80)
    yield [replace(row, entropy=np.nan, logprob=np.nan, margin=np.nan, next_id=-1) for row in healthy_rows(80)]
    with np.errstate(all="ignore"):
        yield make_rows([0] * 81, np.zeros((80, LAYERS, DIM), np.float32))
        yield make_rows([0] * 81, np.full((80, LAYERS, DIM), np.nan, np.float32))
    rows = healthy_rows(80)
    for i in range(20, 80):
        present = np.arange(LAYERS) % 2 == i % 2
        norm, cosine = (np.where(present, value, np.nan).astype(np.float32) for value in (rows[i].norm, rows[i].cosine))
        count = np.where(present, 0, DIM).astype(np.int32)
        rows[i] = replace(rows[i], present=present, norm=norm, cosine=cosine, max_abs=norm, nonfinite=count)
    yield rows


def _check_parameters(name: str, subject: Subject) -> None:
    parameters = inspect.signature(MONITORS.get(name)).parameters
    numbers = [key for key, one in parameters.items() if type(one.default) in (int, float)]
    for options in ({"no_such_parameter": 1}, *({key: type(parameters[key].default)(-1)} for key in numbers)):
        refused = _refusal(name, options, subject)
        assert name in refused, f"monitor {name} takes {options}"
        assert "\n" not in refused


def _refusal(name: str, options: dict[str, Any], subject: Subject) -> str:
    try:
        make_monitors({name: options}, subject, OPTIONAL)
    except HealthError as error:
        return str(error)
    return ""


def _check_trouble(name: str, subject: Subject) -> list[Alarm]:
    rows = troubled_rows()
    plain_steps = watch_rows(name, rows, subject)
    for width in (1, 2, 4):
        assert watch_rows(name, in_steps(rows, width), subject) == plain_steps, f"steps of {width} rows differ"
    alarms = [event for _, event in plain_steps if isinstance(event, Alarm)]
    ends = [event for _, event in plain_steps if isinstance(event, AlarmEnd)]
    assert [end.episode for end in ends] == [alarm.episode for alarm in alarms], "an alarm does not end"
    for alarm in alarms:
        assert alarm.severity in ("warning", "critical")
        assert 0 <= alarm.onset <= alarm.pos + 1, "the onset is the position of a token that is there"
        assert alarm.pos in WRONG, "an alarm where nothing is wrong"
        assert alarm.message
        assert "\n" not in alarm.message
        json.dumps(plain(dict(alarm.data)), allow_nan=False)
    return alarms
