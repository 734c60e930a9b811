"""``sotscope bench``: the measured claims, to be measured again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from sotscope.cli import options as shared
from sotscope.cli.extra import capture_extra
from sotscope.cli.terminal import notes, number, output, print_json, table
from sotscope.cli.watch import Spinner

app = typer.Typer(
    add_completion=False,
    help="Measure what is claimed: the cost of capture and of the store.",
    epilog=shared.examples("sotscope bench capture", "sotscope bench store --json"),
)

Pairs = Annotated[int, typer.Option("--pairs", min=1, help="How often both sides are measured, in turn.", metavar="N")]
NewTokens = Annotated[int, typer.Option("--max-new-tokens", "-n", min=1, help="Tokens a measurement.", metavar="N")]
Steps = Annotated[int, typer.Option("--steps", min=1, help="Steps a measurement.", metavar="N")]
Model = Annotated[
    str, typer.Option("--model", "-m", help="Which model.", metavar="MODEL", autocompletion=shared.complete_models)
]


@app.command("capture", epilog=shared.examples("sotscope bench capture --pairs 9"))
def capture(
    model: Model = "smollm2", new_tokens: NewTokens = 128, pairs: Pairs = 7, as_json: shared.JsonFlag = False
) -> None:
    """How fast the model decodes while it is recorded, next to plain decoding."""
    with Spinner(notes(), lines=True) as spinner:
        with capture_extra("bench"):
            from sotscope.bench.capture import run
        found = run(spinner.report, model=model, new_tokens=new_tokens, pairs=pairs)
    _report(found, as_json=as_json)


@app.command("store", epilog=shared.examples("sotscope bench store --steps 500"))
def store(steps: Steps = 200, pairs: Pairs = 7, as_json: shared.JsonFlag = False) -> None:
    """What a step costs on its way to the disk, next to a raw write of the same bytes."""
    with Spinner(notes(), lines=True) as spinner:
        with capture_extra("bench"):
            from sotscope.bench.store import run
        found = run(spinner.report, steps=steps, pairs=pairs)
    _report(found, as_json=as_json)


def _report(found: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    made = table("measure", "value")
    made.columns[1].no_wrap = False
    for name, value in _flat(found):
        made.add_row(name, number(value, 4) if isinstance(value, float) else str(value))
    output().print(made)


def _flat(found: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Nested names joined with dots; a short list of numbers stays one value."""
    for name, value in found.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        elif isinstance(value, list | tuple) and all(isinstance(entry, float) for entry in value):
            yield f"{before}{name}", ", ".join(number(entry, 4) for entry in value)
        else:
            yield f"{before}{name}", value
