"""``sotscope check``: does a mode write what `ar` writes?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sotscope.cli import draft_options as drafting
from sotscope.cli import options as shared
from sotscope.cli import record_options as given
from sotscope.cli.extra import capture_extra
from sotscope.cli.settings import run_config
from sotscope.cli.terminal import count, notes, number, output, print_json, printable, table, warn
from sotscope.cli.watch import Spinner
from sotscope.config import RunConfig
from sotscope.errors import DecodeError, PromptError

app = typer.Typer(add_completion=False)

SHORT = 40
"""Characters of a prompt that a table shows."""
WORDS = {
    "identical": "identical",
    "tie": "numerical tie",
    "divergence": "REAL DIVERGENCE",
    "invalid": "INVALID: logits not finite",
}
FAULTS = ("divergence", "invalid")

Prompts = Annotated[
    Path,
    typer.Option(
        "--prompts",
        help='One a line: JSON ("...", {"prompt": ...} or {"messages": ...}), or plain text in a .txt file.',
        metavar="FILE",
        show_default=False,
    ),
]
Mode = Annotated[
    str,
    typer.Option(
        "--mode",
        help="Which mode: lookup, sot, dmtd, combine or draft.",
        metavar="MODE",
        autocompletion=shared.complete_modes,
        show_default=False,
    ),
]
Limit = Annotated[int | None, shared.option("Input", "Only the first N prompts.", "--limit", metavar="N", min=1)]


@app.command(
    epilog=shared.examples(
        "sotscope check --mode lookup --prompts mine.jsonl",
        "sotscope check --mode sot --prompts mine.txt --model ./my-model --limit 20 --json",
    )
)
def command(
    mode: Mode,
    prompts: Prompts,
    model: given.Model = None,
    dtype: shared.Dtype = None,
    device: shared.Device = None,
    max_new_tokens: given.MaxNewTokens = None,
    policy: drafting.Policy = None,
    window: drafting.Window = None,
    drafter: drafting.Drafter = None,
    combine: drafting.Combine = None,
    gates: drafting.Gates = None,
    controller: drafting.Controller = None,
    guard: drafting.Guard = None,
    limit: Limit = None,
    as_json: shared.JsonFlag = False,
) -> None:
    """Decode prompts greedily, one token a step and with drafts, and compare: identical, a numerical tie (two tokens
    as likely as each other but for rounding), or a real divergence. Exit code 1 when there is a real one. Everything
    that can be drafted is, whatever it costs, unless a --controller or the --guard is asked for."""
    controller, guard = controller or "none", bool(guard)
    settings = run_config(dict(locals(), prompts=None, limit=None, as_json=None), None)
    with Spinner(notes(), quiet=as_json) as spinner, capture_extra("check"):
        from sotscope.catalog import DRAFTERS
        from sotscope.checking import Checker
        from sotscope.models.load import load
        from sotscope.models.prompt_file import read_prompts

        DRAFTERS.get(settings.decode.mode)
        lines = read_prompts(prompts)[:limit]
        loaded = load(
            settings.model.name, dtype=settings.model.dtype, device=settings.model.device, report=spinner.report
        )
        ids = _ids(loaded, lines, prompts)
        checker = Checker(loaded, settings.decode, report=spinner.report)
    results = list(zip(lines, _checked(checker, ids), strict=True))
    _report(results, settings, as_json=as_json)
    faulty = any(checked.verdict.kind in FAULTS for _, checked in results)
    raise typer.Exit(1 if faulty else 0)


def _ids(loaded: Any, lines: list[Any], file: Path) -> list[list[int]]:
    """Token ids of every prompt, so that the last one's fault shows before the first is decoded."""
    from sotscope.capture.plan import anatomy
    from sotscope.models.prompt import build_prompt

    most = anatomy(loaded.model).context_length
    found = []
    for line in lines:
        try:
            prompt = build_prompt(
                loaded.tokenizer, line.prompt, messages=line.messages, system=line.system, raw=line.raw
            )
        except PromptError as error:
            raise PromptError(f"{file}, line {line.number}: {error}") from error
        if most is not None and len(prompt.ids) > most:
            raise DecodeError(
                f"{file}, line {line.number}: {len(prompt.ids)} tokens; the model's context holds {most}."
            )
        found.append(prompt.ids)
    return found


def _checked(checker: Any, prompts: list[list[int]]) -> Iterator[Any]:
    console: Console = notes()
    columns = (TextColumn("checking"), BarColumn(), MofNCompleteColumn(), TextColumn("prompts"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(prompts))
        for ids in prompts:
            yield checker.check(ids)
            progress.advance(task)


def _report(results: list[tuple[Any, Any]], settings: RunConfig, *, as_json: bool) -> None:
    decode = settings.decode
    kinds = Counter(checked.verdict.kind for _, checked in results)
    for message in dict.fromkeys(message for _, checked in results for message in checked.alarms):
        warn(message)
    if not any(checked.drafts for _, checked in results):
        warn(f"{decode.mode} drafted nothing for these prompts, so nothing of it was checked")
    tokens = sum(checked.tokens for _, checked in results)
    forwards = sum(checked.forwards for _, checked in results)
    ours = sum(checked.ms * checked.tokens for _, checked in results)
    speedup = sum(checked.ar_ms * checked.tokens for _, checked in results) / ours if ours else float("nan")
    if as_json:
        print_json(
            {
                "model": settings.model.name,
                "mode": decode.mode,
                "policy": decode.policy,
                "lossy": decode.policy != "exact",
                "max_new_tokens": decode.max_new_tokens,
                "prompts": [_entry(*result) for result in results],
                **{kind: kinds[kind] for kind in WORDS},
                "lossless": not any(kinds[kind] for kind in FAULTS),
                "tokens": tokens,
                "tokens_per_forward": tokens / forwards if forwards else None,
                "speedup": speedup,
            }
        )
        return
    _print_table(results)
    found = ", ".join(f"{kinds[kind]} {words}" for kind, words in WORDS.items() if kinds[kind])
    lossy = "" if decode.policy == "exact" else f" (policy {decode.policy} is lossy)"
    line = f"{count(len(results), 'prompt')}, {count(tokens, 'token')}: {found}{lossy}"
    output().print(
        f"{line}; {number(tokens / max(1, forwards))} tokens a forward, {number(speedup)} times as fast as ar",
        soft_wrap=True,
    )


def _entry(line: Any, checked: Any) -> dict[str, Any]:
    verdict = asdict(checked.verdict)
    return {
        "line": line.number, "kind": line.kind, "prompt": line.title, "tokens": checked.tokens,
        "verdict": verdict.pop("kind"), **verdict, "drafts": checked.drafts, "ms": checked.ms, "ar_ms": checked.ar_ms,
        "tokens_per_forward": checked.tokens_per_forward, "speedup": checked.speedup,
    }  # fmt: skip


def _print_table(results: list[tuple[Any, Any]]) -> None:
    made = table(
        "prompt", "tokens", "verdict", "differs at", "margin", "speed-up",
        right=("tokens", "differs at", "margin", "speed-up"), wraps="prompt",
    )  # fmt: skip
    for line, checked in results:
        title = " ".join(printable(line.title).split())
        verdict = checked.verdict
        made.add_row(
            title if len(title) <= SHORT else title[: SHORT - 1] + "…",
            str(checked.tokens),
            WORDS[verdict.kind],
            "–" if verdict.index is None else str(verdict.index),
            number(verdict.margin),
            number(checked.speedup),
        )
    output().print(made)
