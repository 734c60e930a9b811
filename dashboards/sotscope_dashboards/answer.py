"""What a tab is told when it looks: engine, numbers, new tokens, and the panels in view that changed."""

from __future__ import annotations

import threading
from typing import Any, Protocol

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from sotscope.errors import SotscopeError
from sotscope.live.commands import Ack, Status
from sotscope.live.frames import frame_of
from sotscope.plain import plain
from sotscope.store.reader import Run
from sotscope_dashboards import health
from sotscope_dashboards.look import Look
from sotscope_dashboards.panels.contract import Panel
from sotscope_dashboards.pictures import pictures
from sotscope_dashboards.scene import Scene, position_of
from sotscope_dashboards.speed import numbers

TEXT = 600
"""Tokens of the text that are sent at most."""
BINS = 200
"""Points of the scrubber's overview."""


class Engine(Protocol):
    """What is asked of a live engine (``sotscope.live.client.Engine``)."""

    @property
    def status(self) -> Status: ...

    def send(self, data: Any) -> Ack: ...


class Runs(Protocol):
    """What is asked of the runs there are (``library.Library``)."""

    def open(self, id: str) -> Run: ...

    def id_of(self, path: Any) -> str: ...


class Request(BaseModel):
    """A tab's question. ``run``, ``seq``, ``from_token`` and ``to_token`` say which tokens it has, ``have`` which
    pictures, by their keys."""

    model_config = ConfigDict(extra="forbid")

    tab: str = Field(min_length=1, max_length=64)
    look: Look = Look()
    run: str = ""
    seq: int = 0
    from_token: int = 0
    to_token: int = 0
    have: dict[str, str] = Field(default_factory=dict)
    wants: list[str] = Field(default_factory=list, max_length=16)


class Answers:
    """Works out answers. Keeps, per open run, what panels remember of it; nothing of a tab."""

    def __init__(self, runs: Runs, engine: Engine | None, panels: dict[str, Panel]) -> None:
        self._runs = runs
        self._engine = engine
        self._panels = panels
        self._memos: dict[str, tuple[Run | None, dict[Any, Any]]] = {}
        self._lock = threading.RLock()
        """Memos are shared by tabs; and the cores that draw are those that decode: one picture at a time."""

    def scene(self, look: Look) -> Scene:
        """What ``look`` means. A run that cannot be read is a scene without one, which says why."""
        id = look.run or self._live()
        if not id:
            ready = "No run yet: press Start." if self._engine is not None else "No run is chosen; see Runs."
            return Scene(look, why=ready)
        try:
            run = self._runs.open(id)
            run.refresh()
            look = look.model_copy(update={"run": id})
            if look.seq > 0 and look.seq not in {int(seq) for seq in run.sequences.seq_id}:
                look = look.model_copy(update={"seq": -1})
            return Scene(look, run, memo=self._memo(id, run))
        except (SotscopeError, OSError) as error:
            return Scene(look, why=str(error))

    def _live(self) -> str:
        path = self._engine.status.run if self._engine is not None else ""
        return self._runs.id_of(path) if path else ""

    def _memo(self, id: str, run: Run) -> dict[Any, Any]:
        """What panels remember of this very run; of the eight that were looked at last."""
        before, memo = self._memos.pop(id, (None, {}))
        if before is not run:  # opened anew: it may be another run of that name
            memo = {}
        self._memos[id] = (run, memo)
        while len(self._memos) > 8:
            self._memos.pop(next(iter(self._memos)))
        return memo

    def answer(self, asked: Request) -> dict[str, Any]:
        """Strict JSON."""
        with self._lock:
            return self._answer(asked)

    def table(self, panel: Panel, look: Look) -> tuple[str, pd.DataFrame]:
        """The name of the run (empty: none), and the numbers behind ``panel``."""
        with self._lock:
            scene = self.scene(look)
            return scene.run.path.stem if scene.run is not None else "", panel.table(scene)

    def _answer(self, asked: Request) -> dict[str, Any]:
        scene = self.scene(asked.look)
        status = self._engine.status.model_dump() if self._engine is not None else None
        if status is not None:
            status["run"] = self._live()
        found: dict[str, Any] = {"engine": status, "why": "" if scene.run is not None else scene.why}
        try:
            if scene.run is not None:
                found |= self._run(scene) | {"numbers": numbers(scene), "frame": self._frame(scene, asked)}
                found["health"] = health.told(scene, asked.have.get("health", ""))
            found["panels"] = pictures(scene, self._panels, asked.wants, asked.have, moving=self._moving(scene))
        except (SotscopeError, OSError) as error:  # deleted while it is looked at
            found["why"] = str(error)
        return dict(plain(found))

    def _moving(self, scene: Scene) -> bool:
        """Whether tokens are being written: by the engine, which may be paused, or by another process."""
        if scene.run is None or not scene.run.recording:
            return False
        engine = self._engine.status if self._engine is not None else None
        ours = engine is not None and engine.run == str(scene.run.path)
        return engine is None or not ours or engine.state == "running"

    def _run(self, scene: Scene) -> dict[str, Any]:
        run = scene.run
        assert run is not None
        start, stop = scene.range
        return {
            "run": scene.look.run, "name": run.path.name, "model": run.attributes.get("model", {}).get("name", ""),
            "state": "recording" if run.recording else "complete" if run.complete else "interrupted",
            "total": scene.total, "start": start, "stop": stop, "cursor": scene.cursor, "layer": scene.layer,
            "layers": scene.layers, "sites": scene.layered_sites, "sequences": _sequences(scene), "seq": scene.seq,
            "overview": _overview(scene),
        }  # fmt: skip

    def _frame(self, scene: Scene, asked: Request) -> dict[str, Any]:
        """The tokens of the text that the tab does not have; the one without a row again, it may have one now."""
        assert scene.run is not None
        start, stop = scene.range
        first, last = _text_span(start, stop, scene.cursor, scene.total)
        same = (asked.run, asked.seq) == (scene.look.run, scene.seq)
        begin = first
        if same and asked.from_token <= first < asked.to_token:
            begin = max(first, min(asked.to_token - 2, last))
        made = frame_of(scene.run, scene.lineage, begin, last, scene.layer).as_dict()
        return made | {"first": first, "last": last}


def _text_span(start: int, stop: int, cursor: int, total: int) -> tuple[int, int]:
    """Tokens of the text that are shown: those in view, at most ``TEXT`` about the cursor; the newest is one more."""
    stop = stop + 1 if stop == total else stop
    if stop - start <= TEXT:
        return start, stop
    if cursor >= stop - TEXT // 2:
        return stop - TEXT, stop
    first = max(start, cursor - TEXT // 2)
    return first, min(stop, first + TEXT)


def _sequences(scene: Scene) -> list[dict[str, Any]]:
    """The run's sequences; ``heir``: the one that a recovery went on with, -1 where none did."""
    return [one | {"heir": scene.heirs.get(int(one["seq_id"]), -1)} for one in scene.sequences]


def _overview(scene: Scene) -> dict[str, Any]:
    """Alarms, recoveries and commands along the whole sequence, for the scrubber."""
    marks = [{"at": one.onset, "kind": "alarm"} for one in health.episodes(scene)]
    marks += [{"at": one.at, "kind": "recovery"} for one in health.joints(scene)]
    for event in scene.events():
        at = position_of(event)
        lone = event["kind"] == "alarm" and "episode" not in event
        if (lone or event["kind"] in ("command", "branch")) and at is not None:
            marks.append({"at": at, "kind": event["kind"]})
    return {"marks": marks[-BINS:]}
