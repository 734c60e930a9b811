"""What a tab is told: deltas that add up, panels that are drawn when they change, and one line for what is wrong."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sotscope.live.commands import Ack, Status
from sotscope.store.reader import Run, open_run
from sotscope.store.writer import RunWriter
from sotscope.testing.runs import write_run
from sotscope_dashboards import jobs, speed
from sotscope_dashboards.answer import TEXT, Answers, Request
from sotscope_dashboards.app import make_app
from sotscope_dashboards.catalog import PANELS
from sotscope_dashboards.control import SILENCE_S, Control, Turns
from sotscope_dashboards.library import Library
from sotscope_dashboards.look import Look
from sotscope_dashboards.pooling import pool
from sotscope_dashboards.scene import Scene
from sotscope_dashboards.speed import numbers

FACTS = ("entropy", "logprob", "margin")


def run_in(folder: Path, rows: int = 40, name: str = "a.sot") -> Run:
    rng = np.random.default_rng(3)
    states = rng.normal(size=(rows, 3, 4)).astype(np.float32)
    scalars: dict[str, Any] = {key: rng.random(rows).astype(np.float32) for key in FACTS}
    scalars |= {"norm": np.linalg.norm(states, axis=2), "max_abs": np.abs(states).max(2)}
    scalars["cosine"] = rng.random((rows, 3)).astype(np.float32)
    return write_run(folder / name, {"resid": states}, prompt=5, scalars=scalars, step_ns=[10**7] * rows)


class Steered:
    """An engine that only remembers what it was told."""

    def __init__(self) -> None:
        self.status = Status(state="idle", text="ready", model="tiny")
        self.told: list[Any] = []

    def send(self, data: Any) -> Ack:
        self.told.append(data)
        return Ack(id=1, error="no." if data.get("kind") == "stop" else "")


def answers(folder: Path) -> Answers:
    return Answers(Library(folder), None, {name: PANELS.get(name)() for name in PANELS.names()})


def id_of(folder: Path, name: str = "a.sot") -> str:
    return Library(folder).id_of(folder / name)


def asked(library: Library, path: Path, look: dict[str, Any] | None = None, **more: Any) -> Request:
    return Request.model_validate({"tab": "t", "look": {"run": library.id_of(path), **(look or {})}, **more})


@pytest.fixture
def library(tmp_path: Path) -> Library:
    run_in(tmp_path)
    return Library(tmp_path)


def made(library: Library) -> Answers:
    return Answers(library, None, {name: PANELS.get(name)() for name in PANELS.names()})


def test_the_second_look_brings_only_what_is_new(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "a.sot"
    first = made(library).answer(asked(library, path))
    frame = first["frame"]
    assert (frame["start"], frame["stop"], frame["total"]) == (0, 41, 40)
    again = made(library).answer(asked(library, path, run=first["run"], from_token=0, to_token=41))["frame"]
    # the last two: the token without a row may have one by now
    assert (again["start"], again["labels"]) == (39, frame["labels"][39:])


def test_another_run_or_a_gap_brings_all_of_it(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "a.sot"
    for have in ({"run": "other", "to_token": 41}, {"seq": 1, "to_token": 41}, {"from_token": 30, "to_token": 41}):
        given = {"run": library.id_of(path), **have}
        assert made(library).answer(asked(library, path, **given))["frame"]["start"] == 0


def test_a_panel_is_drawn_again_only_when_it_changes(library: Library, tmp_path: Path) -> None:
    path, one = tmp_path / "a.sot", made(library)
    wants = ["states", "candidates"]
    drawn = one.answer(asked(library, path, wants=wants))["panels"]
    have = {name: found["key"] for name, found in drawn.items()}
    assert one.answer(asked(library, path, wants=wants, have=have))["panels"] == {}
    moved = one.answer(asked(library, path, {"cursor": 7}, wants=wants, have=have))["panels"]
    assert list(moved) == ["candidates"]  # the heatmap does not depend on the cursor
    scaled = one.answer(asked(library, path, {"scalar": "max_abs"}, wants=wants, have=have))["panels"]
    assert "states" in scaled
    assert one.answer(asked(library, path, wants=["no such panel"]))["panels"] == {}


def test_a_long_text_is_a_window_about_the_cursor(tmp_path: Path) -> None:
    run_in(tmp_path, 2000)
    library = Library(tmp_path)
    one, path = made(library), tmp_path / "a.sot"
    look = {"start": 0, "stop": 2000}
    at_end = one.answer(asked(library, path, look))["frame"]
    assert (at_end["first"], at_end["last"]) == (2001 - TEXT, 2001)
    middle = one.answer(asked(library, path, {**look, "cursor": 900}))["frame"]
    assert (middle["first"], middle["last"]) == (900 - TEXT // 2, 900 + TEXT // 2)
    assert middle["labels"][TEXT // 2] == "␣900"
    follow = one.answer(asked(library, path))
    assert (follow["start"], follow["stop"]) == (2000 - 512, 2000)


def test_what_cannot_be_seen_says_why(library: Library, tmp_path: Path) -> None:
    one, path = made(library), tmp_path / "a.sot"
    nothing = one.answer(Request(tab="t", wants=list(PANELS.names())))
    assert nothing["why"] == "No run is chosen; see Runs."
    unknown = one.answer(Request(tab="t", look=Look(run="0123456789abcdef"), wants=["states"]))
    assert unknown["why"]
    json.dumps([nothing, unknown], allow_nan=False)
    question = asked(library, path, wants=list(PANELS.names()))
    one.answer(question)
    shutil.rmtree(path)
    gone = one.answer(question)
    assert gone["why"]
    assert "frame" not in gone or gone["why"]


def test_the_numbers_of_the_bar(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    found = numbers(Scene(Look(), run))
    assert found["tokens_per_forward"] == 1
    assert found["tokens_per_s"] == pytest.approx(100, rel=0.05)
    assert found["p50"] == pytest.approx(10, rel=0.05)
    assert found["alarms"] == 0
    assert "age_ms" not in found  # it is not being written


def test_one_tab_steers() -> None:
    now = [0.0]
    control = Control(lambda: now[0])
    assert control.look("a") == "free"
    assert control.take("a")
    assert not control.take("b")
    assert (control.look("a"), control.look("b")) == ("you", "other")
    assert control.take("b", force=True)
    assert control.look("a") == "other"
    now[0] = SILENCE_S + 1
    assert control.take("a")  # b is gone
    control.leave("a")
    assert control.look("b") == "free"


def test_c27_one_look_a_tab_at_a_time() -> None:
    turns, working = Turns(), threading.Semaphore(0)
    done = []

    def slow() -> None:
        assert turns.enter("t")
        working.acquire()
        turns.leave("t")
        done.append(True)

    thread = threading.Thread(target=slow)
    thread.start()
    while turns.enter("t"):
        turns.leave("t")
    assert [turns.enter("t") for _ in range(10)] == [False] * 10  # told at once, nothing is queued
    assert turns.enter("other")
    working.release()
    thread.join()
    assert turns.enter("t")


@pytest.fixture
def client(tmp_path: Path) -> Any:
    run_in(tmp_path)
    engine = Steered()
    app = make_app(Library(tmp_path), engine)
    found = app.server.test_client()
    found.engine = engine
    return found


def test_commands_go_to_the_engine_of_the_tab_that_steers(client: Any) -> None:
    post = lambda tab, command: client.post("/api/command", json={"tab": tab, "command": command}).get_json()  # noqa: E731
    assert post("a", {"kind": "pause"}) == {"error": "", "control": "you"}
    assert post("b", {"kind": "pause"})["control"] == "other"
    assert post("a", {"kind": "stop"})["error"] == "no."
    assert post("b", {"kind": "take"})["control"] == "you"
    assert post("a", {"kind": "pause"})["control"] == "other"
    assert [told["kind"] for told in client.engine.told] == ["pause", "stop"]
    assert "tab" in post("", {"kind": "pause"})["error"]


def test_csv_is_the_panel_s_numbers(client: Any, tmp_path: Path) -> None:
    look = json.dumps({"run": client.get("/api/runs").get_json()["runs"][0]["id"], "start": 10, "stop": 14})
    answer = client.get("/api/csv", query_string={"panel": "states", "look": look})
    lines = answer.get_data(as_text=True).splitlines()
    assert lines[0].startswith("token,label,mode,entropy,margin,norm layer 0")
    assert [line.split(",")[0] for line in lines[1:]] == ["10", "11", "12", "13"]
    assert 'filename="a-states.csv"' in answer.headers["Content-Disposition"]


@pytest.mark.parametrize(
    ("method", "route", "body"),
    [
        ("post", "/api/look", {"tab": "t", "look": {"zoom": 3}}),
        ("post", "/api/look", {"tab": ""}),
        ("get", "/api/csv?panel=nothing", None),
        ("get", "/api/csv?panel=states&look={", None),
        ("post", "/api/delete", {"run": "../a.sot"}),
        ("post", "/api/job", {"tab": "t", "do": "start", "method": "magic"}),
    ],
)
def test_a_mistake_is_one_line_of_json(method: str, route: str, body: Any, client: Any) -> None:
    answer = getattr(client, method)(route, **({"json": body} if body is not None else {}))
    assert answer.status_code in (400, 409)
    error = answer.get_json()["error"]
    assert error
    assert "\n" not in error


def test_latency_is_of_a_token_not_of_a_step() -> None:
    steps = pd.DataFrame({"rows": [1, 3], "forward_ns": [10e6, 30e6], "draft_ns": 0, "accept_ns": 0, "capture_ns": 0})
    found = speed.of_steps(steps)
    assert (found["p50"], found["p95"], found["tokens_per_s"], found["tokens_per_forward"]) == (10, 10, 100, 2)


def test_pooling_shows_what_is_farthest_from_zero() -> None:
    values = np.full((1024, 1), 0.5)
    values[7], values[100], values[200:202] = -9, np.nan, np.inf
    grid = pool(values)
    assert (grid.width, grid.cells.shape, grid.nonfinite) == (2, (1, 512), 3)
    assert grid.cells[0, 3] == -9
    assert grid.cells[0, 50] == 0.5
    assert np.isnan(grid.cells[0, 100])
    assert grid.said == "2 tokens a cell (the farthest from 0 shows) · 3 numbers are NaN or infinite (blank)"


def test_an_event_that_comes_is_seen(tmp_path: Path) -> None:
    given = run_in(tmp_path)
    with RunWriter(tmp_path / "b.sot", given.spec, attributes=given.attributes, piece_of=None) as writer:
        writer.event("config", settings={})
        writer.flush()
        run, memo = open_run(tmp_path / "b.sot", live=True), dict[Any, Any]()
        kinds = lambda: [event["kind"] for event in Scene(Look(), run, memo=memo).events()]  # noqa: E731
        assert kinds() == ["config"]
        writer.event("command", changes={"mode": "sot"}, pos=3)
        writer.flush()
        run.refresh()
        assert kinds() == ["config", "command"]


def test_jobs_of_tabs_that_are_gone_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []

    class Quick:
        def __init__(self, *given: Any) -> None:
            self.number = len(ended)

        def state(self) -> dict[str, Any]:
            return {"state": "done"}

        def end(self) -> None:
            ended.append(self)

    monkeypatch.setattr(jobs, "_Job", Quick)
    scene, kept = Scene(Look(), run_in(tmp_path)), jobs.Jobs()
    for tab in range(jobs.MOST_JOBS + 3):
        kept.start(str(tab), scene, "tsne")
    states = [kept.state(str(tab))["state"] for tab in range(jobs.MOST_JOBS + 3)]
    assert states == ["none"] * 3 + ["done"] * jobs.MOST_JOBS
    assert len(ended) == 3
