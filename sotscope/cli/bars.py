"""A progress bar for work in stages, on a terminal; elsewhere silence (the result speaks)."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


class WorkBar:
    """``stage`` names what is done now, ``progress`` (a pool's) how far it is. A context manager."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(24),
            TextColumn("{task.fields[what]}"),
            TimeElapsedColumn(),
        )
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=1.0, what="")
        self._stage, self._of = 0, 1

    def __enter__(self) -> WorkBar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def stage(self, name: str, number: int, of: int) -> None:
        self._stage, self._of = number, max(1, of)
        self._bar.update(self._task, description=name, completed=number / self._of, what="")

    def progress(self, label: str, done: int, of: int) -> None:
        part = (self._stage + (done / of if of else 0.0)) / self._of
        self._bar.update(self._task, completed=part, what=f"{label} {done}/{of}")
