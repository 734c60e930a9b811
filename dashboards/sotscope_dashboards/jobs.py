"""t-SNE and UMAP, each in a process of its own that can be cancelled: never in a request of the page."""

from __future__ import annotations

import multiprocessing
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from sotscope.errors import AnalysisError, SotscopeError
from sotscope.plain import plain
from sotscope.store.reader import open_run
from sotscope_dashboards.scene import Scene

METHODS = ("tsne", "umap")
MOST = 5000
"""Rows that are laid out at most, evenly spread."""


MOST_JOBS = 4
"""Jobs that are kept, of all tabs: each is a process, or the points it found."""


class Jobs:
    """One job a tab; a new one takes the place of the old one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, _Job] = {}

    def start(self, tab: str, scene: Scene, method: str) -> None:
        """Lay out the rows in view of the chosen layer. Raises AnalysisError where there is nothing to lay out."""
        if method not in METHODS:
            raise AnalysisError(f"unknown method {method!r}; there are: {', '.join(METHODS)}.")
        if scene.run is None or "resid" not in scene.run.sites:
            raise AnalysisError("There is no resid to lay out; record with --sites resid.")
        self.cancel(tab)
        if len(self._jobs) >= MOST_JOBS:
            self.cancel(next(iter(self._jobs)))  # of a tab that may be long gone
        at = np.unique(np.linspace(*scene.range, min(MOST, len(scene.rows)), endpoint=False).astype(np.int64))
        with self._lock:
            self._jobs[tab] = _Job(str(scene.run.path), scene.layer, at, scene.lineage[at], method)

    def cancel(self, tab: str) -> None:
        with self._lock:
            job = self._jobs.pop(tab, None)
        if job is not None:
            job.end()

    def state(self, tab: str) -> dict[str, Any]:
        """{"state": "none" | "working" | "done" | "failed", ...}; ``seconds`` so far; ``points`` when done."""
        with self._lock:
            job = self._jobs.get(tab)
        return {"state": "none"} if job is None else job.state()


class _Job:
    def __init__(self, path: str, layer: int, at: Any, rows: Any, method: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe(duplex=False)
        self._at, self._method, self._layer = at, method, layer
        self._begin = time.monotonic()
        self._found: dict[str, Any] | None = None
        self._process = context.Process(target=_work, args=(theirs, path, layer, rows, method), daemon=True)
        self._process.start()
        theirs.close()

    def state(self) -> dict[str, Any]:
        if self._found is None:
            try:
                if not self._pipe.poll():
                    return {"state": "working", "method": self._method, "seconds": time.monotonic() - self._begin,
                            "rows": len(self._at)}  # fmt: skip
                self._found = self._pipe.recv()
            except EOFError:
                self._found = {"error": "its process ended"}
        if "error" in self._found:
            return {"state": "failed", "error": self._found["error"]}
        return {"state": "done", "method": self._method, "layer": self._layer, "at": self._at.tolist()} | self._found

    def end(self) -> None:
        self._process.terminate()
        self._process.join(2)


def _work(pipe: Connection, path: str, layer: int, rows: Any, method: Any) -> None:
    from sotscope.analysis.layouts import layout  # scikit-learn takes a second that the page's process need not spend

    try:
        states = open_run(path, live=True).take("resid", rows, layer=layer)
        made = layout(states, method)
        pipe.send(plain({"points": np.asarray(made.coordinates), "notes": list(made.notes)}))
    except SotscopeError as error:
        pipe.send({"error": str(error)})
    except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
        pipe.send({"error": f"{type(error).__name__}: {error}"})
