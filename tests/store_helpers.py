"""Synthetic runs whose every value is a function of (row, layer, dim), so that a reader can check all of them.

As a script it is a writer process: ``python store_helpers.py PATH [steps] [pause]`` commits steps until it is ended.
It imports the store only, so that it starts quickly.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sotscope.events import Branch, Draft, Piece, Step
from sotscope.store.layout import RunSpec, ScalarSpec, SiteSpec
from sotscope.store.writer import Rows, RunWriter

LAYERS, DIM, HEADS = 3, 8, 2
SITES: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "embed": ((DIM,), ("token", "dim")),
    "resid": ((LAYERS, DIM), ("token", "layer", "dim")),
    "attn_out": ((LAYERS, DIM), ("token", "layer", "dim")),
    "mlp_out": ((LAYERS, DIM), ("token", "layer", "dim")),
    "mlp_act": ((LAYERS, 2 * DIM), ("token", "layer", "mlp_act_dim")),
    "head_out": ((LAYERS, HEADS, DIM // HEADS), ("token", "layer", "head", "head_dim")),
    "query": ((LAYERS, HEADS, DIM // HEADS), ("token", "layer", "head", "head_dim")),
    "final": ((DIM,), ("token", "dim")),
}
TOP_K = 3


def make_spec(sites: tuple[str, ...] = tuple(SITES), dtype: str = "float32", **changes: Any) -> RunSpec:
    """The site set of a small llama. Chunks are small, so that rows cross their boundaries all the time."""
    layers = tuple(range(LAYERS))
    made = tuple(
        SiteSpec(
            name=name,
            row=SITES[name][0],
            dims=SITES[name][1],
            dtype=dtype,
            source_dtype=dtype,
            layers=layers if "layer" in SITES[name][1] else None,
        )
        for name in sites
    )
    scalars = (
        ScalarSpec(name="norm", row=(LAYERS,), dims=("token", "layer")),
        ScalarSpec(name="nonfinite", row=(LAYERS,), dims=("token", "layer"), dtype="<i4"),
        ScalarSpec(name="entropy", unit="nats"),
    )
    settings: dict[str, Any] = {"top_k": TOP_K, "chunk_bytes": 8192, "small_chunk_bytes": 1024, **changes}
    return RunSpec(sites=made, scalars=scalars, layers=layers, **settings)


def states_at(site: str, rows: np.ndarray) -> np.ndarray:
    """float32 states of these rows: whole numbers from 1 to 251, exact in every dtype, never zero."""
    shape = SITES[site][0]
    cell = np.arange(int(np.prod(shape))).reshape(shape) * 3 + list(SITES).index(site) * 11
    grown = np.asarray(rows).reshape(-1, *(1 for _ in shape))
    return ((grown * 31 + cell) % 251 + 1).astype(np.float32)


def scalars_at(name: str, rows: np.ndarray) -> np.ndarray:
    rows = np.asarray(rows)
    by_layer = rows[:, None] + np.arange(LAYERS) / 64
    return {
        "norm": by_layer.astype(np.float32),
        "nonfinite": np.floor(by_layer + 1).astype(np.int32),
        "entropy": (rows * 0.5 + 1).astype(np.float32),
    }[name]


def token_at(rows: np.ndarray) -> np.ndarray:
    return (np.asarray(rows) * 7 % 997).astype(np.int32)


def piece_of(token: int) -> Piece:
    return Piece(token, f"Ġ{token}", f" {token}".encode())


def rows_at(spec: RunSpec, rows: np.ndarray) -> Rows:
    """What the capture would hand over for these rows."""
    count = len(rows)
    return Rows(
        states={site.name: states_at(site.name, rows).astype(site.native) for site in spec.sites},
        scalars={scalar.name: scalars_at(scalar.name, rows) for scalar in spec.scalars},
        present=np.ones((count, len(spec.layers)), bool),
        top_id=(rows[:, None] + np.arange(spec.top_k)).astype(np.int32),
        top_logprob=(-rows[:, None] - np.arange(spec.top_k) / 8).astype(np.float32),
        segments=(3,) * count,
    )


class Source:
    """Hands a writer one synthetic step after another; row i holds the values of i."""

    def __init__(self, writer: RunWriter) -> None:
        self.writer = writer
        self.rows = self.steps = self.drafts = 0

    def step(self, count: int = 1, *, seq: int = 0, pos: int | None = None, drafts: int = 0) -> None:
        rows = np.arange(self.rows, self.rows + count)
        tried = tuple(
            Draft(slot, self.rows + slot, self.drafts + slot, 0.5, 1.0, "accepted" if slot % 2 else "first_slot_miss")
            for slot in range(drafts)
        )
        step = Step(
            index=self.steps,
            seq=seq,
            mode="sot" if drafts else "ar",
            pos=self.rows if pos is None else pos,
            token_ids=tuple(token_at(rows).tolist()),
            next_ids=tuple(token_at(rows + 1).tolist()),
            window=drafts,
            reason="drafted" if drafts else "plain",
            drafts=tried,
        )
        self.writer.commit(step, rows_at(self.writer.spec, rows))
        self.rows += count
        self.steps += 1
        self.drafts += drafts


def make_run(path: Path, sizes: tuple[int, ...] = (5, 1, 3, 1), **changes: Any) -> Path:
    """A finished run of these step sizes; ``changes`` go to ``make_spec``."""
    with RunWriter(path, make_spec(**changes), piece_of=piece_of) as writer:
        writer.sequence(Branch(0, 5))
        writer.event("config", settings={"a": 1})
        source = Source(writer)
        for size in sizes:
            source.step(size, drafts=size - 1)
        writer.sequence(Branch(0, 5, finish="eos"))
    return path


def check_run(run: Any, rows: int) -> None:
    """Every value of the first ``rows`` rows of a run with one sequence, all that ``open_run`` gives."""
    index = np.arange(rows)
    assert len(run) == rows
    for site in run.sites:
        np.testing.assert_array_equal(run.states(site), states_at(site, index))
    for name in run.scalar_names:
        np.testing.assert_array_equal(run.scalars(name), scalars_at(name, index))
    ids, logprobs = run.top
    np.testing.assert_array_equal(ids, index[:, None] + np.arange(ids.shape[1]))
    np.testing.assert_array_equal(logprobs, -index[:, None] - np.arange(ids.shape[1]) / 8)
    tokens = run.tokens
    np.testing.assert_array_equal(tokens.ids, token_at(index))
    np.testing.assert_array_equal(tokens.next_ids, token_at(index + 1))
    assert tokens.raw == [f"Ġ{token}" for token in token_at(index)]
    assert run.steps["rows"].sum() == rows
    assert run.present.all()


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Poll until it holds; fail when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


@contextmanager
def writer_process(path: Path, *, pause: float = 0.0, steps: int = 0) -> Iterator[subprocess.Popen[str]]:
    """Another process that records at ``path``; it says ``go`` before it creates the run. Killed on exit."""
    process = subprocess.Popen(
        [sys.executable, __file__, str(path), str(steps), str(pause)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "go\n"
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def main(path: str, steps: str, pause: str) -> None:
    """Commit steps of 1 to 6 rows with drafts and events: ``steps`` of them, or until somebody ends the process."""
    print("go", flush=True)
    rng = random.Random(os.getpid())
    writer = RunWriter(Path(path), make_spec(), piece_of=piece_of, ring_bytes=1 << 20)
    writer.sequence(Branch(0, 5))
    source = Source(writer)
    while not int(steps) or source.steps < int(steps):
        source.step(rng.randint(1, 6), drafts=rng.randint(0, 3))
        if source.steps % 7 == 0:
            writer.event("note", rows=source.rows)
        if float(pause):
            time.sleep(float(pause))
    writer.flush()
    print("written", flush=True)
    sys.stdin.readline()  # the run stays open until it is told to close
    writer.sequence(Branch(0, 5, finish="eos"))
    writer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
