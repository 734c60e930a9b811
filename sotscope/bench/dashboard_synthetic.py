"""Runs of any length, at any pace: the rows of a real one again and again, written by a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sotscope.errors import LiveError
from sotscope.events import SEGMENTS, Branch, Piece, Step
from sotscope.store import layout
from sotscope.store.reader import Run, open_run
from sotscope.store.writer import Rows, RunWriter

SITE = "resid"
DTYPE = "bfloat16"
"""Half the disk of float32, and nothing overflows."""
HELD = 4096
"""Rows of the real run that are used at most."""
STEP_S = 0.02
"""What a step of a run that is written at once says that it took."""


def write(source: Path, path: Path, rows: int, every_s: float = 0) -> None:
    """A run of ``rows`` decode steps of one token each, one every ``every_s`` seconds: scalars and states are those of
    the decoded rows of ``source``, over and over.
    """
    given = open_run(source, live=True)
    site = given.spec.site(SITE).model_copy(update={"dtype": DTYPE, "source_dtype": DTYPE})
    spec = given.spec.model_copy(update={"sites": (site,), "predicted": 0})
    known, decoded = given.pieces, np.flatnonzero(np.array(given.tokens.modes) != "prompt")[:HELD]
    parts, ids = _parts(given, site, decoded), given.tokens.ids[decoded].tolist()
    spent = int(1e9 * (every_s or STEP_S))
    with RunWriter(
        path, spec, attributes=given.attributes,
        piece_of=lambda token: Piece(token, known.raw[token], known.data[token], token in known.special),
    ) as writer:  # fmt: skip
        writer.sequence(Branch(0, 1))
        writer.event("config", settings={})
        begin = time.monotonic()
        for row in range(rows):
            at, following = row % len(ids), (row + 1) % len(ids)
            step = Step(row, 0, "ar", row, (ids[at],), (ids[following],), reason="plain", forward_ns=spent)
            time.sleep(max(0.0, begin + row * every_s - time.monotonic()))
            writer.commit(step, parts[at])
        writer.sequence(Branch(0, 1, finish="max_new_tokens"))


def _parts(given: Run, site: layout.SiteSpec, rows: NDArray[np.int64]) -> list[Rows]:
    """One a row of ``given``."""
    states = given.take(SITE, rows).astype(site.native)
    scalars = {name: given.scalars_at(name, rows) for name in given.scalar_names}
    top_id, top_logprob = given.top
    return [
        Rows(
            {SITE: states[i : i + 1]}, {name: values[i : i + 1] for name, values in scalars.items()},
            given.present[row : row + 1], top_id[row : row + 1], top_logprob[row : row + 1],
            (SEGMENTS.index("generated"),),
        )
        for i, row in enumerate(rows)
    ]  # fmt: skip


@contextmanager
def writing(source: Path, path: Path, rows: int, every_s: float) -> Iterator[None]:
    """``write``, in a process of its own, which is ended with the context."""
    arguments = [str(source), str(path), str(rows), str(every_s)]
    process = subprocess.Popen([sys.executable, "-m", "sotscope.bench.dashboard_synthetic", *arguments])
    try:
        while not (path / layout.JOURNAL).exists():
            if process.poll() is not None:
                raise LiveError("the process that writes the synthetic run ended at once; what it said is above.")
            time.sleep(0.05)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
