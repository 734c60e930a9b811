"""``sotscope record``: decode a prompt and record it."""

from __future__ import annotations

import itertools
import shlex
from typing import Any

import typer

from sotscope.cli import draft_options as drafting
from sotscope.cli import health_options as health
from sotscope.cli import options as shared
from sotscope.cli import record_options as given
from sotscope.cli.extra import capture_extra
from sotscope.cli.settings import check_early, check_late, run_config
from sotscope.cli.terminal import human, lossy, notes, print_json, say, warn
from sotscope.cli.watch import Spinner, Watch
from sotscope.config import RunConfig

app = typer.Typer(add_completion=False)


@app.command(
    epilog=shared.examples(
        'sotscope record "Why is the sky blue?"',
        'sotscope record "Once upon a time" --raw -n 64 --sites resid,head_out --layers "every 4"',
        'sotscope record "Why?" --mode combine --gate periodic:every=32',
        'sotscope record "List all colours." -n 512 --monitor --recover rollback',
        "sotscope record --from runs/colours.sot@120 --temperature 0.7",
        'sotscope record "Why?" --force "Because it is." --prompt-logits --out runs/forced.sot',
        "sotscope record --config run.yaml --seed 7 --json",
    )
)
def command(
    prompt_argument: given.PromptArgument = None,
    prompt: given.Prompt = None,
    prompt_file: given.PromptFile = None,
    messages: given.Messages = None,
    system: given.System = None,
    raw: given.Raw = None,
    source: given.Source = None,
    force: given.Force = None,
    config: given.Config = None,
    model: given.Model = None,
    dtype: shared.Dtype = None,
    device: shared.Device = None,
    device_map: shared.DeviceMap = None,
    attn_implementation: shared.AttnImplementation = None,
    sites: given.Sites = None,
    layers: given.Layers = None,
    store_dtype: given.StoreDtype = None,
    attn_layers: given.AttnLayers = None,
    attn_entropy: given.AttnEntropy = None,
    prompt_logits: given.PromptLogits = None,
    last_row: given.LastRow = None,
    top: given.Top = None,
    modules: given.Modules = None,
    mode: given.Mode = None,
    max_new_tokens: given.MaxNewTokens = None,
    eos: given.Eos = None,
    stop: given.Stop = None,
    prefill_block: given.PrefillBlock = None,
    window: drafting.Window = None,
    drafter: drafting.Drafter = None,
    combine: drafting.Combine = None,
    policy: drafting.Policy = None,
    typical_epsilon: drafting.TypicalEpsilon = None,
    typical_alpha: drafting.TypicalAlpha = None,
    gates: drafting.Gates = None,
    controller: drafting.Controller = None,
    guard: drafting.Guard = None,
    draft_temperature: drafting.DraftTemperature = None,
    correction: drafting.Correction = None,
    draft_floor: drafting.DraftFloor = None,
    draft_dtype: drafting.DraftDtype = None,
    draft_sample: drafting.DraftSample = None,
    record_predicted: drafting.RecordPredicted = None,
    lookup_window: drafting.LookupWindow = None,
    lookup_longest: drafting.LookupLongest = None,
    lookup_shortest: drafting.LookupShortest = None,
    monitor: health.Monitor = None,
    monitors: health.Monitors = None,
    baseline: health.Baseline = None,
    recover: health.Recover = None,
    recover_on: health.RecoverOn = None,
    attempts: health.Attempts = None,
    intervene: health.Intervene = None,
    measure: health.Measure = None,
    greedy: given.Greedy = None,
    temperature: given.Temperature = None,
    top_p: given.TopP = None,
    top_k: given.TopK = None,
    repetition_penalty: given.RepetitionPenalty = None,
    no_repeat_ngram_size: given.NoRepeatNgramSize = None,
    min_new_tokens: given.MinNewTokens = None,
    seed: given.Seed = None,
    out: given.Out = None,
    max_bytes: given.MaxBytes = None,
    ring_mb: given.RingMb = None,
    durable: given.Durable = None,
    no_self_check: given.NoSelfCheck = None,
    embed_head: given.EmbedHead = None,
    as_json: given.Json = False,
    quiet: given.Quiet = False,
) -> None:
    """Let a model write, and record its hidden states (activations) token by token."""
    options = dict(locals(), self_check=False if no_self_check else None)  # by the names of the parameters above
    settings = run_config(options, config)
    check_early(settings)
    raise typer.Exit(_record(settings, as_json=as_json, quiet=quiet))


