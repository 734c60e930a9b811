"""What the page tells of health and interventions: of known runs, as pure functions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from store_helpers import Source, make_spec, piece_of

from sotscope.events import Branch
from sotscope.store.reader import Run, open_run
from sotscope.store.writer import RunWriter
from sotscope.testing.runs import write_run
from sotscope_dashboards import health, lineage
from sotscope_dashboards.look import Look
from sotscope_dashboards.panels.events import Events
from sotscope_dashboards.panels.interventions import Interventions
from sotscope_dashboards.panels.states import HEIGHT, States
from sotscope_dashboards.scene import Scene

STATES = np.random.default_rng(5).normal(size=(40, 3, 8)).astype(np.float32)
NORM = np.linalg.norm(STATES, axis=2)
USUAL = dict.fromkeys(("norm", "max_abs", "cosine"), NORM) | dict.fromkeys(("entropy", "margin"), NORM[:, 0])


def alarm(kind: str, onset: int, pos: int, episode: int, severity: str = "critical", seq: int = 0) -> dict[str, Any]:
    said = {"message": f"{kind} <b>went</b> wrong", "severity": severity, "period": 3}
    return {"kind": "alarm", "alarm": kind, **said, "onset": onset, "pos": pos, "episode": episode, "seq": seq}


def end(kind: str, episode: int, pos: int) -> dict[str, Any]:
    return {"kind": "alarm_end", "alarm": kind, "episode": episode, "pos": pos}


def scene(run: Run, **look: Any) -> Scene:
    return Scene(Look(**look), run)


def trace(drawn: dict[str, Any], name: str) -> Any:
    return next((one for one in drawn["data"] if one["name"] == name), None)


# -- alarms --------------------------------------------------------------------------------------------------------


def test_an_episode_goes_from_its_onset_to_its_end_and_is_a_bar_in_the_lane(tmp_path: Path) -> None:
    events = [alarm("repetition", 10, 15, 0), end("repetition", 0, 22), alarm("entropy", 12, 14, 1, "warning"),
              end("entropy", 1, 30), alarm("lag", 26, 28, 2, "warning")]  # fmt: skip
    run = write_run(tmp_path / "a.sot", {"resid": STATES}, scalars=USUAL, events=events)
    found = health.episodes(scene(run))
    assert [(one.kind, one.onset, one.end, one.going) for one in found] == [
        ("repetition", 10, 22, False), ("entropy", 12, 30, False), ("lag", 26, 39, False)]  # fmt: skip
    drawn = States().draw(scene(run))
    go.Figure(drawn)
    bars = trace(drawn, "alarms")
    assert bars["base"] == [9.5, 11.5, 25.5]
    assert bars["x"] == [13, 19, 14]
    assert bars["y"] == [0, 1, 0], "overlapping episodes stand below each other"
    assert bars["text"] == ["▲ repetition", "△ entropy", "△ lag"], "a severity is told without its colour"
    assert len(set(bars["marker"]["color"])) == 2
    assert "&lt;b&gt;went" in bars["customdata"][0]
    assert drawn["layout"]["height"] > HEIGHT
    assert trace(drawn, "events")["x"] == [], "an episode is not marked twice"
    assert trace(States().draw(scene(run, start=0, stop=10)), "alarms") is None


def test_a_healthy_run_has_no_lane_and_no_news(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a.sot", {"resid": STATES}, scalars=USUAL)
    drawn = States().draw(scene(run))
    assert trace(drawn, "alarms") is None
    assert drawn["layout"]["height"] == HEIGHT
    assert health.told(scene(run), "")["news"] is None


def test_an_alarm_without_an_episode_is_a_mark(tmp_path: Path) -> None:
    lone = {"kind": "alarm", "alarm": "overflow", "message": "too large", "position": 7}
    run = write_run(tmp_path / "a.sot", {"resid": STATES}, scalars=USUAL, events=[lone])
    assert health.episodes(scene(run)) == []
    assert trace(States().draw(scene(run)), "events")["text"] == ["overflow"]


@pytest.mark.parametrize("odd", [
    {"kind": "alarm", "alarm": "x", "episode": 0}, alarm("x", -3, 4, 0), alarm("x", 9, 4, 0), alarm("x", 4, 400, 0),
    {**alarm("x", 3, 4, 0), "onset": "three"}, {**alarm("x", 3, 4, 0), "seq": 7},
    {"kind": "retracted"}, {"kind": "recovery", "keep": None}, {"kind": "interventions"},
    {"kind": "interventions", "names": ["a"], "active": ["b", {}]}, {"kind": "recovery_outcome", "outcome": "given up"},
])  # fmt: skip
def test_odd_events_are_drawn_all_the_same(odd: dict[str, Any], tmp_path: Path) -> None:
    run = write_run(tmp_path / "a.sot", {"resid": STATES}, scalars=USUAL, events=[odd])
    assert not health.episodes(scene(run))
    assert not health.joints(scene(run))
    for panel in (States(), Events(), Interventions()):
        panel.draw(scene(run))
        panel.table(scene(run))


def test_news_is_the_newest_grave_alarm_and_is_sent_once(tmp_path: Path) -> None:
    events = [alarm("repetition", 10, 15, 0), end("repetition", 0, 22), alarm("entropy", 12, 14, 1, "warning"),
              end("entropy", 1, 30)]  # fmt: skip
    run = write_run(tmp_path / "a.sot", {"resid": STATES}, scalars=USUAL, events=events)
    told = health.told(scene(run), "")
    assert told["news"]["title"] == "▲ repetition, critical"
    assert told["news"]["text"].endswith("(token 10 to 22)")
    assert told["news"]["at"] == 10
    assert health.told(scene(run), told["key"]) == {"key": told["key"]}


# -- recoveries ----------------------------------------------------------------------------------------------------


def recovered(path: Path, branch: bool = False) -> Run:
    """Sequence 0 (12 rows) was rolled back to token 9, sequence 1 to token 7; sequence 2 is what is left. With
    ``branch`` a person then left sequence 2 at position 5."""
    with RunWriter(path, make_spec(), piece_of=piece_of) as writer:
        source = Source(writer)

        def write(seq: int, first: int, last: int) -> None:
            for pos in range(first, last + 1):
                source.step(seq=seq, pos=pos)

        def roll_back(branch: Branch, last: int, keep: int, outcome: str) -> None:
            seq = branch.seq
            writer.sequence(branch)
            write(seq, max(0, branch.parent_pos), last)
            writer.event(**alarm("repetition", keep, last, seq, seq=seq))
            said = {"policy": "rollback", "attempt": seq + 1, "alarm": "repetition", "episode": seq}
            writer.event("recovery", **said, action=f"go on from token {keep}", keep=keep, retracted=3)
            writer.event("retracted", seq=seq, pos=keep, tokens=last + 2 - keep)
            writer.sequence(replace(branch, finish="rolled_back"))
            writer.event(**end("repetition", seq, last))
            writer.event("recovery_outcome", **said, outcome=outcome, tokens=4)

        roll_back(Branch(0, 3), 11, 9, "again")
        roll_back(Branch(1, 3, 0, 8), 12, 7, "recovered")
        writer.sequence(Branch(2, 3, 1, 6))
        write(2, 6, 11)
        writer.sequence(Branch(2, 3, 1, 6, finish="eos"))
        if branch:
            writer.sequence(Branch(3, 3, 2, 5))
            writer.event("branch", seq=3, parent=2, pos=5, token=1)
            write(3, 5, 5)
    return open_run(path)


def test_the_page_opens_with_what_recoveries_made_of_a_run(tmp_path: Path) -> None:
    run = recovered(tmp_path / "a.sot")
    assert scene(run).heirs == {0: 1, 1: 2}
    assert [scene(run).seq, scene(run, seq=0).seq] == [2, 0]
    assert scene(run).total == 12
    assert [one["seq_id"] for one in lineage.path(scene(run).sequences, 2)] == [0, 1, 2]


def test_a_branch_of_a_person_is_no_recovery(tmp_path: Path) -> None:
    run = recovered(tmp_path / "a.sot", branch=True)
    assert scene(run).heirs == {0: 1, 1: 2}
    assert scene(run).seq == 2
    assert health.joints(scene(run, seq=3)) == [], "it left the text before what was taken back"


def test_text_that_was_taken_back_stands_at_the_joint(tmp_path: Path) -> None:
    run = recovered(tmp_path / "a.sot")
    first, second = health.joints(scene(run))
    assert [(one.at, one.pos, one.tokens) for one in (first, second)] == [(7, 9, 4), (7, 7, 7)]
    label = run.pieces.label
    assert first.text == "".join(label(i) for i in run.tokens_of(0).all_ids[9:13])
    assert second.text == "".join(label(i) for i in run.tokens_of(1).all_ids[7:14])
    assert [one.outcome for one in (first, second)] == ["again", "recovered"]
    (alone,) = health.joints(scene(run, seq=1))
    assert (alone.at, alone.text) == (9, first.text)
    assert health.joints(scene(run, seq=0)) == []
    told = health.told(scene(run), "")
    assert told["news"]["text"] == "7 tokens taken back from token 7 (repetition alarm, attempt 2): it recovered"


def test_an_alarm_belongs_to_the_text_that_raised_it(tmp_path: Path) -> None:
    run = recovered(tmp_path / "a.sot")
    assert health.episodes(scene(run)) == []
    assert [(one.onset, one.end) for one in health.episodes(scene(run, seq=0))] == [(9, 11)]
    assert [(one.onset, one.end) for one in health.episodes(scene(run, seq=1))] == [(7, 12)]


def test_events_are_told_in_words(tmp_path: Path) -> None:
    words = "\n".join(Events().table(scene(recovered(tmp_path / "a.sot"))).what)
    assert "repetition, critical: repetition <b>went</b> wrong, from token 9 on (period 3)" in words
    assert "rollback (attempt 1, alarm repetition): go on from token 9" in words
    assert "4 tokens of sequence 0 are taken back from token 9 on" in words
    assert "rollback (attempt 2), alarm repetition: it recovered" in words


# -- interventions -------------------------------------------------------------------------------------------------


def config(kind: str, **more: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "site": None,
        "layers": "all",
        "tokens": None,
        "strength": 1.0,
        "name": None,
        "on": True,
        "options": {},
    }
    return {"kind": kind, **usual, **more}


STEERS = [config("steer", options={"dim": 3}), config("prune", layers="1-2"), config("steer", options={"dim": 4})]
TOLD = [
    {"kind": "interventions", "pos": 0, "seq": 0, "names": ["steer", "prune"], "active": STEERS[:2]},
    {"kind": "interventions", "pos": 20, "seq": 0, "names": ["steer", "prune", "steer 2"], "active": STEERS[1:]},
]


def intervened(path: Path, measured: bool) -> Run:
    mask = np.array([3] * 20 + [6] * 10 + [0] * 10, np.float32)
    kl = np.where(mask > 0, np.linspace(0, 1, 40), np.nan).astype(np.float32)
    effects = {"effect_kl": kl, "effect_state_distance": 2 * kl, "effect_top1_changed": (kl > 0.5).astype(np.float32)}
    return write_run(path, {"resid": STATES}, scalars=USUAL | {"intervened": mask} | (effects if measured else {}),
                     events=TOLD)  # fmt: skip


def test_the_list_of_interventions_says_what_each_one_is_and_where_it_held(tmp_path: Path) -> None:
    drawn = Interventions().draw(scene(intervened(tmp_path / "a.sot", True)))
    go.Figure(drawn)
    rows = drawn["layout"]["meta"]["interventions"]
    assert [(one["label"], one["on"], one["rows"], one["where"]) for one in rows] == [
        ("steer", False, 20, "0-19"), ("prune", True, 30, "0-29"), ("steer 2", True, 10, "20-29")]  # fmt: skip
    assert [one["options"] for one in rows] == ["dim=3", "", "dim=4"]
    bands = trace(drawn, "intervened")
    assert list(zip(bands["y"], bands["base"], bands["x"], strict=True)) == [
        (0, -0.5, 20),
        (1, -0.5, 30),
        (2, 19.5, 10),
    ]


def test_the_effect_is_drawn_where_it_was_measured(tmp_path: Path) -> None:
    run = intervened(tmp_path / "a.sot", True)
    drawn = Interventions().draw(scene(run))
    assert [one["name"] for one in drawn["data"]] == [
        "intervened", "effect_kl", "effect_top1_changed", "effect_state_distance"]  # fmt: skip
    table = Interventions().table(scene(run, start=18, stop=32))
    assert table.interventions.tolist() == ["steer+prune"] * 2 + ["prune+steer 2"] * 10 + [""] * 2
    np.testing.assert_array_equal(table.effect_kl, run.scalars("effect_kl")[18:32])
    plain = Interventions().draw(scene(intervened(tmp_path / "b.sot", False)))
    assert [one["name"] for one in plain["data"]] == ["intervened"]
    assert "--measure" in plain["layout"]["annotations"][0]["text"]


def test_a_run_without_interventions_says_how_to_begin(tmp_path: Path) -> None:
    drawn = Interventions().draw(scene(write_run(tmp_path / "a.sot", {"resid": STATES}, scalars=USUAL)))
    assert drawn["data"] == []
    assert "--intervene" in drawn["layout"]["annotations"][0]["text"]
