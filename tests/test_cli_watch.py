"""The text scrolls above the progress line: what a terminal shows in the end is the text, whole and unmixed."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stderr, redirect_stdout
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from sotscope.cli.watch import Watch
from sotscope.events import Alarm, Step

WIDTH = 40
TEXT = "One day, a cat named Luna wandered into a small café on a chilly evening.\n\nIt said:\n\x1b[31mred\r 日本語 end"


class Terminal(io.StringIO):
    """A stream that says it is a terminal, and can tell what is on its screen."""

    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        """The lines left after carriage returns, line feeds, cursor-up and erase-line were obeyed."""
        lines, row, column = [""], 0, 0
        for part in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", self.getvalue()):
            if part == "\r":
                column = 0
            elif part == "\n":
                row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
            elif part.startswith("\x1b["):
                row -= int(part[2:-1] or 1) if part.endswith("A") else 0
                lines[row] = "" if part == "\x1b[2K" else lines[row]
            else:
                lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
                column += len(part)
        return [line.rstrip() for line in lines]


def step(index: int, text: str) -> Step:
    return Step(index, 0, "ar", 3 + index, (1,), (2,), text=text)


def show(text: str, size: int, *, pipe: io.StringIO | None = None, alarm_at: int = -1) -> list[list[str]]:
    """Stream ``text`` in pieces of ``size``; returns the screens after each step and after the end."""
    terminal = Terminal()
    decoder = SimpleNamespace(text=SimpleNamespace(text=""))
    recorded: Any = SimpleNamespace(
        prepared=SimpleNamespace(prompt=SimpleNamespace(ids=[1, 2, 3]), forecast=SimpleNamespace(rows=3 + len(text))),
        rows=3, alarms=[],
        retracted=[], settings=SimpleNamespace(health=SimpleNamespace(recover={})),
        decoder=decoder, writer=SimpleNamespace(bytes_written=2500),
    )  # fmt: skip
    console = Console(file=terminal, force_terminal=True, width=WIDTH, color_system=None, legacy_windows=False)
    screens = []
    streams = redirect_stdout(pipe if pipe is not None else terminal), redirect_stderr(terminal)
    with streams[0], streams[1], Watch(recorded, console, text=True, bar=True) as watch:
        for index in range(0, len(text), size):
            fresh = text[index : index + size]
            decoder.text.text += fresh
            if index == alarm_at:
                recorded.alarms.append(Alarm("overflow", "too large"))
            watch.step(step(index, fresh))
            assert watch._live is not None
            watch._live.refresh()
            screens.append(terminal.screen())
    return [*screens, terminal.screen()]


def words(lines: list[str]) -> list[str]:
    return " ".join(lines).split()


@pytest.mark.parametrize("size", [1, 7, 200])
def test_the_screen_holds_the_text_and_nothing_else_in_the_end(size: int) -> None:
    screens = show(TEXT, size)
    safe = TEXT.replace("\x1b", r"\x1b").replace("\r", r"\x0d")
    assert words(screens[-1]) == safe.split()
    assert all(len(line) <= WIDTH for line in screens[-1])
    assert screens[-1][2] == "", "an empty line stays one"


def test_while_it_streams_the_text_stands_above_one_progress_line() -> None:
    screens = show(TEXT, 6)
    for number, lines in enumerate(screens[:-1], 1):
        shown = [line for line in lines if line]
        assert "tokens" in shown[-1]
        assert not any("tokens" in line for line in shown[:-1])
        safe = TEXT[: 6 * number].replace("\x1b", r"\x1b").replace("\r", r"\x0d")
        assert words(shown[:-1]) == safe.split()


def test_an_alarm_is_shown_once_between_the_lines() -> None:
    screens = show("one two\nthree four\n", 4, alarm_at=8)
    assert words(screens[-1]).count("warning:") == 1
    assert [word for word in words(screens[-1]) if word in ("one", "two", "three", "four")] == [
        "one", "two", "three", "four",
    ]  # fmt: skip


def test_in_a_file_the_text_is_left_as_it_is() -> None:
    pipe = io.StringIO()
    screens = show(TEXT, 5, pipe=pipe)
    assert pipe.getvalue() == TEXT + "\n"
    assert words(screens[-1]) == []
