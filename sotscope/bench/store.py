"""What committing costs: one step until its commit record is written, and sustained throughput, over bare writes.

Row shapes of all sites of a 135M model (float32) and of a 7B model (bfloat16); the values are random, the disk real.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sotscope.bench.stats import Report, interleave, ratio
from sotscope.events import Branch, Step
from sotscope.store.layout import RunSpec, ScalarSpec, SiteSpec
from sotscope.store.writer import Rows, RunWriter


@dataclass(frozen=True)
class Shape:
    """The sizes of a model that decide how many bytes a row has."""

    layers: int
    hidden: int
    heads: int
    head_dim: int
    inner: int
    dtype: str

    def spec(self) -> RunSpec:
        """All sites of a dense model of this shape."""
        per_layer = {"resid": self.hidden, "attn_out": self.hidden, "mlp_out": self.hidden, "mlp_act": self.inner}
        sites = [self._site(name, (self.layers, size), f"{name}_dim") for name, size in per_layer.items()]
        sites += [
            SiteSpec(
                name=name,
                row=(self.layers, self.heads, self.head_dim),
                dims=("token", "layer", "head", "head_dim"),
                dtype=self.dtype,
                source_dtype=self.dtype,
                layers=tuple(range(self.layers)),
            )
            for name in ("head_out", "query")
        ]
        sites += [self._site(name, (self.hidden,), f"{name}_dim") for name in ("embed", "final")]
        scalars = [
            ScalarSpec(name=n, row=(self.layers,), dims=("token", "layer")) for n in ("norm", "max_abs", "cosine")
        ]
        scalars += [ScalarSpec(name=n) for n in ("entropy", "logprob", "margin")]
        heads = ScalarSpec(name="head_norm", row=(self.layers, self.heads), dims=("token", "layer", "head"))
        return RunSpec(sites=tuple(sites), scalars=(*scalars, heads), layers=tuple(range(self.layers)))

    def _site(self, name: str, row: tuple[int, ...], last: str) -> SiteSpec:
        dims = ("token", "layer", last) if len(row) == 2 else ("token", last)
        layers = tuple(range(self.layers)) if len(row) == 2 else None
        return SiteSpec(name=name, row=row, dims=dims, dtype=self.dtype, source_dtype=self.dtype, layers=layers)


SHAPES = {
    "135M": Shape(layers=30, hidden=576, heads=9, head_dim=64, inner=1536, dtype="float32"),
    "7B": Shape(layers=32, hidden=4096, heads=32, head_dim=128, inner=11008, dtype="bfloat16"),
}


def run(report: Report = lambda text: None, *, steps: int = 200, pairs: int = 7) -> dict[str, Any]:
    """Figures of ``bench store``: for each shape step_ratio (of ``steps`` steps) and sustained_ratio (of ``pairs``)."""
    found: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        found[name] = {
            "row_bytes": shape.spec().row_bytes,
            **_steps(shape, steps, report, name),
            **_sustained(shape, pairs, report, name),
        }
    worst = {
        "step_ratio": max(entry["step_ratio"] for entry in found.values()),
        "step_ratio_one_write": max(entry["step_ratio_one_write"] for entry in found.values()),
        "sustained_ratio": min(entry["sustained_ratio"] for entry in found.values()),
    }
    return {**worst, "shapes": found, "steps": steps, "pairs": pairs}


def _steps(shape: Shape, steps: int, report: Report, name: str) -> dict[str, Any]:
    """Median time of a one-row step over bare pwrites of the same bytes, taken in turns.

    ``step_ratio`` is over one pwrite a site into files of their own (where the same bytes must go in any zarr store),
    ``step_ratio_one_write`` over a single pwrite of all of them into one file.
    """
    report(f"{name}: {steps} steps")
    spec = shape.spec()
    times: dict[str, list[float]] = {"step": [], "pwrites": [], "one_pwrite": []}
    rows = _rows(spec, 1)
    parts = [rows.states[site.name].tobytes() for site in spec.sites]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        writer = stack.enter_context(RunWriter(Path(folder) / "bench.sot", spec))
        writer.sequence(Branch(0, 1))
        whole = _Bare(stack, Path(folder) / "whole", [b"".join(parts)], steps)
        split = _Bare(stack, Path(folder) / "split", parts, steps)
        for number in range(steps):
            step = Step(number, 0, "ar", number, (number,), (number + 1,))
            times["one_pwrite"].append(_timed(partial(whole.write, number)))
            times["pwrites"].append(_timed(partial(split.write, number)))
            times["step"].append(_timed(partial(_commit, writer, step, rows)))
    middle = {name: float(np.median(values)) for name, values in times.items()}
    return {
        "step_ratio": round(middle["step"] / middle["pwrites"], 3),
        "step_ratio_one_write": round(middle["step"] / middle["one_pwrite"], 3),
        **{f"{name}_us": round(value * 1e6, 1) for name, value in middle.items()},
    }


class _Bare:
    """Files that are written with nothing but pwrite, one write a part and step."""

    def __init__(self, stack: ExitStack, path: Path, parts: list[bytes], steps: int) -> None:
        self._parts = parts
        self._handles = [os.open(f"{path}{number}", os.O_RDWR | os.O_CREAT) for number in range(len(parts))]
        for handle, part in zip(self._handles, parts, strict=True):
            stack.callback(os.close, handle)
            os.ftruncate(handle, steps * len(part))

    def write(self, number: int) -> None:
        for handle, part in zip(self._handles, self._parts, strict=True):
            os.pwrite(handle, part, number * len(part))


def _commit(writer: RunWriter, step: Step, rows: Rows) -> None:
    writer.commit(step, rows)
    writer.flush()


def _timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def _sustained(shape: Shape, pairs: int, report: Report, name: str, megabytes: int = 256) -> dict[str, Any]:
    """Bytes a second of many 32-row steps over those of bare writes of the same blocks."""
    spec = shape.spec()
    rows = _rows(spec, max(1, min(32, (32 << 20) // spec.row_bytes)))
    count = len(rows.top_id)
    blocks = max(2, (megabytes << 20) // (count * spec.row_bytes))
    arms = {"raw": lambda: _raw_rate(spec, rows, blocks), "store": lambda: _store_rate(spec, rows, blocks)}
    seen = interleave(arms, pairs, lambda text: report(f"{name}: sustained, {text}"))
    found = ratio(seen["store"], seen["raw"])
    return {
        "sustained_ratio": found["median"],
        "sustained_interval": [found["low"], found["high"]],
        "store_mb_s": round(float(np.median(seen["store"])) / 1e6, 1),
        "raw_mb_s": round(float(np.median(seen["raw"])) / 1e6, 1),
    }


def _raw_rate(spec: RunSpec, rows: Rows, blocks: int) -> float:
    raw = b"".join(rows.states[site.name].tobytes() for site in spec.sites)
    with tempfile.NamedTemporaryFile() as file:
        start = time.perf_counter()
        for number in range(blocks):
            os.pwrite(file.fileno(), raw, number * len(raw))
        return blocks * len(raw) / (time.perf_counter() - start)


def _store_rate(spec: RunSpec, rows: Rows, blocks: int) -> float:
    count = len(rows.top_id)
    with tempfile.TemporaryDirectory() as folder:
        writer = RunWriter(Path(folder) / "bench.sot", spec)
        writer.sequence(Branch(0, 1))
        start = time.perf_counter()
        for number in range(blocks):
            ids = tuple(range(number * count, (number + 1) * count))
            writer.commit(Step(number, 0, "prompt", number * count, ids, ids), rows)
        writer.flush()
        rate = blocks * rows.nbytes / (time.perf_counter() - start)
        writer.close()
    return rate


def _rows(spec: RunSpec, count: int) -> Rows:
    generator = np.random.default_rng(0)

    def values(row: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        return generator.standard_normal((count, *row), np.float32).astype(dtype)

    return Rows(
        states={site.name: values(site.row, site.native) for site in spec.sites},
        scalars={scalar.name: values(scalar.row, np.dtype(scalar.dtype)) for scalar in spec.scalars},
        present=np.ones((count, len(spec.layers)), bool),
        top_id=np.zeros((count, spec.top_k), np.int32),
        top_logprob=np.zeros((count, spec.top_k), np.float32),
        segments=(3,) * count,
    )
