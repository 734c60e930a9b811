"""What is committed is what is read: any step sizes, dtypes, chunk sizes, through open_run and through xarray."""

from __future__ import annotations

import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import store_helpers as helpers
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import sotscope.store.dtypes  # noqa: F401 - makes bfloat16 known to zarr
from sotscope.errors import StoreError
from sotscope.events import Step
from sotscope.store.dtypes import native
from sotscope.store.layout import STATES, RunSpec, ScalarSpec, SiteSpec
from sotscope.store.reader import open_run
from sotscope.store.verify import verify
from sotscope.store.writer import Rows, RunWriter

DTYPES = ("float32", "float16", "bfloat16")


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 9), max_size=12).map(tuple),
    dtype=st.sampled_from(DTYPES),
    chunk_bytes=st.integers(1, 700),
    small_chunk_bytes=st.integers(1, 60),
)
def test_any_steps_come_back(sizes: tuple[int, ...], dtype: str, chunk_bytes: int, small_chunk_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        changes = {"dtype": dtype, "chunk_bytes": chunk_bytes, "small_chunk_bytes": small_chunk_bytes}
        sites = ("resid", "head_out", "final")
        path = helpers.make_run(Path(folder) / "a.sot", sizes, sites=sites, **changes)
        run = open_run(path)
        helpers.check_run(run, sum(sizes))
        assert run.complete
        assert verify(path).problems == []
        dataset = xr.open_zarr(path / STATES, chunks=None)
        for site in sites:
            states = helpers.states_at(site, np.arange(sum(sizes)))
            np.testing.assert_array_equal(dataset[site].values.astype(np.float32), states)
            assert dataset[site].dtype == native(dtype)
        norm = xr.open_zarr(path / STATES, group="scalars", chunks=None).norm
        np.testing.assert_array_equal(norm, helpers.scalars_at("norm", np.arange(sum(sizes))))


def record_states(path: Path, states: np.ndarray, dtype: str) -> Path:
    """A run with one site ``final`` that holds ``states [token, dim]``."""
    site = SiteSpec(name="final", row=states.shape[1:], dims=("token", "dim"), dtype=dtype, source_dtype=dtype)
    spec = RunSpec(sites=(site,), scalars=(), layers=(0,), top_k=1)
    count = len(states)
    with RunWriter(path, spec) as writer:
        rows = Rows(
            {"final": states},
            {},
            np.ones((count, 1), bool),
            np.zeros((count, 1), np.int32),
            np.zeros((count, 1), np.float32),
            (0,) * count,
        )
        writer.commit(Step(0, 0, "ar", 0, (1,) * count, (1,) * count), rows)
    return path


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_pattern_of_a_dtype_is_kept(tmp_path: Path, dtype: str) -> None:
    """NaN, infinities, subnormals and both zeros: 16-bit types whole, float32 in a sample."""
    if dtype == "float32":
        bits = np.random.default_rng(0).integers(0, 1 << 32, (64, 1024), dtype=np.uint32)
    else:
        bits = np.arange(1 << 16, dtype=np.uint16).reshape(64, 1024)
    states = bits.view(native(dtype))
    path = record_states(tmp_path / "a.sot", states, dtype)
    read = open_run(path).states("final")
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, states.astype(np.float32))
    plain = zarr.open(path / STATES, mode="r")["final"]
    assert plain.dtype == states.dtype
    assert np.asarray(plain[:]).tobytes() == states.tobytes()
    assert (path / STATES / "final/c/0/0").read_bytes()[: states.nbytes] == states.tobytes()
    assert plain.attrs["source_dtype"] == dtype


def test_bfloat16_does_not_touch_uint16_arrays(tmp_path: Path) -> None:
    numbers = np.arange(10, dtype=np.uint16)
    array = zarr.create_array(tmp_path / "u2", data=numbers)
    opened = zarr.open_array(tmp_path / "u2", mode="r")
    assert array.dtype == opened.dtype == np.uint16
    np.testing.assert_array_equal(opened[:], numbers)
    halves = zarr.create_array(tmp_path / "bf", shape=(4,), dtype=ml_dtypes.bfloat16, fill_value=1.5)
    assert halves.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(halves[:].astype(np.float32), [1.5] * 4)


def test_a_type_that_states_cannot_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="states of type float64 cannot be stored; there are: float32, float16"):
        record_states(tmp_path / "a.sot", np.zeros((1, 4)), "float64")
    assert not (tmp_path / "a.sot").exists()


def test_a_run_without_sites_holds_its_scalars(tmp_path: Path) -> None:
    path = helpers.make_run(tmp_path / "a.sot", sites=())
    run = open_run(path)
    assert run.sites == []
    helpers.check_run(run, 10)
    assert xr.open_zarr(path / STATES, chunks=None).sizes["token"] == 10
    assert verify(path).sound


def test_a_scalar_of_every_layer_and_head(tmp_path: Path) -> None:
    spec = RunSpec(
        sites=(), scalars=(ScalarSpec(name="head_norm", row=(2, 4), dims=("token", "layer", "head")),), layers=(3, 7)
    )
    values = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
    ones = np.ones((3, 2), bool)
    ones[1, 1] = False
    with RunWriter(tmp_path / "a.sot", spec) as writer:
        top = np.zeros((3, 10))
        rows = Rows({}, {"head_norm": values}, ones, top.astype(np.int32), top.astype(np.float32), (0,) * 3)
        writer.commit(Step(0, 0, "ar", 0, (1, 2, 3), (2, 3, 4)), rows)
    run = open_run(tmp_path / "a.sot")
    np.testing.assert_array_equal(run.scalars("head_norm"), values)
    np.testing.assert_array_equal(run.present, ones)
    assert run.layers == [3, 7]
    root = xr.open_zarr(tmp_path / "a.sot" / STATES, chunks=None)
    assert root.attrs["rows_per_layer"] == [3, 2]
    np.testing.assert_array_equal(root.layer, [3, 7])
