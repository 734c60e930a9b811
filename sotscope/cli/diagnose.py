"""``sotscope diagnose``: what went wrong in a finished run, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from sotscope.cli import options as shared
from sotscope.cli.settings import with_options
from sotscope.cli.terminal import count, output, print_json, printable

if TYPE_CHECKING:
    from sotscope.health.diagnose import Diagnosis, Found, SequenceDiagnosis

app = typer.Typer(add_completion=False)

Monitors = Annotated[
    list[str] | None,
    typer.Option(
        "--monitor", "--monitors", metavar="MONITOR", show_default=False, autocompletion=shared.complete_monitors,
        help="Judge with this monitor only, with parameters if wanted (repetition:tokens=48); repeatable.",
    ),
]  # fmt: skip
COLOURS = {"critical": "bold red", "warning": "yellow"}


@app.command(
    epilog=shared.examples("sotscope diagnose runs/sky.sot", "sotscope diagnose sky.sot --monitor repetition:tokens=48")
)
def command(run: shared.RunArgument, monitor: Monitors = None, as_json: shared.JsonFlag = False) -> None:
    """What went wrong in a run: loops, collapsed or exploding states, NaN; where it began, and what to try."""
    from sotscope.health.diagnose import diagnose
    from sotscope.store.reader import open_run

    wanted = dict(with_options("monitors", text) for text in monitor) if monitor else None
    found = diagnose(open_run(run), wanted)
    if as_json:
        print_json(found.to_dict())
    else:
        _print(found)


def _print(found: Diagnosis) -> None:
    out = output()
    judged = f"{count(found.rows, 'row')}, {count(len(found.monitors), 'monitor')}"
    if found.verdict == "healthy":
        out.print(f"healthy: nothing wrong in {judged}.")
    for one in found.sequences:
        if one.alarms and len(found.sequences) > 1:
            out.print(f"sequence {one.seq} ({count(one.rows, 'row')}, {one.finish}):")
        for alarm in one.alarms:
            for line in _lines(alarm, one):
                out.print(line, soft_wrap=True)
    if found.verdict != "healthy":
        out.print(f"judged: {judged}.")
    for why in found.left_out:
        out.print(Text(f"not judged: {printable(why)}", style="dim"), soft_wrap=True)


def _lines(alarm: Found, one: SequenceDiagnosis) -> Iterator[Text]:
    """An alarm: what, where and how long, the words there, what moved first, what to try."""
    span = max(1, alarm.end + 1 - alarm.onset)
    title = Text.assemble(
        (f"{alarm.severity}: {alarm.kind}", COLOURS.get(alarm.severity, "")),
        printable(f" from position {alarm.onset} on, for {count(span, 'token')}: {alarm.message}."),
    )
    yield title
    if alarm.before or alarm.words:
        before, words = (" ".join(printable(text).split()) for text in (alarm.before, alarm.words))
        yield Text.assemble("  there: ", (f"{before} ", "dim"), (f"> {words} ...", ""))
    yield Text(f"  first: {_moved(alarm)}")
    if alarm.advice:
        yield Text(f"  try: {alarm.advice}.")


def _moved(alarm: Found) -> str:
    """What moved first, the earliest first; else the layer that the monitor itself names."""
    moves = sorted(alarm.moved.values(), key=lambda one: one["pos"])
    if moves:
        return "; then ".join(_did(one) for one in moves)
    layer, head = alarm.evidence.get("layer"), alarm.evidence.get("head")
    if layer is None:
        return "no layer or head left what was usual before"
    return f"layer {layer}" if head is None else f"head {head} of layer {layer}"


def _did(moved: Mapping[str, Any]) -> str:
    who = f"head {moved['head']} of layer {moved['layer']}" if "head" in moved else f"layer {moved['layer']}"
    more = moved["by"] > 0
    if moved["what"] == "change":
        return f"the states of {who} changed {'more' if more else 'less'} from token to token (position {moved['pos']})"
    return f"the norm of {who} {'grew' if more else 'shrank'} (position {moved['pos']})"
