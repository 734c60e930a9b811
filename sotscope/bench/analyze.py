"""What analyzing costs: seconds and peak memory of all quick analyzers over a run of 2,000 and of 20,000 tokens.

The states are the model's own, of passages of the standard library's source. Each measurement is a process of its own,
without torch, so that its peak is its own.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import subprocess
import sys
import tempfile
import textwrap
import time
import typing
from pathlib import Path
from typing import Any

import numpy as np

from sotscope.bench.peak import peak_mb
from sotscope.bench.stats import Report
from sotscope.events import SEGMENTS, Branch, Piece, Step
from sotscope.store.reader import Run, open_run
from sotscope.store.writer import Rows, RunWriter

PASSAGE = 2000
"""Tokens of a passage, and of a sequence of the long run."""
BLOCK = 100
"""Rows that are copied at a time."""
SITES = ("resid", "head_out", "final")
SOURCES = (argparse, ast, inspect, json, subprocess, tempfile, textwrap, typing)
SLOW = {
    "full lens": ("lens", "lens.full=true"),
    "tsne": ("project", "project.method=tsne"),
    "umap": ("project", "project.method=umap"),
}


def run(
    report: Report = lambda text: None, *, model: str = "smollm2", passages: int = 10, slow: bool = False
) -> dict[str, Any]:
    """seconds_2000, peak_mb_2000, seconds_20000, peak_mb_20000 and by_analyzer {tokens: {name: seconds}}.

    ``slow`` also times what is off by default: the full lens on 2,000 tokens, t-SNE and UMAP.
    """
    found: dict[str, Any] = {"by_analyzer": {}}
    with tempfile.TemporaryDirectory() as folder:
        parts = record(Path(folder), model, passages, report)
        long = merge(parts, Path(folder) / "long.sot")
        for tokens, path in ((PASSAGE, parts[0]), (PASSAGE * passages, long)):
            report(f"analyzing {tokens:,} tokens")
            one = measure(path)
            found[f"seconds_{tokens}"], found[f"peak_mb_{tokens}"] = one["seconds"], one["peak_mb"]
            found["by_analyzer"][str(tokens)] = one["by_analyzer"]
        if slow:
            for name, (only, setting) in SLOW.items():
                report(f"{name}, {PASSAGE:,} tokens")
                found["by_analyzer"][name] = measure(parts[0], only, setting)["seconds"]
    return found


def record(folder: Path, model: str, passages: int, report: Report) -> list[Path]:
    """Runs of ``PASSAGE`` given tokens each."""
    from sotscope.config import CaptureConfig, DecodeConfig, PromptConfig, RunConfig
    from sotscope.models.load import load
    from sotscope.recorder import recording

    loaded = load(model)
    ids = loaded.tokenizer("\n".join(inspect.getsource(module) for module in SOURCES))["input_ids"]
    paths = []
    for number in range(passages):
        report(f"recording passage {number + 1} of {passages}")
        path = folder / f"{number}.sot"
        settings = RunConfig(
            input=PromptConfig(
                prompt=loaded.tokenizer.decode(ids[number * PASSAGE : (number + 1) * PASSAGE]), raw=True
            ),
            capture=CaptureConfig(sites=list(SITES)),
            decode=DecodeConfig(max_new_tokens=1, do_sample=False),
            out=path,
        )
        with recording(settings, model=loaded) as recorded:
            for _ in recorded.steps():
                pass
        paths.append(path)
    return paths


def merge(parts: list[Path], path: Path) -> Path:
    """One run whose sequences are the runs ``parts``."""
    runs = [open_run(part) for part in parts]
    pieces = {key: piece for one in runs for key, piece in _pieces(one).items()}
    with RunWriter(path, runs[0].spec, attributes=runs[0].attributes, piece_of=pieces.__getitem__) as writer:
        for seq, one in enumerate(runs):
            writer.sequence(Branch(seq, len(one)))
            _copy(one, writer, seq)
            writer.sequence(Branch(seq, len(one), finish="prompt_only"))
    return path


def _pieces(run: Run) -> dict[int, Piece]:
    known = run.pieces
    return {key: Piece(key, known.raw[key], known.data[key], key in known.special) for key in known.raw}


def _copy(run: Run, writer: RunWriter, seq: int) -> None:
    tokens, (top_id, top_logprob) = run.tokens, run.top
    scalars = {name: run.scalars(name) for name in run.scalar_names}
    for start in range(0, len(run), BLOCK):
        part = slice(start, min(len(run), start + BLOCK))
        rows = np.arange(part.start, part.stop)
        step = Step(
            seq * PASSAGE + start, seq, "prompt", start,
            tuple(tokens.ids[part].tolist()), tuple(tokens.next_ids[part].tolist()), reason="prefill",
        )  # fmt: skip
        states = {site.name: run.take(site.name, rows).astype(site.native) for site in run.spec.sites}
        made = Rows(
            states, {name: values[part] for name, values in scalars.items()}, run.present[part], top_id[part],
            top_logprob[part], tuple(SEGMENTS.index(segment) for segment in tokens.segments[part]),
        )  # fmt: skip
        writer.commit(step, made)


def measure(path: Path, only: str = "", setting: str = "") -> dict[str, Any]:
    """seconds, peak_mb and by_analyzer of one process that analyzes ``path``."""
    command = [sys.executable, "-m", "sotscope.bench.analyze", str(path), only, setting]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _work(path: str, only: str, setting: str) -> dict[str, Any]:
    from sotscope.analysis.pool import Threads
    from sotscope.analysis.run import answerable, make_view, run_one

    view = make_view(path)
    able, _ = answerable(view, [only] if only else None)
    name, _, value = setting.partition(".")[2].partition("=")
    params = {name: json.loads(value) if value == "true" else value} if name else {}
    begin = time.perf_counter()
    reports = [run_one(analyzer, view, params, Threads()) for analyzer in able]
    seconds = time.perf_counter() - begin
    return {
        "seconds": round(seconds, 2),
        "peak_mb": peak_mb(),
        "by_analyzer": {report.name: round(report.seconds, 2) for report in reports},
    }


if __name__ == "__main__":
    print(json.dumps(_work(*sys.argv[1:])))
