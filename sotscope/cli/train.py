"""``sotscope train``: make a drafter, a window controller or an early-warning score for a model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sotscope.cli import options as shared
from sotscope.cli.extra import capture_extra
from sotscope.cli.terminal import facts, human, notes, output, print_json, say
from sotscope.cli.watch import Spinner
from sotscope.errors import TrainingError
from sotscope.registry import unknown

app = typer.Typer(add_completion=False)

WHAT = ("sot", "dmtd", "controller", "health")
TOKENS = 500_000
"""Of the model's own text, where no data is given."""
OWN_HEALTH = 200_000
"""The same, for an early-warning score."""
EVERY_S = 60
"""Seconds between two lines of progress where nobody watches a bar."""

What = Annotated[
    str,
    typer.Argument(
        metavar="sot|dmtd|controller|health", help="What to train; health is the early warning of loops.",
        show_default=False, autocompletion=lambda: list(WHAT),
    ),
]  # fmt: skip
Model = Annotated[
    str, typer.Option("--model", "-m", help="The base model: smollm2, a folder, a .gguf file or a hub id.")
]
Data = Annotated[
    list[Path] | None,
    typer.Option("--data", help="JSON lines with prompt_ids and new_ids of this model (.gz too); repeatable."),
]
Tokens = Annotated[
    int | None,
    typer.Option(
        "--tokens", min=0, help=f"Tokens of its own text the model writes (default {TOKENS:,}; 0 with --data)."
    ),
]
Prompts = Annotated[
    Path | None,
    typer.Option("--prompts", metavar="FILE", show_default=False,
                 help="health: answers to these prompts instead: .txt one a line, or JSON lines."),
]  # fmt: skip
NewTokens = Annotated[int, typer.Option("--max-new-tokens", "-n", min=32, help="health: tokens of an answer.")]
Texts = Annotated[int, typer.Option(min=8, help="health: texts to train on, at most.")]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="Folder for the result; by default where record finds it.")
]
Kind = Annotated[str, typer.Option(help="Predictor architecture (default: gru for sot, heads for dmtd).")]
Slots = Annotated[int, typer.Option(min=1, max=8, help="Tokens it drafts at most.")]
Words = Annotated[int, typer.Option("--vocabulary", min=16, help="Words of the draft vocabulary.")]
Epochs = Annotated[float, typer.Option(min=0.01, help="Passes over the text.")]
Minutes = Annotated[float, typer.Option(min=0, help="Stop fitting after so many minutes; 0: after the epochs.")]
Rate = Annotated[float, typer.Option("--lr", min=1e-6, max=1.0, help="Largest learning rate.")]
Rows = Annotated[int, typer.Option(min=16, help="Token positions a step.")]
Distill = Annotated[float, typer.Option(min=0, max=1, help="Share of the model's own distribution in the target.")]
Dropout = Annotated[float, typer.Option(min=0, max=0.9, help="Share of what goes in that is left out.")]
Start = Annotated[
    Path | None, typer.Option("--from", help="Go on from this drafter's weights, with other settings or more text.")
]
Seed = Annotated[int, typer.Option(min=0, help="Same seed, same drafter (on one machine).")]
Work = Annotated[Path | None, typer.Option(help="Where text and states are kept for the next training.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on from the last epoch's checkpoint in the result's folder.")
]


@app.command(
    epilog=shared.examples("sotscope train sot --tokens 200000", "sotscope train dmtd --data mine.jsonl -o my")
)
def command(
    what: What,
    model: Model = "smollm2",
    data: Data = None,
    tokens: Tokens = None,
    out: Out = None,
    kind: Kind = "",
    slots: Slots = 5,
    vocabulary: Words = 8192,
    epochs: Epochs = 6.0,
    minutes: Minutes = 0.0,
    lr: Rate = 1e-3,
    rows: Rows = 1024,
    distill: Distill = 0.6,
    dropout: Dropout = 0.1,
    start: Start = None,
    seed: Seed = 0,
    work: Work = None,
    prompts: Prompts = None,
    max_new_tokens: NewTokens = 512,
    texts: Texts = 1500,
    resume: Resume = False,
    as_json: shared.JsonFlag = False,
) -> None:
    """Make a drafter for a model: it writes text, its states are collected, a predictor is fitted to them.

    health makes the score of monitor loop_risk in the same way, from greedy texts some of which loop.
    """
    if what not in WHAT:
        raise TrainingError(unknown("thing to train", what, list(WHAT)))
    with capture_extra("train"):
        from sotscope.cache import cache_folder
        from sotscope.health.baseline import health_folders
        from sotscope.models.load import fingerprint, load
        from sotscope.parts import drafter_folder
        from sotscope.training.fit import FitSettings
        from sotscope.training.recipe import TrainSettings, train
    lines = _lines(what, prompts)
    with Spinner(notes()) as spinner:
        loaded = load(model, report=spinner.report)
    mark = fingerprint(loaded.model)
    folder = out or (health_folders(mark)[0] if what == "health" else drafter_folder(mark, what))
    kept = work or cache_folder() / "training"
    if what == "controller":
        return _controller(loaded, folder, tokens, seed, as_json)
    if what == "health":
        own = OWN_HEALTH * (not data and not lines) if tokens is None else tokens
        return _health(loaded, (data, lines, own, max_new_tokens, texts, seed), folder, kept, as_json)
    settings = TrainSettings(
        mode=what, kind=kind, data=tuple(data or ()), tokens=TOKENS * (not data) if tokens is None else tokens,
        slots=slots, vocabulary=vocabulary, start=start,
        fit=FitSettings(
            epochs=epochs, minutes=minutes, lr=lr, rows=rows, seed=seed, distill=distill, dropout=dropout
        ),
    )  # fmt: skip
    with _Bars() as bars:
        bundle = train(loaded, settings, folder, kept, bars, resume=resume)
    _say(bundle.card, folder, as_json)
    return None


