"""What a person sees while a model is loaded and while it decodes: the text on stdout, one progress line on stderr."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sotscope.cli.terminal import for_stdout, human, printable, say, warn
from sotscope.events import Step

TIMED_S = 2.0
"""Seconds after which the speed is worth a forecast."""


class Spinner:
    """Says what takes time: with a spinner on a terminal; elsewhere, if ``lines``, in lines."""

    def __init__(self, console: Console, *, quiet: bool = False, lines: bool = False) -> None:
        self._lines = lines and not console.is_terminal
        self._status = console.status("starting") if console.is_terminal and not quiet else None

    def __enter__(self) -> Spinner:
        if self._status is not None:
            self._status.start()
        return self

    def report(self, text: str) -> None:
        if self._status is not None:
            self._status.update(printable(text))
        elif self._lines:
            say(text)

    def stop(self) -> None:
        if self._status is not None:
            self._status.stop()

    def __exit__(self, *_: object) -> None:
        self.stop()


class Watch:
    """Shows the steps of one recording; use as a context manager.

    ``text``: stream what the model writes to stdout. ``bar``: a progress line, if stderr is a terminal. Where both
    are one terminal, the text scrolls above the line: whole lines are printed, the unfinished one is part of the live
    display.
    """

    def __init__(self, recorded: Any, console: Console, *, text: bool, bar: bool) -> None:
        self._recorded = recorded
        self._console = console
        self._text = text
        live = bar and console.is_terminal and not (text and _is_pipe(sys.stdout))
        self._together = live and text and sys.stdout.isatty()
        self._progress = _Progress(recorded)
        self._says_time = bar and not live and not text
        self._tail = ""
        self._shown = 0
        self._alarms = 0
        self._retracted = 0
        # what goes into a file or a pipe cannot be taken back there, so it is written when it is final
        self._waits = bool(recorded.settings.health.recover) and not self._together
        self._live = (
            Live(self, console=console, transient=True, redirect_stdout=False, refresh_per_second=8) if live else None
        )

    def __enter__(self) -> Watch:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._write(self._recorded.decoder.text.text[self._shown :], final=True)
        if self._live is not None:
            self._live.stop()
        if self._together:
            self._console.print(Text(self._tail), end="")
        if self._text and self._shown and not self._recorded.decoder.text.text.endswith("\n"):
            self._put("\n")
        self._show_alarms()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        if self._tail:
            yield Text(self._tail)
        yield self._progress

    def step(self, step: Step) -> None:
        self._show_alarms()
        self._take_back(step)
        self._progress.step(step)
        if self._says_time and self._progress.elapsed > TIMED_S:
            self._says_time = False
            say(f"{self._progress.rate:.1f} tokens/s, about {self._progress.left} s left at most")
        self._write(step.text)
        self._show_alarms()

    def _show_alarms(self) -> None:
        for alarm in self._recorded.alarms[self._alarms :]:
            warn(alarm.message)
            self._alarms += 1

    def _take_back(self, step: Step) -> None:
        """A recovery went on from earlier: on a terminal, the text that is kept begins a line of its own."""
        for text in self._recorded.retracted[self._retracted :]:
            warn(text)
            self._retracted += 1
            kept = self._recorded.decoder.text.text
            self._shown = 0 if self._waits else len(kept) - len(step.text)
            if self._together:
                self._console.print(Text(self._tail, style="strike"))
                self._tail = printable(kept[: self._shown].rpartition("\n")[2])

    # -- the text ----------------------------------------------------------------------------------------------

    def _write(self, text: str, *, final: bool = False) -> None:
        if self._waits and not final:
            return
        self._shown += len(text)
        if not self._text or not text:
            return
        if self._together:
            self._scroll(printable(text))
        else:
            self._put(for_stdout(text))

    def _put(self, text: str) -> None:
        """Plain text to stdout. When nobody reads it any more, the recording goes on."""
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            self._text = False
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _scroll(self, text: str) -> None:
        """Print the lines that are finished, wrapped as the terminal is wide; keep the rest in the live display."""
        *lines, self._tail = (self._tail + text).split("\n")
        for line in lines:
            self._console.print(Text(line))
        if cell_len(self._tail) > self._console.width:
            *wrapped, rest = Text(self._tail).wrap(self._console, self._console.width)
            for part in wrapped:
                self._console.print(part)
            self._tail = rest.plain


def _is_pipe(stream: Any) -> bool:
    """What goes into a pipe (``| tee``) may come out on this terminal, in the middle of a progress line."""
    try:
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    except OSError:
        return False


class _Progress:
    """One line: a bar and as many numbers as there is room for, the most wanted first."""

    def __init__(self, recorded: Any) -> None:
        self._recorded = recorded
        self._prompt = len(recorded.prepared.prompt.ids)
        self._limit: int = recorded.prepared.forecast.rows - self._prompt
        self._new = 0
        self._first = 0
        self._started: float | None = None

    def step(self, step: Step) -> None:
        if step.mode == "prompt":
            return
        self._new += sum(token >= 0 for token in step.next_ids)
        if self._started is None:  # the first step is where the clock starts, so its tokens are not timed
            self._started, self._first = time.monotonic(), self._new

    @property
    def elapsed(self) -> float:
        """Seconds since the first step was done."""
        return time.monotonic() - self._started if self._started is not None else 0.0

    @property
    def rate(self) -> float:
        """Tokens a second so far; 0 when nothing has been measured."""
        timed, elapsed = self._new - self._first, self.elapsed
        return timed / elapsed if elapsed > 0 else 0.0

    @property
    def left(self) -> int:
        """Seconds, if no token ends the text before its limit."""
        return round((self._limit - self._new) / self.rate)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        reading = self._started is None
        done, total = (self._recorded.rows, self._prompt) if reading else (self._new, self._limit)
        text = ""
        for part in self._parts(f"{done}/{total} {'prompt tokens' if reading else 'tokens'}"):
            longer = f"{text} · {part}" if text else part
            if len(longer) > options.max_width - 22:
                break
            text = longer
        line = Table.grid(padding=(0, 2))
        line.add_row(ProgressBar(total=max(total, 1), completed=done, width=18), Text(text, style="dim"))
        yield line

    def _parts(self, done: str) -> Iterator[str]:
        yield done
        if self.rate:
            left = self.left
            yield f"{self.rate:.1f} tokens/s"
            yield f"{left // 60}:{left % 60:02d} left"
        yield f"{self._recorded.rows} rows"
        yield human(self._recorded.writer.bytes_written)
