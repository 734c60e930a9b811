"""What the terminal gets: messages, tables, text made safe, and the one JSON object of ``--json``."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from sotscope.plain import plain

PIPE_WIDTH = 160
"""Columns of a table that goes into a file or pipe, where nobody's window is too narrow."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def say(message: str) -> None:
    """One line on stderr."""
    print(f"sotscope: {' '.join(printable(message).split())}", file=sys.stderr, flush=True)


def warn(message: str) -> None:
    say(f"warning: {message}")


def printable(text: str) -> str:
    """Text that cannot steer a terminal: control characters (but line ends and tabs) are spelled out."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def for_stdout(text: str) -> str:
    """Text as it is for a file or pipe, made safe for a terminal."""
    return printable(text) if sys.stdout.isatty() else text


def output() -> Console:
    """The console of reports."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(highlight=False, markup=False, emoji=False, width=wide)


def notes() -> Console:
    """The console of progress and remarks: stderr."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


GAP = 2
"""Spaces between two columns of a table."""


def table(*columns: str, right: tuple[str, ...] = (), wraps: str = "") -> Table:
    """An empty table. ``right`` names the columns of numbers, ``wraps`` the one that gives way where room is short."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for name in columns:
        justify: JustifyMethod = "right" if name in right else "left"
        made.add_column(name, justify=justify, no_wrap=name != wraps, overflow="fold" if name == wraps else "ellipsis")
    return made


def fit(columns: dict[str, list[str]], dropped: Sequence[str], room: int) -> int:
    """Leave columns (title to cells) out, in the order of ``dropped``, until the others fit; returns their width."""
    for name in [*(name for name in dropped if name in columns), ""]:
        width = sum(max(map(cell_len, [title, *cells])) + GAP for title, cells in columns.items())
        if width <= room or not name:
            break
        del columns[name]
    return width


def heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def facts(pairs: Mapping[str, Any]) -> Table:
    """Two columns, names and values; what is None or empty is left out."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="cyan", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in pairs.items():
        if value not in (None, "", [], {}):
            made.add_row(name, value if isinstance(value, Text) else Text(printable(str(value))))
    return made


def print_json(data: Mapping[str, Any]) -> None:
    """The object of ``--json``: one line, strict JSON, the last thing on stdout."""
    print(json.dumps(plain(data), allow_nan=False), flush=True)


def number(value: float | None, digits: int = 3) -> str:
    """A number in few characters; a dash where there is none."""
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}g}"


def human(count: float) -> str:
    """Bytes as a person reads them; the store's own function, imported late because zarr comes with it."""
    from sotscope.store.forecast import human as words

    return words(count)


def count(value: int, thing: str) -> str:
    """``1 row``, ``3 rows``, ``1,200 rows``."""
    return f"{value:,} {thing}" if value == 1 else f"{value:,} {thing}s"


def lossy(policy: str, believed: int, tokens: int) -> str:
    """What a reader must know of a text that need not be the model's own; ``policy`` is the last one."""
    name = f" ({policy})" if policy != "exact" else " in part"
    verb = "is" if believed == 1 else "are"
    return f"lossy{name}: {believed} of {count(tokens, 'token')} {verb} not what ar would have chosen"
