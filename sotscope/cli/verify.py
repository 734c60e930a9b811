"""``sotscope verify``: is a run what its journal says?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from sotscope.cli import options as shared
from sotscope.cli.terminal import output, print_json, warn

app = typer.Typer(add_completion=False)

Repair = Annotated[
    bool, typer.Option("--repair", help="Publish anew what the journal holds. Deletes nothing.", show_default=False)
]


@app.command(epilog=shared.examples("sotscope verify runs/sky.sot", "sotscope verify runs/sky.sot --repair"))
def command(run: shared.RunArgument, repair: Repair = False, as_json: shared.JsonFlag = False) -> None:
    """Check every step of a run against its checksums; exit code 1 when something is wrong."""
    from sotscope.store.verify import verify

    verdict = verify(run, repair=repair)
    if as_json:
        print_json({**asdict(verdict), "sound": verdict.sound})
    for problem in verdict.problems:
        warn(problem)
    if not as_json and verdict.sound:
        ending = "" if verdict.complete else "; its recording did not come to its end"
        repaired = "; published anew" if verdict.repaired else ""
        output().print(
            f"{run} is sound: {verdict.rows} rows in {verdict.steps} steps, every checksum right{ending}{repaired}.",
            soft_wrap=True,
        )
    raise typer.Exit(0 if verdict.sound else 1)
