"""Plain zarr and plain xarray read a run while another process records it."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import store_helpers as helpers
import xarray as xr
import zarr

from sotscope.store.layout import STATES
from sotscope.store.reader import open_run


def open_zarr(path: Path, group: str | None = None) -> xr.Dataset:
    return xr.open_zarr(path, group=group, chunks=None)


def check_states(dataset: Any, rows: int, sites: tuple[str, ...] = tuple(helpers.SITES)) -> None:
    """All arrays have ``rows`` rows, and the last ones of ``sites`` hold what was committed, in every layer."""
    assert {dataset[name].shape[0] for name in (*helpers.SITES, "token_id", "next_id", "pos", "present")} == {rows}
    last = np.arange(max(0, rows - 7), rows)
    for site in sites:
        np.testing.assert_array_equal(dataset[site][rows - len(last) :], helpers.states_at(site, last))
    np.testing.assert_array_equal(dataset["token_id"][rows - len(last) :], helpers.token_at(last))


def check_scalars(dataset: Any, rows: int) -> None:
    last = np.arange(max(0, rows - 7), rows)
    for name in ("norm", "nonfinite", "entropy"):
        assert dataset[name].shape[0] == rows
        np.testing.assert_array_equal(dataset[name][rows - len(last) :], helpers.scalars_at(name, last))


class Reads:
    """Opens and reads in turn, in every way a user might; remembers how far it has seen."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.committed = 0
        self.growth = 0
        self.sites = itertools.cycle(itertools.permutations(helpers.SITES, 2))

    def seen(self, committed: int) -> None:
        assert committed >= self.committed
        self.growth += committed > self.committed
        self.committed = committed

    def root_dataset(self) -> None:
        dataset = open_zarr(self.root)
        self.seen(dataset.attrs["committed"])
        assert dataset.attrs["rows_per_layer"] == [self.committed] * helpers.LAYERS
        check_states(dataset, self.committed, next(self.sites))

    def scalars(self) -> None:
        scalars = open_zarr(self.root, "scalars")
        self.seen(scalars.sizes["token"])
        check_scalars(scalars, self.committed)

    def top(self) -> None:
        top = open_zarr(self.root, "top")
        self.seen(top.sizes["token"])
        np.testing.assert_array_equal(top.id[-1:, 0], np.arange(self.committed)[-1:])

    def steps(self) -> None:
        steps = open_zarr(self.root, "steps")
        self.seen(int((steps.pos + steps.rows)[-1]) if steps.sizes["step"] else 0)
        np.testing.assert_array_equal(steps["index"], np.arange(steps.sizes["step"]))

    def drafts(self) -> None:
        drafts = open_zarr(self.root, "drafts")
        np.testing.assert_array_equal(drafts.token, np.arange(drafts.sizes["draft"]))

    def sequences(self) -> None:
        sequences = open_zarr(self.root, "sequences")
        np.testing.assert_array_equal(sequences.prompt_length, [5] * sequences.sizes["sequence"])

    def tree(self) -> None:
        tree = xr.open_datatree(self.root, engine="zarr", chunks=None)
        self.seen(tree.attrs["committed"])
        check_states(tree, self.committed)
        check_scalars(tree["scalars"], self.committed)
        steps = tree["steps"]
        assert int(steps["rows"].sum()) == self.committed
        assert tree["drafts"].sizes["draft"] == int(steps["window"].sum())

    def plain_zarr(self) -> None:
        group: Any = zarr.open(self.root, mode="r")
        self.seen(group.attrs["committed"])
        check_states(group, self.committed, next(self.sites))
        check_scalars(group["scalars"], self.committed)


@pytest.mark.slow
def test_a_thousand_reads_of_a_run_that_grows_are_all_whole(tmp_path: Path) -> None:
    with helpers.writer_process(tmp_path / "a.sot", pause=0.002):
        helpers.wait_until(lambda: (tmp_path / "a.sot" / "journal.bin").exists())
        reads = Reads(tmp_path / "a.sot" / STATES)
        groups = itertools.cycle((reads.scalars, reads.top, reads.steps, reads.drafts, reads.sequences))
        for number in range(1000):
            if number % 20 == 0:
                reads.tree()
            elif number % 5 == 1:
                next(groups)()
            elif number % 5 == 2:
                reads.plain_zarr()
            else:
                reads.root_dataset()
    assert reads.growth > 10  # it did grow under our eyes


def test_a_group_opened_by_itself_is_of_one_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sotscope.store.writer.PUBLISH_EVERY_S", 0.001)
    monkeypatch.setattr("sotscope.store.writer.CHILDREN_EVERY_S", 0.0)
    with helpers.RunWriter(tmp_path / "a.sot", helpers.make_spec()) as writer:
        source = helpers.Source(writer)
        lengths = [0]
        for _ in range(50):
            source.step(3, drafts=2)
            scalars = open_zarr(tmp_path / "a.sot" / STATES / "scalars")
            check_scalars(scalars, scalars.sizes["token"])
            steps = open_zarr(tmp_path / "a.sot" / STATES / "steps")
            assert (steps["rows"] == 3).all()
            lengths.append(scalars.sizes["token"])
    assert lengths == sorted(lengths)
    assert open_zarr(tmp_path / "a.sot" / STATES / "scalars").sizes["token"] == 150


RECORDER = """
import sys
from pathlib import Path
import sotscope
from sotscope.testing.tiny import tiny

def on_step(step, recording):
    if step.index % 4 == 0:
        print(recording.rows, flush=True)
        sys.stdin.readline()

model = tiny("llama", max_position_embeddings=512)
sotscope.record(model, "5 17 3 88 41", max_new_tokens=400, sites=["all"], out=sys.argv[1], on_step=on_step)
"""


@pytest.mark.slow
def test_a_real_recording_read_a_hundred_times_by_plain_xarray(tmp_path: Path) -> None:
    path = tmp_path / "a.sot"
    with subprocess.Popen(
        [sys.executable, "-c", RECORDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        seen: dict[int, xr.Dataset] = {}
        committed = 0
        while process.stdout.readline():
            print(file=process.stdin, flush=True)  # it decodes on while we read
            dataset = open_zarr(path / STATES)
            assert dataset.attrs["committed"] >= committed
            committed = dataset.attrs["committed"]
            assert {array.sizes["token"] for array in dataset.values() if "token" in array.dims} == {committed}
            seen[committed] = dataset.isel(token=slice(-1, None)).load()
    assert process.returncode == 0
    run = open_run(path)
    assert run.complete
    assert len(run) == 404
    assert len(seen) > 5
    for rows, last in seen.items():
        for site in run.sites if rows else ():
            np.testing.assert_array_equal(last[site][0], run.states(site)[rows - 1])
            assert (np.linalg.norm(run.states(site)[rows - 1], axis=-1) > 0).all()
