"""Store cases from public bug reports, with a real (tiny) model: C10, C39, C40, C47."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
import zarr

from sotscope.errors import StoreError
from sotscope.recorder import record
from sotscope.store.layout import STATES
from sotscope.store.reader import open_run
from sotscope.testing.tiny import tiny

PROMPT = "5 17 3 88 41"

RECORDER = """
import sys
import sotscope
from sotscope.testing.tiny import tiny

def on_step(step, recording):
    recording.writer.flush()
    print(recording.rows, flush=True)
    sys.stdin.readline()

sotscope.record(tiny("llama"), "5 17 3 88 41", max_new_tokens=50, out=sys.argv[1], on_step=on_step)
"""


@contextmanager
def recorder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that records 50 tokens; after each step it tells its rows and waits for a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", RECORDER, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def rows_after(process: subprocess.Popen[str], steps: int) -> int:
    """Let it decode ``steps`` steps; it waits after the last one."""
    assert process.stdin is not None
    assert process.stdout is not None
    rows = int(process.stdout.readline())
    for _ in range(steps - 1):
        print(file=process.stdin, flush=True)
        rows = int(process.stdout.readline())
    return rows


def test_c10_a_text_that_ends_early_leaves_no_empty_rows(tmp_path: Path) -> None:
    model = tiny("llama")
    free = record(model, PROMPT, max_new_tokens=12, out=tmp_path / "free.sot", sites=["all"])
    end = free.tokens.generated_ids[-1]
    assert end not in free.tokens.generated_ids[:-1]
    model.generation_config.eos_token_id = end
    run = record(model, PROMPT, max_new_tokens=50, out=tmp_path / "a.sot", sites=["all"])
    assert list(run.sequences["finish"]) == ["eos"]
    assert len(run) == 5 + 12 - 1
    for site in run.sites:
        states = run.states(site)
        assert (np.linalg.norm(states, axis=-1) > 0).all()
        np.testing.assert_array_equal(states, free.states(site))
    for name in run.scalar_names:
        np.testing.assert_array_equal(run.scalars(name), free.scalars(name))
    dataset = xr.open_zarr(run.path / STATES, chunks=None)
    assert dataset.sizes["token"] == 16
    assert not np.isnan(dataset.resid).any()
    assert run.info()["alarms"] == []


def test_c39_bfloat16_states_are_stored_bit_for_bit(tmp_path: Path) -> None:
    model = tiny("llama", dtype="bfloat16")
    run = record(model, PROMPT, max_new_tokens=4, out=tmp_path / "a.sot", sites=["resid"])
    with torch.no_grad():
        prefill = model(torch.tensor([[5, 17, 3, 88]]), output_hidden_states=True, use_cache=True)
    expected = torch.stack(prefill.hidden_states[1:-1], dim=2)[0]  # the last one is behind the final norm
    assert expected.dtype == torch.bfloat16
    plain: Any = zarr.open(run.path / STATES, mode="r")["resid"]
    assert plain.attrs["source_dtype"] == "bfloat16"
    assert plain.dtype.name == "bfloat16"
    stored = np.asarray(plain[:4, :3])
    np.testing.assert_array_equal(stored.view(np.int16), expected.view(torch.int16).numpy())
    states = run.states("resid")
    assert states.dtype == np.float32
    np.testing.assert_array_equal(states[:4, :3], expected.float().numpy())


def test_c40_an_interrupted_recording_keeps_its_rows_and_its_path(tmp_path: Path) -> None:
    path = tmp_path / "a.sot"
    with recorder(path) as process:
        rows = rows_after(process, 5)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in error
    run = open_run(path)
    assert (run.complete, run.recording, len(run)) == (False, False, rows)
    assert list(run.sequences["finish"]) == ["interrupted"]
    assert run.steps["rows"].sum() == rows
    assert (run.scalars("norm") > 0).all()
    before = run.states("resid")
    with pytest.raises(StoreError, match="exists already"):
        record(tiny("llama"), PROMPT, max_new_tokens=2, out=path)
    np.testing.assert_array_equal(open_run(path).states("resid"), before)


def test_c40_a_killed_recording_keeps_what_it_had_committed(tmp_path: Path) -> None:
    path = tmp_path / "a.sot"
    with recorder(path) as process:
        rows = rows_after(process, 5)
        process.kill()
    run = open_run(path)
    assert (run.complete, run.recording, len(run)) == (False, False, rows)
    assert list(run.sequences["finish"]) == ["open"]
    whole = record(tiny("llama"), PROMPT, max_new_tokens=50, out=tmp_path / "b.sot")
    np.testing.assert_array_equal(run.states("resid"), whole.states("resid")[:rows])


def test_c47_a_reader_that_polls_sees_whole_rows_only(tmp_path: Path) -> None:
    path = tmp_path / "a.sot"
    with recorder(path) as process:
        rows_after(process, 1)
        run = open_run(path, live=True)
        counts = [len(run)]
        for _ in range(49):
            print(file=process.stdin, flush=True)
            counts.append(counts[-1] + run.refresh())  # while the next step runs
            fresh = open_run(path, live=True)
            assert len(fresh) >= len(run)
            states = fresh.states("resid")
            assert (np.linalg.norm(states, axis=-1) > 0).all()
            assert fresh.present.all()
            rows_after(process, 1)
            assert len(open_run(path, live=True)) == counts[0] + len(counts) - 1
        with pytest.raises(StoreError, match="exists already"):
            record(tiny("llama"), PROMPT, max_new_tokens=2, out=path)
        process.communicate("\n" * 9, timeout=60)
    assert process.returncode == 0
    run.refresh()
    assert run.complete
    assert len(run) == 54