def _controller(loaded: Any, folder: Path, tokens: int | None, seed: int, as_json: bool) -> None:
    from sotscope.training.controller import train_controller

    with _Bars() as bars:
        card = train_controller(loaded, folder, bars, tokens=tokens or 20_000, seed=seed)
    _say(card, folder, as_json)


def _lines(what: str, prompts: Path | None) -> list[Any]:
    from sotscope.models.prompt_file import read_prompts

    if prompts is None:
        return []
    if what != "health":
        raise TrainingError(f"--prompts is for sotscope train health; {what} takes --data.")
    return read_prompts(prompts)


def _health(loaded: Any, given: tuple[Any, ...], folder: Path, work: Path, as_json: bool) -> None:
    with capture_extra("train"):
        from sotscope.training.health import HealthTraining, train_health

    data, lines, tokens, new_tokens, texts, seed = given
    settings = HealthTraining(tuple(data or ()), tuple(lines), tokens, new_tokens, texts, seed)
    with _Bars() as bars:
        made = train_health(loaded, settings, folder, work, bars)
    if as_json:
        about = made.model_dump(include={"model", "fingerprint", "threshold_rows", "threshold_texts", "figures"})
        print_json({"folder": str(folder), **about})
        return
    seen = made.figures["unseen"]
    output().print(
        facts(
            {
                "score": f"{folder / 'early.json'} (of layers {', '.join(map(str, made.layers))})",
                "base": f"{made.model} ({made.fingerprint})",
                "AUC, unseen prompts": ", ".join(f"{k} {v['unseen']:.3f}" for k, v in made.figures["auc"].items()),
                "calibration": f"Brier {seen['brier']} (always the rate: {seen['brier_of_rate']})",
                **{f"at {name}": _warned(seen[f"at_threshold_{name}"]) for name in ("rows", "texts")},
            }
        )
    )


def _warned(found: dict[str, Any]) -> str:
    return (
        f"over {found['threshold']:.3f}: {found['of_healthy_rows']:.1%} of looks at healthy text, "
        f"{found['of_healthy_texts']:.0%} of healthy texts ever; {found['warned']:.0%} of loops, "
        f"{found['lead_median']:.0f} tokens before (median)"
    )


def _say(card: dict[str, Any], folder: Path, as_json: bool) -> None:
    size = sum(file.stat().st_size for file in folder.iterdir())
    if as_json:
        print_json({"folder": str(folder), "bytes": size, **card})
        return
    last = card["epochs"][-1] if card.get("epochs") else {}
    output().print(
        facts(
            {
                "drafter": f"{folder} ({human(size)})",
                "base": f"{card['base']['name']} ({card['base']['fingerprint']})",
                "tokens a forward": ", ".join(f"{k} {v}" for k, v in last.get("tokens_per_forward", {}).items()),
                "right by slot": ", ".join(f"{x:.2f}" for x in last.get("acceptance", [])),
                "minutes": card.get("minutes"),
            }
        )
    )
    output().print(
        f'next: sotscope record --mode {card["mode"]} --drafter {folder} "Why is the sky blue?"', soft_wrap=True
    )


class _Bars:
    """Progress of each stage on stderr, and one line an epoch."""

    def __init__(self) -> None:
        console = notes()
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
                   TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))  # fmt: skip
        self._progress = Progress(*columns, console=console)
        self._task: TaskID | None = None
        self._due = time.monotonic() + EVERY_S

    def __enter__(self) -> _Bars:
        if self._progress.console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._progress.stop()

    def stage(self, name: str, total: int) -> None:
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(name, total=total, note="")
        if not self._progress.console.is_terminal:
            say(f"{name} ({total:,})")

    def progress(self, done: int, note: str = "") -> None:
        if self._task is not None:
            self._progress.update(self._task, completed=done, note=note)
            if not self._progress.console.is_terminal and time.monotonic() > self._due:
                task = self._progress.tasks[0]
                say(f"{task.description}: {task.percentage:.0f} % {note}")
                self._due = time.monotonic() + EVERY_S

    def report(self, report: Any) -> None:
        figures = ", ".join(f"{name} {value}" for name, value in report.tokens_per_forward.items())
        minutes = f"{report.seconds / 60:.1f} min"
        say(f"epoch {report.epoch:.2f} ({minutes}): loss {report.loss:.3f}; tokens a forward: {figures}")
