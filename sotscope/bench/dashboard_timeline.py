"""When the steps of a run were committed, by its own journal; nobody need watch it while it is written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sotscope.errors import LiveError
from sotscope.store import layout
from sotscope.store.journal import JournalReader

LOOK_S = 0.25
"""How often a run is looked at while it is waited for: seldom, since that takes from the cores it is decoded on."""
LONGEST_S = 600.0


@dataclass(frozen=True)
class Timeline:
    """Times are ms since 1970, as a browser has them."""

    prompt: int
    """Tokens of the prompt."""
    rows: NDArray[np.int64]
    """[commit] rows after it."""
    steps: NDArray[np.int64]
    """[commit] steps after it."""
    at_ms: NDArray[np.float64]
    """[commit]"""
    modes: list[str]
    """[step]"""
    step_ms: NDArray[np.float64]
    """[step] from its beginning until its rows are captured, by the engine's clock."""

    @property
    def chosen(self) -> range:
        """Tokens that the model wrote, counted along the text."""
        return range(self.prompt, int(self.rows[-1]) + 1)

    def token_ms(self, token: int) -> float:
        """When the step that chose this token was committed."""
        return float(self.at_ms[np.searchsorted(self.rows, token)])

    def committed_ms(self, step: int) -> float:
        return float(self.at_ms[np.searchsorted(self.steps, step + 1)])

    @property
    def tokens_per_second(self) -> float:
        """From the first decode step's commit to the last one's."""
        first, last = int(np.searchsorted(self.rows, self.prompt)), int(np.searchsorted(self.rows, self.rows[-1]))
        tokens = self.rows[last] - self.rows[first]
        return float(1000 * tokens / (self.at_ms[last] - self.at_ms[first]))


def timeline(path: Path) -> Timeline:
    """Of the run at ``path``, as far as it is written."""
    journal = JournalReader(path / layout.JOURNAL)
    journal.advance()
    words, steps = layout.CODES["mode"], journal.steps
    spent = steps["draft_ns"] + steps["forward_ns"] + steps["accept_ns"] + steps["capture_ns"]
    return Timeline(
        prompt=int(journal.sequences["prompt_length"][0]),
        rows=np.array([commit.rows for commit in journal.commits], np.int64),
        steps=np.array([commit.steps for commit in journal.commits], np.int64),
        at_ms=np.array([commit.time_ns for commit in journal.commits], np.float64) / 1e6,
        modes=[words[code] for code in steps["mode"]],
        step_ms=spent / 1e6,
    )


@contextmanager
def new_run(folder: Path) -> Iterator[list[Path]]:
    """Gives a list that afterwards holds the run that appeared meanwhile. Raises LiveError where none did."""
    before, found = set(folder.glob(f"*{layout.SUFFIX}")), list[Path]()
    yield found
    found += set(folder.glob(f"*{layout.SUFFIX}")) - before
    if len(found) != 1:
        raise LiveError(f"Start made {len(found)} runs in {folder}.")


def wait_end(path: Path) -> None:
    """Until the text of the run is written. Raises LiveError when that takes too long."""
    journal, end = JournalReader(path / layout.JOURNAL), time.monotonic() + LONGEST_S
    opened = list(layout.CODES["finish"]).index("open")
    while True:
        journal.advance()
        sequences = journal.sequences
        if len(sequences) and sequences["finish"][0] != opened:
            return
        if time.monotonic() > end:
            raise LiveError(f"{path.name} was not written within {LONGEST_S:.0f} s.")
        time.sleep(LOOK_S)


def percentiles(values: list[float] | NDArray[np.float64]) -> dict[str, float]:
    """p50 and p95, one digit."""
    low, high = np.percentile(np.asarray(values, np.float64), [50, 95]).tolist()
    return {"p50": round(low, 1), "p95": round(high, 1)}
