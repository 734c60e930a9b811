"""The contract of an analyzer, as tests: odd data gives a report, never a crash or a warning."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sotscope.analysis.contracts import Analyzer
from sotscope.analysis.pool import Threads
from sotscope.analysis.report import SEVERITIES, Report
from sotscope.analysis.run import make_view, run_one
from sotscope.analysis.view import View
from sotscope.catalog import ANALYZERS
from sotscope.errors import AnalysisError
from sotscope.testing.runs import write_run

LAYERS, DIM, HEADS = 3, 12, 3


def odd_states() -> Iterator[tuple[str, NDArray[np.float32], str]]:
    """(what is odd, resid states [token, layer, dim], dtype)."""
    normal = np.random.default_rng(0).normal(size=(24, LAYERS, DIM)).astype(np.float32)
    yield "normal", normal, "float32"
    yield "one row", normal[:1], "float32"
    yield "three rows", normal[:3], "float32"
    yield "identical rows", np.broadcast_to(normal[:1], normal.shape).copy(), "float32"
    yield "all zero", np.zeros_like(normal), "float32"
    for name, value in (("a constant dimension", 50.0), ("a dead dimension", 0.0)):
        changed = normal.copy()
        changed[:, :, 7] = value
        yield name, changed, "float32"
    broken = normal.copy()
    broken[5, 1, 2], broken[9, 2] = np.nan, np.inf
    yield "NaN and infinity", broken, "float32"
    yield "nothing finite", np.full_like(normal, np.nan), "float32"
    sink = normal.copy()
    sink[0, :, 7] = 3000.0
    yield "a sink", sink, "float32"
    yield "one layer", normal[:, :1], "float32"
    yield "float16", normal * 100, "float16"
    yield "bfloat16", normal * 100, "bfloat16"


def check_analyzer(name: str, folder: Path) -> None:
    """Every kind of odd data gives a report that can be written as JSON and drawn; nothing is written to the run."""
    analyzer: Analyzer = ANALYZERS.get(name)()
    assert analyzer.name == name
    assert analyzer.title
    for number, (what, states, dtype) in enumerate(odd_states()):
        run = write_run(folder / f"{number}.sot", _sites(states), dtype=dtype, scalars=_scalars(states))
        before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
        for part in ("all", "generated"):
            try:
                view = make_view(run, part=part)
            except AnalysisError:
                assert len(run) == 1
                continue
            _check(analyzer, view, f"{name}, {what}, {part}")
        assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before, "the run was written to"


def _sites(states: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    heads = states.reshape(len(states), states.shape[1], HEADS, -1)
    return {"resid": states, "mlp_act": states, "head_out": heads, "query": heads, "final": states[:, -1]}


def _scalars(states: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    with np.errstate(all="ignore"):
        norm = np.linalg.norm(states, axis=-1)
        heads = np.linalg.norm(states.reshape(len(states), states.shape[1], HEADS, -1), axis=-1)
        cosine = np.full(norm.shape, np.nan, np.float32)
        cosine[1:] = np.vecdot(states[1:], states[:-1]) / (norm[1:] * norm[:-1])
    one = norm[:, 0]
    return {
        "norm": norm, "max_abs": norm, "nonfinite": (~np.isfinite(states)).sum(-1), "cosine": cosine,
        "head_norm": heads, "entropy": one, "margin": one, "logprob": -one,
    }  # fmt: skip


def _check(analyzer: Analyzer, view: View, what: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = run_one(analyzer, view, {}, Threads())
        assert isinstance(report, Report), what
        assert report.findings or report.left_out, f"{what}: nothing is said"
        for found in report.findings:
            assert found.severity in SEVERITIES, what
            assert found.text[-1] in ".!?" and found.text[0] == found.text[0].upper(), f"{what}: {found.text}"  # noqa: PT018
            assert "nan" not in found.text.lower().replace("nan or infinity", "").split(), f"{what}: {found.text}"
        text = json.dumps(report.to_dict(), allow_nan=False)
        assert text
        for figure in report.figures:
            made = report.figure(figure)
            assert made.layout.title.text, f"{what}: figure {figure} has no title"
            assert made.to_json()
        assert report._repr_html_()
