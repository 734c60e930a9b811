"""One run in one line of a list: what its small files say, so that a folder of hundreds is listed at once."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sotscope.errors import StoreError
from sotscope.store import layout
from sotscope.store.journal import read_header
from sotscope.store.lock import is_held
from sotscope.store.reader import Run, open_run
from sotscope.store.safety import check_hierarchy
from sotscope_dashboards.style import visible

PROMPT_CHARACTERS = 80
Stamp = tuple[int, int, int]


def summary(path: Path, follow: Callable[[], Run]) -> dict[str, Any]:
    """model, mode, rows, bytes, state, started, prompt, problem of the run at ``path``; never raises.

    ``follow`` opens a run that is being recorded, so that a long one is not read anew each time.
    """
    entry: dict[str, Any] = {"model": "", "mode": "", "rows": 0, "bytes": 0, "started": 0.0, "prompt": ""}
    entry |= {"state": "damaged", "problem": ""}
    try:
        entry["started"] = path.stat().st_mtime
        entry["bytes"] = check_links(path)
        entry |= _counts(path, follow)
        model = read_header(path / layout.JOURNAL)[1].get("model", {})
        entry["model"] = visible(Path(str(model.get("name", ""))).name)
        entry |= _said(path)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with one run, the others are listed
        entry["problem"] = visible(" ".join(str(error).split()))
    return entry


def stamp_of(path: Path) -> Stamp:
    """What changes when a run does: its journal's time and size, and when its shapes were published."""
    try:
        journal = (path / layout.JOURNAL).stat()
        return journal.st_mtime_ns, journal.st_size, (path / layout.STATES / "zarr.json").stat().st_mtime_ns
    except OSError:
        return 0, 0, 0


def check_links(folder: str | Path) -> int:
    """Bytes that the files below ``folder`` take on disk. Raises StoreError for a symbolic link among them."""
    total = 0
    with os.scandir(folder) as found:
        for entry in found:
            if entry.is_symlink():
                raise StoreError(f"{visible(entry.name)} in this run is a symbolic link; such a run is not opened.")
            try:
                deeper = entry.is_dir(follow_symlinks=False)
                total += check_links(entry.path) if deeper else _disk_bytes(entry)
            except FileNotFoundError:  # a temporary file of the publisher
                continue
    return total


def _disk_bytes(entry: os.DirEntry[str]) -> int:
    """Sparse files take what was written."""
    found = entry.stat(follow_symlinks=False)
    return int(getattr(found, "st_blocks", found.st_size / 512) * 512)


def _counts(path: Path, follow: Callable[[], Run]) -> dict[str, Any]:
    """Rows and state. A finished run's are published, and its journal ends with them; any other is opened."""
    attributes = check_hierarchy(path / layout.STATES)["attributes"]
    rows = attributes["committed"]
    if attributes["complete"] and _ends_with_commit(path / layout.JOURNAL, rows):
        return {"rows": rows, "state": "complete"}
    run = follow() if is_held(path / layout.JOURNAL) else open_run(path, live=True)
    run.refresh()
    problem = run.damage
    if run.complete and not problem and len(run) < rows:
        problem = f"the journal ends after row {len(run) - 1}, but {rows} rows were published."
    state = "damaged" if problem else "recording" if run.recording else "complete" if run.complete else "interrupted"
    return {"rows": len(run), "state": state, "problem": problem}


def _ends_with_commit(journal: Path, rows: int) -> bool:
    """Whether the journal's last record is a commit of so many rows: one that was cut has none there."""
    size = layout.COMMIT_DTYPE.itemsize
    with open(journal, "rb") as file:
        file.seek(-min(size, os.fstat(file.fileno()).st_size), os.SEEK_END)
        tail = file.read(size)
    if len(tail) < size:
        return False
    record = np.frombuffer(tail, layout.COMMIT_DTYPE)[0]
    return int(record["tag"]) == layout.COMMIT and int(record["rows"]) == rows


def _said(path: Path) -> dict[str, Any]:
    """Mode, start and prompt, from the run's events."""
    config, outcome = _events(path)
    settings = config.get("settings", {})
    prompt = _prompt(settings.get("input", {})) or _text(path)
    said: dict[str, Any] = {
        "mode": visible(str(outcome.get("mode") or settings.get("decode", {}).get("mode", ""))),
        "prompt": visible(prompt[:PROMPT_CHARACTERS].replace("\n", "⏎")),
    }
    started = config.get("time")
    if isinstance(started, int | float) and math.isfinite(started):
        said["started"] = float(started)
    return said


def _events(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first config and the last outcome; empty where there is none."""
    config: dict[str, Any] = {}
    outcome: dict[str, Any] = {}
    with open(path / layout.EVENTS, "rb") as file:
        for line in file:
            if not line.endswith(b"\n"):  # being written
                break
            if b'"config"' in line or b'"outcome"' in line:
                event = json.loads(line)
                config = event if event["kind"] == "config" and not config else config
                outcome = event if event["kind"] == "outcome" else outcome
    return config, outcome


def _prompt(given: dict[str, Any]) -> str:
    """What the user asked, or asked last."""
    asked = [message["content"] for message in given.get("messages") or [] if message["role"] == "user"]
    return str(given.get("prompt") or (asked[-1] if asked else ""))


def _text(path: Path) -> str:
    """The beginning of the text, for a run that does not say what it was asked."""
    run = open_run(path, live=True)
    return run.tokens_at(run.rows()[:PROMPT_CHARACTERS]).text
