"""``sotscope compare``: the same prompt decoded in different ways, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sotscope.cli import options as shared
from sotscope.cli.bars import WorkBar
from sotscope.cli.info import lossiness
from sotscope.cli.terminal import notes, number, output, print_json, printable, say, table
from sotscope.errors import AnalysisError

if TYPE_CHECKING:
    from sotscope.analysis.report import Report
    from sotscope.store.reader import Run

app = typer.Typer(add_completion=False)

RunsArgument = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...", help="The first one is what the others are compared with.", show_default=False,
        autocompletion=shared.complete_runs,
    ),
]  # fmt: skip
Site = Annotated[
    str | None,
    typer.Option(
        "--site", metavar="SITE", help="Whose states (default: resid).", show_default=False,
        autocompletion=shared.complete_sites,
    ),
]  # fmt: skip
Html = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write a page with all figures.", show_default=False)
]


@app.command(epilog=shared.examples("sotscope compare runs/*.sot", "sotscope compare ar.sot sot.sot --html both.html"))
def command(runs: RunsArgument, site: Site = None, html: Html = None, as_json: shared.JsonFlag = False) -> None:
    """Where the tokens of runs part, how far apart their states are, how many tokens a forward made, and how fast."""
    from sotscope.analysis.comparison import compare
    from sotscope.analysis.page import page
    from sotscope.analysis.pool import Threads
    from sotscope.store.reader import open_run

    if len(runs) < 2:
        raise AnalysisError("give at least two runs to compare.")
    opened = [open_run(path) for path in runs]
    with WorkBar(notes()) as bar:
        bar.stage("compare", 0, 1)
        report = compare(opened, Threads(bar.progress), site=site)
    lines = [{**line, "lossy": lossiness(run) or None} for line, run in zip(_lines(report), opened, strict=True)]
    if html is not None:
        html.parent.mkdir(parents=True, exist_ok=True)
        html.write_text(page(report.title, ", ".join(map(str, runs)), {"runs": len(runs)}, [report], []), "utf-8")
    if as_json:
        print_json({"reference": str(runs[0]), "runs": lines, "report": report.to_dict()})
        return
    _print(lines, report, opened)
    say(f"page: {html}" if html is not None else "with --html FILE the distances as pictures")


def _lines(report: Report) -> list[dict[str, Any]]:
    """One a run; what pandas made NaN in a column of numbers is None again."""
    made: Any = report.tables["runs"]
    return [{key: None if value != value else value for key, value in line.items()} for line in made.to_dict("records")]


def _print(lines: list[dict[str, Any]], report: Report, runs: list[Run]) -> None:
    made = table("run", "mode", "tokens", "text", "states", "a forward", "drafts taken", "tokens/s",
                 right=("tokens", "states", "a forward", "drafts taken", "tokens/s"), wraps="run")  # fmt: skip
    for line in lines:
        rate, where = line["acceptance_rate"], line["first_difference"]
        made.add_row(
            printable(line["run"]), line["mode"], str(line["new_tokens"]),
            "identical" if where is None else f"differs from token {int(where)} on",
            number(line["distance_max"], 2), number(line["tokens_per_forward"]),
            "" if rate is None or rate != rate else f"{rate:.0%}", number(line["tokens_per_second"]),
        )  # fmt: skip
    output().print(made)
    for found in report.findings:
        if found.severity != "note":
            output().print(f"{found.severity}: {printable(found.text)}", soft_wrap=True)
    for text in report.left_out:
        output().print(f"left out: {printable(text)}", soft_wrap=True)
