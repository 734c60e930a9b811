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
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from sotscope.analysis.layouts import layout
from sotscope.analysis.pool import Threads
from sotscope.analysis.run import analyze, answerable, make_view, run_one
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
EMBEDDED = 5000
"""Rows that t-SNE and UMAP lay out."""
ROUNDS = 3
"""How often each of them is timed."""


def run(
    report: Report = lambda text: None, *, model: str = "smollm2", passages: int = 10, slow: bool = False
) -> dict[str, Any]:
    """seconds_2000, peak_mb_2000, seconds_20000, peak_mb_20000 and by_analyzer {tokens: {name: seconds}}.

    ``slow`` also times what is off by default: the full lens on 2,000 tokens (``seconds_full_lens``), and t-SNE and
    UMAP of 5,000 rows over the same by scikit-learn and umap-learn themselves (``ratio_tsne``, ``ratio_umap``).
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
            report(f"the full lens, {PASSAGE:,} tokens")
            found["seconds_full_lens"] = measure(parts[0], "lens", "full")["seconds"]
            for method in ("tsne", "umap"):
                report(f"{method} of {min(EMBEDDED, PASSAGE * passages):,} rows")
                found[f"ratio_{method}"] = measure(long, "project", method)["ratio"]
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


def measure(path: Path, *what: str) -> dict[str, Any]:
    """What one process finds that analyzes ``path``: with all quick analyzers, or the slow one that ``what`` names."""
    command = [sys.executable, "-m", "sotscope.bench.analyze", str(path), *what]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _quick(path: str) -> dict[str, Any]:
    view = make_view(path)
    able, _ = answerable(view)
    begin = time.perf_counter()
    reports = [run_one(analyzer, view, {}, Threads()) for analyzer in able]
    seconds = time.perf_counter() - begin
    return {
        "seconds": round(seconds, 2),
        "peak_mb": peak_mb(),
        "by_analyzer": {report.name: round(report.seconds, 2) for report in reports},
    }


def _full_lens(path: str) -> dict[str, Any]:
    return {"seconds": round(analyze("lens", path, full=True).seconds, 2)}


def _embedding(path: str, method: Literal["tsne", "umap"]) -> dict[str, Any]:
    """``ratio`` of the seconds of our layout over those of the library alone, on the last block's states."""
    from sklearn.manifold import TSNE
    from umap import UMAP

    view = make_view(path)
    rows = view.states("resid", view.layers[-1], view.sample(EMBEDDED))
    library = TSNE(random_state=0) if method == "tsne" else UMAP(random_state=0, n_jobs=1)
    fit: Callable[[Any], Any] = library.fit_transform
    arms: dict[str, Callable[[], Any]] = {"ours": lambda: layout(rows, method), "library": lambda: fit(rows)}
    times: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(ROUNDS):
        for name, work in arms.items():
            begin = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - begin)
    # the best of each: the first to run compiles what both then use
    best = {name: min(found) for name, found in times.items()}
    return {"ratio": round(best["ours"] / best["library"], 3)}


def _work(path: str, *what: str) -> dict[str, Any]:
    if not what:
        return _quick(path)
    return _full_lens(path) if what == ("lens", "full") else _embedding(path, cast(Any, what[1]))


if __name__ == "__main__":
    print(json.dumps(_work(*sys.argv[1:])))
