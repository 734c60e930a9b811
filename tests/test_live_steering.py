"""The engine told to recover and to intervene: over the pipe, at step boundaries, refused in one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sotscope.live.client import Engine
from sotscope.store.reader import Run, open_run

LONG = {"max_new_tokens": 60, "do_sample": False, "eos_token_id": [259]}
STEER = "steer:dim=3,value=4,layers=1,tokens=generated"


def start(engine: Engine, steps: int = 0, **more: Any) -> Run:
    """A run that is paused after so many single steps."""
    settings = {"input": {"prompt": "why?"}, "decode": LONG, **more}
    assert engine.send({"kind": "start", "settings": settings, "paused": True}).error == ""
    for _ in range(steps):
        assert engine.send({"kind": "step"}).error == ""
        engine.wait_for("paused")
    return open_run(engine.status.run, live=True)


def to_the_end(engine: Engine, run: Run) -> Run:
    assert engine.send({"kind": "resume"}).error == ""
    assert engine.wait_for("ended").state == "ended"
    run.refresh()
    return run


def test_a_recovery_that_a_person_asks_for_begins_a_sequence_and_the_status_follows(engine: Engine) -> None:
    run = start(engine, steps=40)
    run.refresh()
    written = len(run)
    assert engine.send({"kind": "recover"}).error == ""
    assert engine.status.text == "recovering at the next step"
    to_the_end(engine, run)
    assert engine.status.seq == 1
    assert run.sequences.finish.tolist()[0] == "rolled_back"
    assert run.sequences.parent.tolist() == [-1, 0]
    (retracted,), (recovery,) = run.events("retracted"), run.events("recovery")
    assert (recovery["policy"], recovery["alarm"]) == ("rollback", "called")
    assert retracted["seq"] == 0
    assert retracted["pos"] + retracted["tokens"] == written + 1
    ours, before = run.tokens_of(1).all_ids, run.tokens_of(0).all_ids
    assert ours[: retracted["pos"]] == before[: retracted["pos"]]


def test_a_recovery_that_stops_ends_the_text_and_says_why(engine: Engine) -> None:
    run = start(engine, steps=10)
    assert engine.send({"kind": "recover", "policy": "stop"}).error == ""
    to_the_end(engine, run)
    assert "a recovery stopped the text" in engine.status.text
    assert run.sequences.finish.tolist() == ["stopped"]


@pytest.mark.parametrize(
    ("steps", "command", "said"),
    [
        (0, {"kind": "recover"}, "nothing is written yet"),
        (4, {"kind": "recover", "policy": "rolback"}, "did you mean rollback"),
        (4, {"kind": "set", "changes": {"interventions": ["prunes:k=3"]}}, "did you mean prune"),
        (4, {"kind": "set", "changes": {"interventions": ["steer:dim=999,value=1"]}}, "dim"),
        (4, {"kind": "set", "changes": {"interventions": ["prune:layers=9"]}}, "layer 9"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_changes_nothing(
    engine: Engine, steps: int, command: dict[str, Any], said: str
) -> None:
    run = start(engine, steps=steps)
    answer = engine.send(command)
    assert said in answer.error
    assert "\n" not in answer.error
    to_the_end(engine, run)
    assert engine.status.interventions == []
    assert run.events("recovery") == run.events("interventions") == []
    assert "recover does nothing while the engine is ended" in engine.send({"kind": "recover"}).error


def test_interventions_are_toggled_over_the_pipe_and_the_status_says_which_hold(engine: Engine) -> None:
    run = start(engine, steps=8)
    assert engine.status.interventions == []

    def set_and_step(interventions: list[Any]) -> None:
        assert engine.send({"kind": "set", "changes": {"interventions": interventions}}).error == ""
        for _ in range(6):
            engine.send({"kind": "step"})
            engine.wait_for("paused")

    set_and_step([STEER])
    (held,) = engine.status.interventions
    assert (held["kind"], held["on"], held["options"]) == ("steer", True, {"dim": 3, "value": 4})
    set_and_step([held | {"on": False}])  # as the page gives it back
    assert [one["on"] for one in engine.status.interventions] == [False]
    set_and_step([held | {"strength": 0.5}])
    set_and_step([])
    assert engine.status.interventions == []
    to_the_end(engine, run)
    begins = [event["pos"] for event in run.events("interventions")]
    assert len(begins) == 4
    changed = np.flatnonzero(run.scalars("intervened"))
    assert changed.tolist() == [*range(begins[0], begins[1]), *range(begins[2], begins[3])]
    assert {name for event in run.events("interventions") for name in event["names"]} == {"steer"}


def test_settings_of_a_start_are_those_of_a_recording_and_the_status_tells_them(engine: Engine) -> None:
    health: dict[str, Any] = {"monitors": {"repetition": {}}, "recover": {"rollback": {}, "stop": {}}}
    run = start(engine, health=health, interventions=[STEER], measure=True)
    status = engine.status
    assert {"repetition", "norms", "non_finite"} <= set(status.monitors)
    assert (status.recoveries, status.measured) == (["rollback", "stop"], True)
    assert [one["kind"] for one in status.interventions] == ["steer"]
    engine.send({"kind": "stop"})
    run.refresh()
    assert "effect_kl" in run.scalar_names
    start(engine)
    assert (engine.status.monitors, engine.status.recoveries) == (["non_finite"], [])
    assert (engine.status.interventions, engine.status.measured) == ([], False)
    engine.send({"kind": "stop"})
