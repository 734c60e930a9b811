"""``sotscope bench``: the measured claims, to be measured again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sotscope.cli import options as shared
from sotscope.cli.bench_decode import Bar, refuse_plot, show
from sotscope.cli.dashboard import dashboard_extra
from sotscope.cli.extra import capture_extra
from sotscope.cli.terminal import notes, number, output, print_json, say, table
from sotscope.cli.watch import Spinner

app = typer.Typer(
    add_completion=False,
    help="Measure what is claimed: the cost of capture, of the store and of analysis, the speed of decoding, the page, "
    "whether a collapse is noticed.",
    epilog=shared.examples("sotscope bench capture", "sotscope bench store --json", "sotscope bench decode --quick"),
)

Pairs = Annotated[int, typer.Option("--pairs", min=1, help="How often both sides are measured, in turn.", metavar="N")]
NewTokens = Annotated[int, typer.Option("--max-new-tokens", "-n", min=1, help="Tokens a measurement.", metavar="N")]
Steps = Annotated[int, typer.Option("--steps", min=1, help="Steps a measurement.", metavar="N")]
Model = Annotated[
    str, typer.Option("--model", "-m", help="Which model.", metavar="MODEL", autocompletion=shared.complete_models)
]
Prompts = Annotated[
    Path | None,
    typer.Option(
        "--prompts", metavar="FILE", show_default=False,
        help='Your own prompts, one a line: {"kind": "chat", "prompt": "Hello"}; "raw": true for no chat template.',
    ),
]  # fmt: skip
Quick = Annotated[bool, typer.Option("--quick", help="Two prompts a kind, one round, 48 tokens: minutes, not hours.")]
Tokens = Annotated[
    int | None,
    typer.Option("--tokens", min=2, help="Tokens decoded of each prompt [128].", metavar="N", show_default=False),
]
Rounds = Annotated[
    int,
    typer.Option("--rounds", min=1, help="How often each prompt is decoded [1].", metavar="N", show_default=False),
]
Modes = Annotated[str, typer.Option("--modes", help="What is measured beside ar, with commas.", metavar="MODES")]
Slow = Annotated[bool, typer.Option("--slow", help="Also the full lens, t-SNE and UMAP, timed apart.")]
Minutes = Annotated[
    float, typer.Option("--minutes", min=0.1, help="How long the page watches while its memory grows.", metavar="MIN")
]
HealthQuick = Annotated[
    bool, typer.Option("--quick", help="Two prompts a kind, 128 tokens: minutes, not most of an hour.")
]
Resume = Annotated[
    Path | None,
    typer.Option("--resume", metavar="DIR", show_default=False,
                 help="Keep finished parts in this folder, and go on from those that are there."),
]  # fmt: skip
HealthTokens = Annotated[
    int | None,
    typer.Option("--tokens", min=32, help="Tokens written after each prompt [512].", metavar="N", show_default=False),
]
Only = Annotated[str, typer.Option("--only", help="What is measured, with commas.", metavar="PARTS")]
Plot = Annotated[
    Path | None,
    typer.Option("--plot", help="Draw it: an HTML file (and a PNG, with kaleido).", metavar="FILE", show_default=False),
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


@app.command(
    "decode",
    epilog=shared.examples(
        "sotscope bench decode --quick",
        "sotscope bench decode --modes lookup,sot --prompts mine.jsonl --plot speed.html",
    ),
)
def decode(
    model: Model = "smollm2",
    prompts: Prompts = None,
    quick: Quick = False,
    tokens: Tokens = None,
    rounds: Rounds = 1,
    modes: Modes = "lookup,sot,dmtd,combine",
    plot: Plot = None,
    as_json: shared.JsonFlag = False,
) -> None:
    """How fast each mode decodes, next to plain decoding and to transformers' generate, on prompts of four kinds."""
    if plot is not None:
        refuse_plot(plot)
    with capture_extra("bench"):
        from sotscope.bench.decode import run
    wanted = [mode.strip() for mode in modes.split(",") if mode.strip()]
    with Bar() as bar:
        found = run(
            bar.report, model=model, prompts=prompts, quick=quick, tokens=tokens, rounds=rounds, modes=wanted,
            advance=bar.advance,
        )  # fmt: skip
    if plot is not None:
        from sotscope.bench.decode_plot import draw

        notice = draw(found, plot)
        say(f"drawn: {plot}")
        if notice:
            say(notice)
    if as_json:
        print_json(found)
    else:
        show(found)


@app.command("analyze", epilog=shared.examples("sotscope bench analyze --json"))
def analyze(model: Model = "smollm2", slow: Slow = False, as_json: shared.JsonFlag = False) -> None:
    """Seconds and peak memory of all quick analyzers over 2,000 and over 20,000 tokens."""
    with Spinner(notes(), lines=True) as spinner:
        with capture_extra("bench"):
            from sotscope.bench.analyze import run
        found = run(spinner.report, model=model, slow=slow)
    _report(found, as_json=as_json)


@app.command(
    "health",
    epilog=shared.examples("sotscope bench health --resume bench-health", "sotscope bench health --quick --json"),
)
def health(
    model: Model = "smollm2",
    prompts: Prompts = None,
    quick: HealthQuick = False,
    tokens: HealthTokens = None,
    resume: Resume = None,
    as_json: shared.JsonFlag = False,
) -> None:
    """Whether monitors notice that a text collapses, how early, what recovers it, and what that costs."""
    with capture_extra("bench"):
        from sotscope.bench.health import run
    with Bar() as bar:
        found = run(
            bar.report, model=model, prompts=prompts, quick=quick, tokens=tokens, resume=resume, advance=bar.advance
        )
    _report(found, as_json=as_json)


@app.command(
    "dashboard",
    epilog=shared.examples("sotscope bench dashboard --json", "sotscope bench dashboard --only pixels,command"),
)
def dashboard(
    model: Model = "smollm2",
    tokens: NewTokens = 96,
    pairs: Pairs = 7,
    minutes: Minutes = 10,
    only: Only = "pixels,command,decode,open,growth",
    as_json: shared.JsonFlag = False,
) -> None:
    """The live page in a real Chromium: how soon it shows and obeys, what looking costs, whether memory grows."""
    with Spinner(notes(), lines=True) as spinner:
        with dashboard_extra("bench dashboard"), capture_extra("bench dashboard"):
            import sotscope_dashboards.serve  # noqa: F401 - what the server needs is missed before it is started
            from sotscope.bench.dashboard import Sizes, run
        found = run(
            spinner.report, model=model, parts=[part.strip() for part in only.split(",") if part.strip()],
            sizes=Sizes(tokens=tokens, pairs=pairs, minutes=minutes),
        )  # fmt: skip
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
