"""``sotscope list``: the runs of a folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from sotscope.cli import options as shared
from sotscope.cli.info import lossiness, state
from sotscope.cli.terminal import fit, human, notes, output, print_json, printable, table
from sotscope.errors import StoreError

app = typer.Typer(add_completion=False)

FolderArgument = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Where to look. Default: runs/.", show_default=False)
]


@dataclass(frozen=True)
class Entry:
    """One line of the list. ``problem`` says why the run cannot be opened, or what is wrong with it."""

    name: str
    path: str
    time: float
    mode: str = ""
    lossy: bool = False
    model: str = ""
    rows: int | None = None
    state: str = "broken"
    bytes: int | None = None
    problem: str = ""


COLUMNS: dict[str, Callable[[Entry], str]] = {
    "run": lambda entry: entry.name,
    "recorded": lambda entry: time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.time)),
    "mode": lambda entry: f"{entry.mode}, lossy" if entry.lossy else entry.mode,
    "model": lambda entry: Path(entry.model).name,
    "rows": lambda entry: "" if entry.rows is None else f"{entry.rows:,}",
    "state": lambda entry: entry.state,
    "size": lambda entry: "" if entry.bytes is None else human(entry.bytes),
}
DROPPED = ("recorded", "mode", "model")
"""Columns that are left out where the others would not fit; names begin with the time and the mode."""
STYLES = {"complete": "", "recording": "green", "interrupted": "yellow"}


@app.command(epilog=shared.examples("sotscope list", "sotscope list experiments/ --json"))
def command(folder: FolderArgument = Path("runs"), as_json: shared.JsonFlag = False) -> None:
    """The runs in a folder, newest last."""
    entries = sorted((_entry(path) for path in _runs(folder)), key=lambda entry: (entry.time, entry.name))
    if as_json:
        print_json({"folder": folder, "runs": entries})
    elif entries:
        _print(entries)
    else:
        notes().print(f'no runs in {folder} yet; try: sotscope record "Why is the sky blue?"', soft_wrap=True)


def _runs(folder: Path) -> set[Path]:
    """Folders with a journal, and what is called like a run but has none."""
    from sotscope.store.layout import JOURNAL, SUFFIX
    from sotscope.store.runs import DEFAULT_FOLDER, find_runs

    if (folder / JOURNAL).is_file():
        return {folder}
    if not folder.is_dir():
        if folder == DEFAULT_FOLDER and not folder.exists():
            return set()
        raise StoreError(f"{folder} is not a folder; sotscope list FOLDER lists the runs in one.")
    return {*find_runs(folder), *(path for path in folder.glob(f"*{SUFFIX}") if path.is_dir())}


def _entry(path: Path) -> Entry:
    from sotscope.store.reader import open_run

    try:
        run = open_run(path)
        found: dict[str, Any] = run.info()
        config = run.events("config")
        changed = config[0]["time"] if config else path.stat().st_mtime
    except Exception as error:  # noqa: BLE001 - whatever is wrong with one run, the others are listed
        text = str(error).removeprefix(f"{path} ").removeprefix(f"{path}: ")
        return Entry(path.name, str(path), path.stat().st_mtime, problem=" ".join(text.split()))
    return Entry(
        name=path.name,
        path=str(path),
        time=changed,
        mode=(found["outcome"] or found["settings"].get("decode", {})).get("mode", ""),
        lossy=bool(lossiness(run)),
        model=found["model"].get("name", ""),
        rows=found["rows"],
        state=state(found["complete"], found["recording"]),
        bytes=found["bytes"],
        problem=found["damage"] or "",
    )


def _print(entries: list[Entry]) -> None:
    console = output()
    columns = {name: [printable(make(entry)) for entry in entries] for name, make in COLUMNS.items()}
    fit(columns, DROPPED, console.width)
    made = table(*columns, right=("rows", "size"), wraps="run")
    for index, entry in enumerate(entries):
        style = STYLES.get(entry.state, "red")
        made.add_row(*(Text(cells[index], style if name == "state" else "") for name, cells in columns.items()))
    console.print(made)
    for entry in entries:
        if entry.problem:
            console.print(Text(f"{printable(entry.name)}: {printable(entry.problem)}", style="red"), soft_wrap=True)
