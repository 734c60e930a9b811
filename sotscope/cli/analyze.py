"""``sotscope analyze``: what the states of a run say, in sentences, tables, and one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from sotscope.catalog import ANALYZERS
from sotscope.cli import options as shared
from sotscope.cli.bars import WorkBar
from sotscope.cli.terminal import notes, output, print_json, printable, say, table
from sotscope.errors import AnalysisError, ConfigError

if TYPE_CHECKING:
    from sotscope.analysis.contracts import Analyzer
    from sotscope.analysis.report import Report

app = typer.Typer(add_completion=False)

WHICH = "Which part of the run"

Only = Annotated[
    str | None,
    typer.Option(
        "--only", metavar="NAMES", help="These analyzers, with commas; by default all that are quick.",
        show_default=False, autocompletion=lambda incomplete: shared.last_of(incomplete, ANALYZERS.names()),
    ),
]  # fmt: skip
Layers = Annotated[
    str | None, shared.option(WHICH, "Layers such as 0-9,29 or -1 for the last.", "--layers", metavar="LAYERS")
]
Tokens = Annotated[
    str | None, shared.option(WHICH, "Rows FROM:TO, as in Python: 10:200, :50, -20:.", "--tokens", metavar="FROM:TO")
]
Part = Annotated[
    str | None,
    shared.option(
        WHICH, "prompt or generated: what was given or what the model wrote.", "--part", metavar="PART",
        autocompletion=lambda: ["prompt", "generated"],
    ),
]  # fmt: skip
Seq = Annotated[int | None, shared.option(WHICH, "One sequence with its ancestors.", "--seq", metavar="N")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="ANALYZER.PARAM=VALUE", show_default=False,
        help="A parameter of an analyzer: pca.site=mlp_out, lens.full=true (repeatable).",
    ),
]  # fmt: skip
AllRows = Annotated[bool, typer.Option("--all-rows", help="Count sink rows in, which statistics leave out.")]
Html = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write a page with all figures; works offline.", show_default=False),
]
DaskOption = Annotated[
    str | None,
    typer.Option(
        "--dask", metavar="ADDRESS", help="Work on this dask cluster (its workers must see the run's path).",
        show_default=False,
    ),
]  # fmt: skip


@app.command(
    epilog=shared.examples(
        "sotscope analyze runs/a.sot",
        "sotscope analyze runs/a.sot --html report.html",
        "sotscope analyze runs/a.sot --only pca,dims --layers 0-9 --part generated --json",
        "sotscope analyze runs/a.sot --only project --set project.method=umap",
    )
)
def command(
    run: shared.RunArgument,
    only: Only = None,
    layers: Layers = None,
    tokens: Tokens = None,
    part: Part = None,
    seq: Seq = None,
    settings: Set = None,
    all_rows: AllRows = False,
    html: Html = None,
    dask: DaskOption = None,
    as_json: shared.JsonFlag = False,
) -> None:
    """What the states of a run say: sizes, change, dimensions, structure, drafts. Findings first, worst on top."""
    from sotscope.analysis.page import page, run_facts
    from sotscope.analysis.pool import Dask, Threads
    from sotscope.analysis.run import answerable, make_view, parameters, run_one

    names = [name.strip() for name in only.split(",") if name.strip()] if only else None
    params = _params(settings or [])
    view = make_view(run, layers=_layers(layers), tokens=_span(tokens), seq=seq, part=part)
    able, skipped = answerable(view, names)
    if names and skipped:
        raise AnalysisError(skipped[0])
    unused = set(params) - {analyzer.name for analyzer in able}
    if unused:
        raise AnalysisError(
            f"--set {sorted(unused)[0]}: that analyzer is not run here; there are {', '.join(a.name for a in able)}."
        )
    given = {analyzer.name: _given(analyzer, params, all_rows) for analyzer in able}
    for analyzer in able:
        parameters(analyzer, given[analyzer.name])  # a mistake is told before the work begins
    reports: list[Report] = []
    with WorkBar(notes()) as bar:
        pool = Dask(dask, bar.progress) if dask else Threads(bar.progress)
        for number, analyzer in enumerate(able):
            bar.stage(analyzer.name, number, len(able))
            try:
                reports.append(run_one(analyzer, view, given[analyzer.name], pool))
            except AnalysisError as error:
                if names:
                    raise
                skipped.append(f"{analyzer.name}: {error}")  # the others can still say what they see
    if html is not None:
        _write(html, page(view.run.path.name, str(view.run.path), run_facts(view.run), reports, skipped))
    if as_json:
        print_json({"run": str(view.run.path), "rows": len(view), "layers": list(view.layers),
                    "reports": [report.to_dict() for report in reports], "skipped": skipped})  # fmt: skip
        return
    _print(reports, skipped)
    say(f"page: {html}" if html is not None else "with --html FILE the same with figures")


def _given(analyzer: Analyzer, params: dict[str, dict[str, Any]], all_rows: bool) -> dict[str, Any]:
    """The parameters of one analyzer: --all-rows for those that know it, then what --set says."""
    everywhere = {"all_rows": True} if all_rows and "all_rows" in analyzer.Params.model_fields else {}
    return {**everywhere, **params.get(analyzer.name, {})}


def _print(reports: list[Report], skipped: list[str]) -> None:
    from sotscope.analysis.page import ranked

    made = table("", "analyzer", "finding", wraps="finding")
    for name, found in ranked(reports):
        made.add_row(found.severity, name, printable(found.text))
    output().print(made)
    for report in reports:
        for line in report.left_out:
            output().print(f"{report.name} leaves out {printable(line)}", soft_wrap=True)
    for line in skipped:
        output().print(f"not run: {printable(line)}", soft_wrap=True)


def _layers(text: str | None) -> tuple[int, ...] | None:
    """``0-9,29,-1`` as numbers. Raises ConfigError."""
    if text is None or text == "all":
        return None
    found: list[int] = []
    try:
        for piece in text.split(","):
            first, dash, last = piece.strip().partition("-") if not piece.strip().startswith("-") else (piece, "", "")
            found += range(int(first), int(last) + 1) if dash else [int(first)]
    except ValueError:
        raise ConfigError(f"--layers {text!r}: write numbers and ranges with commas, such as 0-9,29.") from None
    if not found:
        raise ConfigError(f"--layers {text!r} names no layer.")
    return tuple(found)


def _span(text: str | None) -> tuple[int | None, int | None] | None:
    if text is None:
        return None
    first, colon, last = text.partition(":")
    try:
        if not colon:
            raise ValueError
        return (int(first) if first.strip() else None, int(last) if last.strip() else None)
    except ValueError:
        raise ConfigError(f"--tokens {text!r}: write FROM:TO, such as 10:200 or :50.") from None


def _params(settings: list[str]) -> dict[str, dict[str, Any]]:
    """``pca.site=mlp_out`` and the like, by analyzer. Raises ConfigError."""
    found: dict[str, dict[str, Any]] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        name, dot, param = key.strip().partition(".")
        if not (equals and dot and name and param):
            raise ConfigError(f"--set {setting!r}: write ANALYZER.PARAM=VALUE, such as pca.site=mlp_out.")
        try:
            found.setdefault(name, {})[param] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigError(f"--set {setting!r}: {value!r} is no value.") from None
    return found


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
