"""kill -9 at any moment: what was committed is there, nothing else is, and verify puts the run in order."""

from __future__ import annotations

import random
import time
from pathlib import Path

import numpy as np
import pytest
import store_helpers as helpers
import xarray as xr

from sotscope.errors import StoreError
from sotscope.store.layout import JOURNAL, STATES
from sotscope.store.reader import open_run
from sotscope.store.verify import verify


def kill_a_writer(path: Path, seconds: float) -> None:
    """The moment is what is random here, so it is a time and not an event; creation takes about a tenth of a second."""
    with helpers.writer_process(path) as process:
        time.sleep(seconds)
        process.kill()
        process.wait()


def check_after_death(path: Path) -> int:
    run = open_run(path)
    assert not run.complete
    assert not run.recording
    assert run.damage == ""
    helpers.check_run(run, len(run))
    steps = run.steps
    assert steps["pos"].iloc[-1] + steps["rows"].iloc[-1] == len(run) if len(steps) else len(run) == 0
    assert len(run.drafts) == steps["window"].sum()
    noted = list((steps["pos"] + steps["rows"])[steps["step"] % 7 == 6])
    # a note is a commit of its own, right after its step's: the writer may have died in between
    late = bool(len(steps)) and steps["step"].iloc[-1] % 7 == 6
    assert [event["rows"] for event in run.events("note")] in ([noted, noted[:-1]] if late else [noted])
    verdict = verify(path)
    assert all("not published" in problem for problem in verdict.problems), verdict.problems
    repaired = verify(path, repair=True)
    assert repaired.problems == []
    assert not repaired.complete
    dataset = xr.open_zarr(path / STATES, chunks=None)
    assert dataset.attrs["committed"] == dataset.sizes["token"] == len(run)
    for site in helpers.SITES:
        np.testing.assert_array_equal(dataset[site], helpers.states_at(site, np.arange(len(run))))
    assert len(open_run(path)) == len(run)
    return len(run)


@pytest.mark.slow
def test_twenty_killed_writers_leave_every_committed_row(tmp_path: Path) -> None:
    rng = random.Random(7)
    rows = []
    for number in range(20):
        path = tmp_path / f"{number}.sot"
        kill_a_writer(path, rng.uniform(0.0, 0.6))
        if not (path / JOURNAL).exists():  # it died while it created the run
            with pytest.raises(StoreError, match=r"not a sotscope run|does not exist"):
                open_run(path)
            continue
        rows.append(check_after_death(path))
    assert len(rows) > 10
    assert max(rows) > 100


def test_a_run_of_a_killed_writer_is_not_written_to_again(tmp_path: Path) -> None:
    path = tmp_path / "a.sot"
    with helpers.writer_process(path) as process:
        helpers.wait_until(lambda: (path / JOURNAL).exists() and len(open_run(path, live=True)) > 10)
        process.kill()
        process.wait()
    rows = len(open_run(path))
    with pytest.raises(StoreError, match="exists already"):
        helpers.make_run(path)
    helpers.check_run(open_run(path), rows)
