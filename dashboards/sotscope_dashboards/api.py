"""The routes that the page's script calls: look, command, CSV, delete, jobs. All answers are strict JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from flask import Flask, Response, request
from pydantic import ValidationError

from sotscope.errors import LiveError, SotscopeError
from sotscope.plain import first_error
from sotscope_dashboards.answer import Answers, Engine, Request
from sotscope_dashboards.control import Control, Turns
from sotscope_dashboards.jobs import Jobs
from sotscope_dashboards.library import Library
from sotscope_dashboards.look import Look
from sotscope_dashboards.panels.contract import Panel

NOT_YOURS = "Another tab steers this engine; take over to use the buttons here."


class Api:
    """Bound to one server; holds who steers and which requests are being worked on."""

    def __init__(
        self, library: Library, engine: Engine | None, answers: Answers, panels: dict[str, Panel], jobs: Jobs
    ) -> None:
        self._library = library
        self._engine = engine
        self._answers = answers
        self._panels = panels
        self._jobs = jobs
        self._control = Control()
        self._turns = Turns()

    def register(self, server: Flask) -> None:
        """Add the routes to ``server``."""
        routes: dict[str, tuple[Callable[[], Any], str]] = {
            "look": (self.look, "POST"), "command": (self.command, "POST"), "csv": (self.csv, "GET"),
            "delete": (self.delete, "POST"), "runs": (self.runs, "GET"), "job": (self.job, "POST"),
        }  # fmt: skip
        for name, (view, method) in routes.items():
            server.add_url_rule(f"/api/{name}", f"api_{name}", _safe(view), methods=[method])

    def look(self) -> Any:
        asked = Request.model_validate(request.get_json())
        if not self._turns.enter(asked.tab):
            return {"busy": True}
        try:
            return self._answers.answer(asked) | {"control": self._control.look(asked.tab)}
        finally:
            self._turns.leave(asked.tab)

    def command(self) -> Any:
        """{"tab", "command"}: to the engine, if this tab steers. The kinds "take" and "leave" are about who does."""
        asked = request.get_json()
        tab, command = str(asked.get("tab", "")), asked.get("command") or {}
        if self._engine is None:
            raise LiveError(
                "There is no engine here (torch is not installed, or this is a demo); runs can be looked at."
            )
        if not tab:
            raise LiveError("Who asks? (tab)")
        if command.get("kind") == "leave":
            self._control.leave(tab)
            return {"error": ""}
        force = command.get("kind") == "take"
        if not self._control.take(tab, force=force):
            return {"error": NOT_YOURS, "control": "other"}
        if force:
            return {"error": "", "control": "you"}
        return {"error": self._engine.send(command).error, "control": "you"}

    def csv(self) -> Any:
        """The numbers behind a panel: ``?panel=states&look={...}``."""
        panel = self._panels.get(request.args.get("panel", ""))
        if panel is None:
            raise LiveError("There is no such panel.")
        run, table = self._answers.table(panel, Look.model_validate_json(request.args.get("look", "{}")))
        body, name = table.to_csv(index=False), f"{run or 'empty'}-{panel.name}.csv"
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
        return Response(body, mimetype="text/csv", headers={"Content-Disposition": f'attachment; filename="{safe}"'})

    def runs(self) -> Any:
        return {"runs": self._library.entries()}

    def delete(self) -> Any:
        self._library.delete(str(request.get_json().get("run", "")))
        return {"error": ""}

    def job(self) -> Any:
        """Start, watch or cancel the layout of t-SNE or UMAP: {"do", "tab", "look", "method"}."""
        asked = request.get_json()
        tab = str(asked.get("tab", ""))
        if asked.get("do") == "start":
            scene = self._answers.scene(Look.model_validate(asked.get("look", {})))
            self._jobs.start(tab, scene, str(asked.get("method", "")))
        if asked.get("do") == "cancel":
            self._jobs.cancel(tab)
        return self._jobs.state(tab)


def _safe(view: Callable[[], Any]) -> Callable[[], Response]:
    """A mistake is one line with a status of its own, never a traceback."""

    def answer() -> Response:
        status = 200
        try:
            found = view()
        except ValidationError as error:
            status, found = 400, {"error": first_error(error)}
        except SotscopeError as error:
            status, found = 409, {"error": str(error)}
        if isinstance(found, Response):
            return found
        body = json.dumps(found, allow_nan=False, separators=(",", ":"))
        return Response(body, status=status, mimetype="application/json")

    return answer