def _record(settings: RunConfig, *, as_json: bool, quiet: bool) -> int:
    recorded: Any = None
    interrupted = False
    console = notes()
    with Spinner(console, quiet=quiet) as spinner:
        with capture_extra("record"):
            from sotscope.recorder import recording
        check_late(settings)
        try:
            with recording(settings, report=spinner.report) as recorded:
                spinner.stop()
                _announce(recorded, quiet=quiet)
                with Watch(recorded, console, text=not (as_json or quiet), bar=not quiet) as watch:
                    for step in recorded.steps():
                        watch.step(step)
        except KeyboardInterrupt:
            if recorded is None:
                raise
            interrupted = True
        except Exception:
            if recorded is not None:
                say(f"the run is kept up to here: {recorded.path}")
            raise
    code = _judge(recorded, interrupted=interrupted)
    _report(recorded, as_json=as_json, quiet=quiet, interrupted=interrupted)
    return code


def _announce(recorded: Any, *, quiet: bool) -> None:
    """What is about to happen, and what the user should know about the prompt."""
    prepared = recorded.prepared
    known = (prepared.prompt.warnings, recorded.settings.notices, recorded.notices, recorded.monitoring.left_out)
    for text in itertools.chain(*known):
        warn(text)
    if not quiet:
        prompt, rows, parts = len(prepared.prompt.ids), prepared.forecast.rows, prepared.parts
        mode = f"{parts.drafter.mode}, lossy ({parts.judge})" if parts.lossy else parts.drafter.mode
        say(
            f"{recorded.loaded.name}, mode {mode}: {prompt} prompt tokens, at most {rows - prompt} "
            f"new; at most {human(prepared.forecast.bytes)} in {recorded.path}"
        )


def _judge(recorded: Any, *, interrupted: bool) -> int:
    """Warnings about how it ended, and the exit code."""
    summary = recorded.summary
    if summary is None:  # interrupted again while the run was being closed
        return 130
    check = summary.self_check
    if check["passed"] is False and not interrupted:
        reason = check["skipped"] or f"largest errors {', '.join(f'{k} {v:g}' for k, v in check['errors'].items())}"
        warn(f"self-check not passed: {reason}")
    if interrupted:
        return 130
    if summary.finish_reason == "non_finite":
        warn(f"decoding ended, the logits are not finite; what was recorded until then is kept in {summary.run}")
    failed = recorded.writer.failure is not None
    if failed:
        warn(f"the disk failed; the rows recorded until then are kept in {summary.run}")
    return 1 if failed or summary.finish_reason == "non_finite" else 0


def _report(recorded: Any, *, as_json: bool, quiet: bool, interrupted: bool) -> None:
    summary = recorded.summary
    if summary is None:
        say(f"interrupted; the run is kept: {recorded.path}")
        return
    if not quiet:
        check = summary.self_check
        checked = {None: "not run", True: "passed", False: "not passed"}[check["passed"]]
        ended = "interrupted" if interrupted else summary.finish_reason
        speed = f", {summary.tokens_per_second:g} tokens/s" if summary.tokens_per_second else ""
        say(
            f"{summary.rows} rows, {summary.new_tokens} new tokens{speed}; ended: {ended}; "
            f"self-check: {checked}; {human(summary.bytes)}"
        )
        if summary.interventions:
            say(
                f"states were changed on purpose ({', '.join(summary.interventions)}): this is not the model's own text"
            )
        if summary.lossy:
            say(lossy(summary.policy, summary.believed, summary.new_tokens))
        say(f"kept; next: sotscope show {shlex.quote(summary.run)}")
    elif interrupted:
        say(f"interrupted; the run is kept: {summary.run}")
    if as_json:
        print_json(vars(summary))
    elif quiet:
        print(summary.run, flush=True)
