"""``sotscope info``: what one run is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from sotscope.cli import options as shared
from sotscope.cli.terminal import count, facts, heading, human, lossy, output, print_json, printable, table, warn

if TYPE_CHECKING:
    from sotscope.store.reader import Run

app = typer.Typer(add_completion=False)


@app.command(epilog=shared.examples("sotscope info runs/sky.sot", "sotscope info runs/sky.sot --json"))
def command(run: shared.RunArgument, as_json: shared.JsonFlag = False) -> None:
    """What a run is: its model, settings, size, and how it ended."""
    from sotscope.store.reader import open_run

    opened = open_run(run)
    found = opened.info()
    if as_json:
        print_json(found)
    else:
        _print(found, lossiness(opened))
    if found["damage"]:
        warn(f"{found['damage']}; sotscope verify {run} tells more")


def state(complete: bool, recording: bool) -> str:
    return "recording" if recording else "complete" if complete else "interrupted"


def lossiness(run: Run) -> str:
    """That the text of a run need not be the model's own, and how much of it; "" for an exact run."""
    said = (run.events("outcome") or run.events("config") or [{}])[-1]
    believed = said.get("believed")
    if believed is None:  # its recording has not ended
        believed = int((run.drafts["reason"] == "believed").sum())
    if not (said.get("lossy") or believed):
        return ""
    return lossy(said["policy"], believed, said.get("new_tokens") or len(run.tokens.generated_ids))


def _print(found: Mapping[str, Any], lossy: str) -> None:
    console = output()
    console.print(Text(printable(found["run"]), style="bold"), soft_wrap=True)
    console.print(facts({**_run(found), "text": Text(lossy, style="yellow") if lossy else None}))
    console.print(heading("Model"))
    console.print(facts(_model(found["model"])))
    settings = found["settings"]
    console.print(heading("Decoding"))
    console.print(facts({**settings.get("decode", {}), "force": None, **_forced(settings)}))
    console.print(heading("Sites"))
    sites = table("site", "states of a token", "stored as")
    for name, site in found["sites"].items():
        sites.add_row(name, " × ".join(map(str, site["row"])), site["dtype"])
    console.print(sites)
    for alarm in found["alarms"]:
        console.print(Text(f"alarm: {printable(str(alarm.get('message', alarm)))}", style="red"))


def _run(found: Mapping[str, Any]) -> dict[str, Any]:
    outcome = found["outcome"] or {}
    check = outcome.get("self_check") or {}
    layers = found["layers"]
    return {
        "state": state(found["complete"], found["recording"]),
        "rows": f"{found['rows']:,}",
        "steps": f"{found['steps']:,}",
        "sequences": found["sequences"],
        "drafts": found["drafts"] or None,
        "layers": f"{len(layers)} ({layers[0]}–{layers[-1]})" if layers else None,
        "on disk": human(found["bytes"]),
        "ended": outcome.get("finish_reason"),
        "prompt": count(outcome["prompt_tokens"], "token") if outcome else None,
        "new": count(outcome["new_tokens"], "token") if outcome else None,
        "speed": f"{outcome['tokens_per_second']:g} tokens/s" if outcome.get("tokens_per_second") else None,
        "self-check": _checked(check) if check else None,
        "made with": ", ".join(f"{name} {version}" for name, version in found["versions"].items()),
    }


def _checked(check: Mapping[str, Any]) -> str:
    if check.get("passed") is None:
        return "not run"
    worst = max(check.get("errors", {}).values(), default=None)
    text = "passed" if check.get("passed") else "not passed"
    return f"{text}, largest relative error {worst:.2g}" if worst is not None else text


def _model(model: Mapping[str, Any]) -> dict[str, Any]:
    parameters = model.get("parameters")
    return {**model, "parameters": f"{parameters:,}" if parameters else None}


def _forced(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A forced text can be long; its beginning tells which it was."""
    force = settings.get("decode", {}).get("force")
    return {"force": force if not force or len(force) < 60 else f"{force[:57]}..."}
