"""``sotscope compare``: the same prompt decoded in different ways, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sotscope.cli import options as shared
from sotscope.cli.info import lossiness
from sotscope.cli.terminal import number, output, print_json, printable, table

if TYPE_CHECKING:
    from sotscope.store.reader import Run

app = typer.Typer(add_completion=False)

RunsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...", help="The first one is what the others are compared with.", show_default=False,
        autocompletion=shared.complete_runs,
    ),
]  # fmt: skip


@app.command(epilog=shared.examples("sotscope compare runs/*.sot"))
def command(runs: RunsArgument, as_json: shared.JsonFlag = False) -> None:
    """Where the tokens of runs part, how many a forward they made, and how fast."""
    from sotscope.store.reader import open_run

    opened = [open_run(path) for path in runs]
    lines = [_line(run, opened[0]) for run in opened]
    if as_json:
        print_json({"reference": str(runs[0]), "runs": lines})
        return
    made = table("run", "mode", "tokens", "text", "a forward", "drafts taken", "tokens/s",
                 right=("tokens", "a forward", "drafts taken", "tokens/s"), wraps="run")  # fmt: skip
    for line in lines:
        rate = line["acceptance_rate"]
        taken = "" if rate is None else f"{rate:.0%}"
        made.add_row(
            printable(Path(line["run"]).name), line["mode"], str(line["new_tokens"]), _verdict(line),
            number(line["tokens_per_forward"]), taken, number(line["tokens_per_second"]),
        )  # fmt: skip
    output().print(made)


def _line(run: Run, reference: Run) -> dict[str, Any]:
    ours, theirs = run.tokens.all_ids, reference.tokens.all_ids
    parts = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    if parts is None and len(ours) != len(theirs):
        parts = min(len(ours), len(theirs))
    outcome = run.info()["outcome"] or {}
    drafts = run.drafts
    return {
        "run": str(run.path),
        "mode": outcome.get("mode", ""),
        "lossy": lossiness(run) or None,
        "new_tokens": outcome.get("new_tokens"),
        "first_difference": parts,
        "tokens_per_forward": outcome.get("tokens_per_forward"),
        "acceptance_rate": float(drafts.accepted.mean()) if len(drafts) else None,
        "tokens_per_second": outcome.get("tokens_per_second"),
    }


def _verdict(line: dict[str, Any]) -> str:
    where = line["first_difference"]
    return "identical" if where is None else f"differs from token {where} on"
