"""Between the decode loop and the disk: waiting, memory, syncing, closing."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import store_helpers as helpers

from sotscope.store.hot import HotArray
from sotscope.store.journal import JournalWriter
from sotscope.store.layout import JOURNAL, STATES
from sotscope.store.reader import open_run
from sotscope.store.ring import Ring
from sotscope.store.writer import SLOW_S, RunWriter


def test_a_slow_disk_makes_the_loop_wait_and_says_how_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Semaphore(0)
    write = HotArray.write_bytes

    def slow(self: HotArray, start: int, data: Any) -> None:
        if self.folder.name == "embed":  # the first site of a step
            assert gate.acquire(timeout=30)
        write(self, start, data)

    monkeypatch.setattr(HotArray, "write_bytes", slow)
    step_bytes = helpers.rows_at(helpers.make_spec(), np.arange(1)).nbytes
    writer = RunWriter(
        tmp_path / "a.sot", helpers.make_spec(), piece_of=helpers.piece_of, ring_bytes=4 * step_bytes, background=True
    )
    source = helpers.Source(writer)
    done = threading.Event()

    def decode() -> None:
        for _ in range(12):
            source.step(1)
        done.set()

    thread = threading.Thread(target=decode, daemon=True)
    thread.start()
    helpers.wait_until(lambda: source.steps >= 3)
    for _ in range(3):  # nothing is let through: the ring is full and stays full
        assert not done.wait(0.02)
        assert source.steps <= 4
    for _ in range(12):
        gate.release()
    thread.join(30)
    writer.close()
    assert done.is_set()
    assert writer.stalled_ms > 0
    run = open_run(tmp_path / "a.sot")
    assert run.complete
    helpers.check_run(run, 12)


def test_after_a_slow_write_a_thread_writes_and_the_loop_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    threads: list[str] = []
    append = JournalWriter.append

    def slow(self: JournalWriter, *args: Any) -> None:
        threads.append(threading.current_thread().name)
        if len(threads) == 2:
            time.sleep(2 * SLOW_S)
        elif len(threads) > 2:
            assert gate.wait(30)
        append(self, *args)

    monkeypatch.setattr(JournalWriter, "append", slow)
    writer = RunWriter(tmp_path / "a.sot", helpers.make_spec(), piece_of=helpers.piece_of)
    source = helpers.Source(writer)
    here = threading.current_thread().name
    for _ in range(6):  # the third and later ones would wait for ever if they were written here
        source.step(1)
    assert threads[:2] == [here, here]
    assert writer.stalled_ms >= 2 * SLOW_S * 1e3
    gate.set()
    writer.flush()
    assert set(threads[2:6]) == {"sotscope-writer"}
    helpers.wait_until(lambda: not writer._slow)
    source.step(1)
    assert threads[6] == here, "the disk keeps up again"
    writer.close()
    helpers.check_run(open_run(tmp_path / "a.sot"), 7)


def test_a_run_without_sites_is_bounded_in_memory_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    append = JournalWriter.append

    def slow(self: JournalWriter, *args: Any) -> None:
        assert gate.wait(30)
        append(self, *args)

    monkeypatch.setattr(JournalWriter, "append", slow)
    writer = RunWriter(tmp_path / "a.sot", helpers.make_spec(()), ring_bytes=1000, background=True)
    source = helpers.Source(writer)
    thread = threading.Thread(target=lambda: [source.step(1) for _ in range(200)], daemon=True)
    thread.start()
    helpers.wait_until(lambda: source.steps >= 2)
    assert not gate.wait(0.05)
    assert source.steps < 20
    gate.set()
    thread.join(30)
    writer.close()
    assert len(open_run(tmp_path / "a.sot")) == 200


def test_durable_syncs_every_file_before_the_commit_that_vouches_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def fsync(handle: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{handle}"), tmp_path / "a.sot"))
        sync(handle)

    row = helpers.LAYERS * helpers.DIM * 4
    spec = helpers.make_spec(("resid",), chunk_bytes=2 * row)
    with RunWriter(tmp_path / "a.sot", spec, durable=True) as writer:
        monkeypatch.setattr(os, "fsync", fsync)
        helpers.Source(writer).step(5)  # three chunks in one step
        writer.flush()
        monkeypatch.undo()
    assert [name for name in synced if name.startswith(STATES)] == [
        f"{STATES}/resid/c/{chunk}/0/0" for chunk in range(3)
    ]
    assert synced[-1] == JOURNAL
    assert {"events.jsonl", "pieces.jsonl"} <= set(synced[:-1])


def test_a_step_larger_than_the_ring_passes(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "a.sot", helpers.make_spec(), piece_of=helpers.piece_of, ring_bytes=1) as writer:
        source = helpers.Source(writer)
        for size in (1, 40, 2):
            source.step(size)
    helpers.check_run(open_run(tmp_path / "a.sot"), 43)


def test_an_idle_recording_rewrites_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sotscope.store.writer.PUBLISH_EVERY_S", 1e6)
    root = tmp_path / "a.sot" / STATES / "zarr.json"
    with RunWriter(tmp_path / "a.sot", helpers.make_spec(), piece_of=helpers.piece_of) as writer:
        source = helpers.Source(writer)
        source.step(2)
        writer.publish()
        seen = root.stat()
        writer.publish()
        assert root.stat() == seen
        source.step(1)
        writer.publish()
        assert root.stat() != seen
    assert open_run(tmp_path / "a.sot").complete  # the end is published though no row is new


def test_a_ring_that_is_given_up_keeps_nobody_waiting() -> None:
    ring: Ring[int] = Ring(10)
    assert ring.put(1, 10)
    waiting = threading.Thread(target=ring.put, args=(2, 10), daemon=True)
    flushing = threading.Thread(target=ring.flush, daemon=True)
    for thread in (waiting, flushing):
        thread.start()
    assert not threading.Event().wait(0.02)
    assert waiting.is_alive()
    assert flushing.is_alive()
    ring.give_up()
    for thread in (waiting, flushing):
        thread.join(20)
        assert not thread.is_alive()
    assert ring.put(3, 10)
    ring.close()
    assert list(ring.items()) == [1, 2]  # what came later was dropped
    assert ring.stalled_ms > 0


def test_a_close_that_was_interrupted_can_be_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = RunWriter(tmp_path / "a.sot", helpers.make_spec(), piece_of=helpers.piece_of)
    helpers.Source(writer).step(5)

    def interrupt(_: threading.Thread) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "join", interrupt)
    with pytest.raises(KeyboardInterrupt):
        writer.close()
    writer.close()
    run = open_run(tmp_path / "a.sot")
    assert run.complete
    assert not run.recording
    helpers.check_run(run, 5)
