"""``sotscope baseline``: learn what is normal for a model, so that monitors can tell what is not."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sotscope.cli import options as shared
from sotscope.cli.bars import WorkBar
from sotscope.cli.extra import capture_extra
from sotscope.cli.terminal import facts, human, notes, output, print_json
from sotscope.cli.watch import Spinner

if TYPE_CHECKING:
    from sotscope.health.baseline import Baseline
    from sotscope.health.collect import Collector
    from sotscope.models.prompt_file import PromptLine

app = typer.Typer(add_completion=False)

Model = Annotated[
    str,
    typer.Option(
        "--model", "-m", help="The model: smollm2, a folder, a .gguf file or a hub id.",
        autocompletion=shared.complete_models,
    ),
]  # fmt: skip
Prompts = Annotated[
    Path,
    typer.Option(
        "--prompts", metavar="FILE", show_default=False,
        help="Ordinary prompts: .txt one a line, or JSON lines with prompt (kind: raw for plain text) or messages.",
    ),
]  # fmt: skip
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="FILE", help="Where to write it; by default where record finds it.",
                 show_default=False),
]  # fmt: skip
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", "-n", min=1, help="Tokens the model writes a prompt.")]


@app.command(
    epilog=shared.examples(
        "sotscope baseline --prompts ordinary.txt",
        "sotscope baseline -m my/model --prompts p.jsonl -n 128 -o base.json",
    )
)
def command(
    prompts: Prompts,
    model: Model = "smollm2",
    out: Out = None,
    max_new_tokens: MaxNewTokens = 192,
    dtype: shared.Dtype = None,
    device: shared.Device = None,
    as_json: shared.JsonFlag = False,
) -> None:
    """Learn what is normal for a model: it answers prompts greedily, and texts that loop are left out."""
    from sotscope.models.prompt_file import read_prompts

    lines = read_prompts(prompts)
    with capture_extra("baseline"):
        from sotscope.health.baseline import health_folders
        from sotscope.models.load import fingerprint, load
    with Spinner(notes()) as spinner:
        loaded = load(model, dtype=dtype, device=device, report=spinner.report)
    mark = fingerprint(loaded.model)
    with WorkBar(notes()) as bar:
        collector = _collect(loaded, lines, max_new_tokens, bar)
    made = collector.baseline(loaded.name, mark)
    path = out or health_folders(mark)[0] / "baseline.json"
    made.save(path)
    _say(made, collector, path, as_json)


def _collect(loaded: Any, lines: list[PromptLine], tokens: int, bar: WorkBar) -> Collector:
    """Decode every prompt into a folder that goes away, and gather its rows."""
    from sotscope.capture.plan import anatomy, available, make_plan
    from sotscope.config import RunConfig
    from sotscope.health.collect import Collector
    from sotscope.health.rows import rows_of_run
    from sotscope.recorder import record

    sites = ["head_out"] if not available(anatomy(loaded.model))["head_out"] else []
    collector = Collector(make_plan(loaded.model, sites).layers)
    settings = RunConfig.model_validate({"capture": {"self_check": False}})
    for number, line in enumerate(lines):
        bar.stage("baseline", number, len(lines))
        with tempfile.TemporaryDirectory(prefix="sotscope-") as folder:
            run = record(
                loaded, line.prompt, messages=line.messages, system=line.system, raw=line.raw, sites=sites,
                max_new_tokens=tokens, do_sample=False, config=settings, out=Path(folder) / "one.sot",
                on_step=lambda step, recorded: bar.progress("tokens", recorded.sink.new_tokens, tokens),
            )  # fmt: skip
            collector.add(rows_of_run(run, run.rows(0), ()))
    return collector


def _say(made: Baseline, collector: Collector, path: Path, as_json: bool) -> None:
    heads = bool(made.head_log_norm)
    if as_json:
        found = made.model_dump(include={"model", "fingerprint", "rows", "prompts", "entropy", "surprise"})
        print_json({"path": str(path), **found, "left_out": collector.left_out, "heads": heads})
        return
    output().print(
        facts(
            {
                "baseline": f"{path} ({human(path.stat().st_size)})",
                "model": f"{made.model} ({made.fingerprint})",
                "healthy": f"{made.rows:,} rows of {made.prompts:,} texts",
                "left out": f"{collector.left_out:,} texts that loop or are empty" if collector.left_out else "",
                "heads": "included" if heads else "this model has no head_out to look at",
            }
        )
    )
