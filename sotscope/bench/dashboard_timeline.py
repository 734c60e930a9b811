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
    at_ms: NDArray[np.float64]
    """[commit]"""
    modes: NDArray[np.str_]
    """[step]"""
    step_ms: NDArray[np.float64]
    """[step] from its beginning until its rows are captured, by the engine's clock."""
    committed_ms: NDArray[np.float64]
    """[step]"""

    @property
    def chosen(self) -> range:
        """Tokens that the model wrote, counted along the text."""
        return range(self.prompt, int(self.rows[-1]) + 1)

    def token_ms(self, token: int) -> float:
        """When the step that chose this token was committed."""
        return float(self.at_ms[np.searchsorted(self.rows, token)])

    def first_in(self, mode: str, since: float) -> int:
        """The first step in ``mode`` that was committed after ``since``, or -1."""
        found = np.flatnonzero((self.modes == mode) & (self.committed_ms > since))
        return int(found[0]) if len(found) else -1

    @property
    def tokens_per_second(self) -> float:
        """From the first decode step's commit to the last one's."""
        first, last = np.searchsorted(self.rows, [self.prompt, self.rows[-1]])
        tokens = self.rows[last] - self.rows[first]
        return float(1000 * tokens / (self.at_ms[last] - self.at_ms[first]))


def journal_of(path: Path) -> JournalReader:
    return JournalReader(path / layout.JOURNAL)


def timeline(journal: JournalReader) -> Timeline:
    """Of the run of this journal, as far as it is written."""
    journal.advance()
    words, steps = np.array(layout.CODES["mode"]), journal.steps
    at_ms = np.array([commit.time_ns for commit in journal.commits], np.float64) / 1e6
    after = [commit.steps for commit in journal.commits]
    return Timeline(
        prompt=int(journal.sequences["prompt_length"][0]),
        rows=np.array([commit.rows for commit in journal.commits], np.int64),
        at_ms=at_ms,
        modes=words[steps["mode"]],
        step_ms=(steps["draft_ns"] + steps["forward_ns"] + steps["accept_ns"] + steps["capture_ns"]) / 1e6,
        committed_ms=at_ms[np.searchsorted(after, np.arange(len(steps)) + 1)],
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
    journal, end = journal_of(path), time.monotonic() + LONGEST_S
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
