"""``sotscope show``: one run, token by token."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from sotscope.cli import options as shared
from sotscope.cli.info import lossiness
from sotscope.cli.terminal import fit, for_stdout, number, output, print_json, printable, say, table
from sotscope.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from sotscope.store.reader import Run

LAST = 40
"""How many rows are shown when nothing else is asked for."""

SHOWN = 5
"""How many likeliest tokens are shown at most."""
CANDIDATES = 20
"""Columns that the likeliest tokens need; other columns are left out for them, in the order of DROPPED."""
COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "row": lambda row: str(row["row"]),
    "pos": lambda row: str(row["pos"]),
    "token": lambda row: str(row["token"])[:16],
    "mode": lambda row: f"{row['mode']}, believed" if row["believed"] else str(row["mode"]),
    "norm": lambda row: number(row.get("norm")),
    "max |h|": lambda row: number(row.get("max_abs")),
    "entropy": lambda row: number(row.get("entropy")),
    "logprob": lambda row: number(row.get("logprob")),
    "margin": lambda row: number(row.get("margin")),
}
DROPPED = ("margin", "max |h|", "logprob", "mode", "norm", "row")

app = typer.Typer(add_completion=False)


Rows = Annotated[
    str | None, typer.Option("--rows", help="Which rows: 10-40, 10- or 7.", metavar="FROM-TO", show_default=False)
]
Last = Annotated[
    int | None, typer.Option("--last", min=1, help=f"The last N rows ({LAST}).", metavar="N", show_default=False)
]
Layer = Annotated[
    int | None,
    typer.Option(
        "--layer",
        help="Layer of the norm and max |h| columns; -1 (default) is the last recorded.",
        show_default=False,
    ),
]
Seq = Annotated[
    int | None,
    typer.Option("--seq", help="One sequence with its ancestors, in the order of positions.", show_default=False),
]
TextOnly = Annotated[bool, typer.Option("--text", help="Print the text alone, prompt included.")]


@app.command(
    epilog=shared.examples(
        "sotscope show runs/sky.sot",
        "sotscope show runs/sky.sot --rows 30-60 --layer 12",
        "sotscope show runs/sky.sot --text",
    )
)
def command(
    run: shared.RunArgument,
    rows: Rows = None,
    last: Last = None,
    layer: Layer = None,
    seq: Seq = None,
    text: TextOnly = False,
    as_json: shared.JsonFlag = False,
) -> None:
    """A run token by token: norms, entropy, and what the model would have said instead."""
    from sotscope.store.reader import open_run

    found = open_run(run)
    view = View(found, seq, found.layers[-1] if layer is None else _layer(found, layer))
    chosen = _chosen(len(view.rows), rows, last)
    if as_json:
        print_json(view.as_dict(chosen))
    elif text:
        print(for_stdout(view.text))
    else:
        _print(view, chosen)


class View:
    """The rows of one sequence, or of the whole run, as plain values."""

    def __init__(self, run: Run, seq: int | None, layer: int) -> None:
        self.run = run
        self.layer = layer
        tokens = run.tokens_of(seq)
        last = int(run.sequences["seq_id"].iloc[-1]) if len(run.sequences) else None
        spoken = tokens if seq is not None else run.tokens_of(last)  # what was retracted is not said
        self.text, self.generated = spoken.text, spoken.generated
        places = {place: row for row, place in enumerate(zip(run.tokens.seq, run.tokens.pos, strict=True))}
        self.rows = [places[place] for place in zip(tokens.seq, tokens.pos, strict=True)]
        if seq is None:
            self.rows = list(range(len(run)))
        self._tokens = run.tokens
        scalars = {name: run.scalars(name) for name in run.scalar_names}
        self._scalars = {name: values for name, values in scalars.items() if values.ndim <= 2}  # none of each head
        self._top_id, self._top_logprob = run.top
        self.lossy = lossiness(run)
        drafts = run.drafts if self.lossy else None
        self._believed = set() if drafts is None else set(drafts.loc[drafts["reason"] == "believed", "target"])

    def as_dict(self, chosen: range) -> dict[str, Any]:
        """The object of ``--json``."""
        return {
            "run": self.run.path,
            "layer": self.layer,
            "lossy": self.lossy or None,
            "text": self.text,
            "generated": self.generated,
            "hidden": len(self.rows) - len(chosen),
            "rows": [self.row(place) for place in chosen],
        }

    def row(self, place: int) -> dict[str, Any]:
        """Row ``place`` of the view: its token, its scalars (of ``layer`` where they have layers), and candidates."""
        row, tokens, label = self.rows[place], self._tokens, self.run.pieces.label
        column = self.run.layers.index(self.layer)
        scalars = {name: float(v[row] if v.ndim == 1 else v[row, column]) for name, v in self._scalars.items()}
        following = int(tokens.next_ids[row])
        return {
            "row": row,
            "seq": int(tokens.seq[row]),
            "pos": int(tokens.pos[row]),
            "id": int(tokens.ids[row]),
            "token": label(int(tokens.ids[row])),
            "next_id": following if following >= 0 else None,
            "next": label(following) or None,
            "mode": tokens.modes[row],
            "believed": int(tokens.pos[row]) in self._believed,
            "segment": tokens.segments[row],
            **scalars,
            "top": [
                {"id": int(token), "token": label(int(token)), "probability": math.exp(logprob)}
                for token, logprob in zip(self._top_id[row], self._top_logprob[row], strict=True)
                if token >= 0
            ],
        }


def _layer(run: Run, layer: int) -> int:
    """A recorded layer; negative ones count from the last recorded."""
    layers = run.layers
    if layer < 0 and -layer <= len(layers):
        return layers[layer]
    if layer not in layers:
        raise StoreError(f"layer {layer} was not recorded; recorded are {', '.join(map(str, layers))}.")
    return layer


def _chosen(count: int, rows: str | None, last: int | None) -> range:
    """Which rows of ``count`` are asked for."""
    if rows is not None and last is not None:
        raise ConfigError("give either --rows or --last, not both.")
    if rows is None:
        return range(max(0, count - (LAST if last is None else last)), count)
    match = re.fullmatch(r"\s*(\d+)\s*(?:(-)\s*(\d*))?\s*", rows)
    if not match:
        raise ConfigError(f"--rows {rows!r} is not a range; write 10-40, 10- or 7.")
    first = int(match[1])
    final = first if not match[2] else int(match[3]) if match[3] else count - 1
    if first >= count or final < first:
        raise StoreError(f"rows {rows} are not there; the run has rows 0-{count - 1}.")
    return range(first, min(final + 1, count))


def _print(view: View, chosen: range) -> None:
    console = output()
    if not view.rows:
        say(f"{view.run.path} has no rows yet")
        return
    console.print(_table(view, chosen, console.width))
    console.print(
        Text(
            f"A row is an input token; entropy, logprob (both in nats) and the candidates are about the token chosen "
            f"after it. Norm and max |h|: layer {view.layer}.",
            style="dim",
        )
    )
    if view.lossy:
        console.print(Text(f"The text is {view.lossy}; those are marked believed.", style="yellow"))
    hidden = len(view.rows) - len(chosen)
    if hidden:
        console.print(
            Text(
                f"{hidden} of {len(view.rows)} rows are not shown; --rows 0-{len(view.rows) - 1} shows all.",
                style="dim",
            )
        )


def _table(view: View, chosen: range, width: int) -> Any:
    """As many columns as the terminal has room for; what is left over is for the candidates."""
    rows = [view.row(place) for place in chosen]
    columns = {name: [printable(make(row)) for row in rows] for name, make in COLUMNS.items()}
    if columns["row"] == columns["pos"]:
        del columns["row"]
    room = max(width - fit(columns, DROPPED, width - CANDIDATES), CANDIDATES)
    made = table(*columns, "likeliest next", right=tuple(name for name in columns if name not in ("token", "mode")))
    for index, row in enumerate(rows):
        made.add_row(*(Text(cells[index]) for cells in columns.values()), _candidates(row, room))
    return made


def _candidates(row: dict[str, Any], room: int) -> Text:
    """The likeliest tokens with their probabilities, while there is room; the one that was chosen is bold."""
    out = Text()
    for candidate in row["top"][:SHOWN]:
        entry = Text(printable(candidate["token"]), "bold" if candidate["id"] == row["next_id"] else "")
        entry.append(f" {candidate['probability']:.2f}", "dim")
        if out and (candidate["probability"] < 0.005 or out.cell_len + 2 + entry.cell_len > room):
            break
        out = out + Text("  ") + entry if out else entry
    return out
