"""A disk that is full, failing, slow, or touched by somebody else: an alarm, never an error in the decode loop."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import store_helpers as helpers

from sotscope.events import Alarm, Branch, Piece, Step
from sotscope.store.hot import HotArray
from sotscope.store.journal import JournalWriter
from sotscope.store.layout import JOURNAL, STATES
from sotscope.store.lines import PieceFile
from sotscope.store.reader import open_run
from sotscope.store.verify import verify
from sotscope.store.writer import RunWriter


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    mounted = shutil.which("mount") is not None and subprocess.run(command, capture_output=True).returncode == 0
    if not mounted:
        if os.environ.get("CI"):
            pytest.fail("CI must be able to mount a tmpfs")
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def failing(error: int) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise OSError(error, os.strerror(error))

    return fail


def open_writer(path: Path, alarms: list[Alarm], **changes: Any) -> RunWriter:
    return RunWriter(path, helpers.make_spec(), piece_of=helpers.piece_of, on_alarm=alarms.append, **changes)


def test_a_full_disk_ends_the_recording_and_nothing_else(small_disk: Path) -> None:
    alarms: list[Alarm] = []
    writer = open_writer(small_disk / "a.sot", alarms, ring_bytes=100_000)
    source = helpers.Source(writer)
    writer.sequence(Branch(0, 5))
    for _ in range(4000):  # 6 MB: several times what there is
        source.step(1)
    writer.event("late")
    writer.flush()
    assert isinstance(writer.failure, OSError)
    assert writer.failure.errno == errno.ENOSPC
    writer.publish()
    writer.close()
    (alarm,) = alarms
    assert alarm.kind == "disk"
    assert "No space left on device; decoding goes on unrecorded" in alarm.message
    run = open_run(small_disk / "a.sot")
    assert not run.complete
    assert 50 < len(run) < 1000
    assert abs(alarm.data["rows"] - len(run)) <= 1
    helpers.check_run(run, len(run))
    assert all("not published" in problem for problem in verify(run.path).problems)


@pytest.mark.parametrize(("owner", "name"), [(HotArray, "write_bytes"), (JournalWriter, "append"), (PieceFile, "add")])
def test_a_failing_write_keeps_what_was_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    alarms: list[Alarm] = []
    with open_writer(tmp_path / "a.sot", alarms) as writer:
        source = helpers.Source(writer)
        source.step(4)
        writer.flush()
        monkeypatch.setattr(owner, name, failing(errno.EIO))
        for _ in range(5):
            source.step(2)
        writer.flush()
        monkeypatch.undo()
        source.step(1)  # a disk that recovers: the gap must not be written over
        writer.event("late")
    assert [alarm.message for alarm in alarms] == [
        "recording ended after 4 rows: Input/output error; decoding goes on unrecorded"
    ]
    assert alarms[0].data == {"rows": 4, "errno": errno.EIO}
    run = open_run(tmp_path / "a.sot")
    assert not run.complete
    helpers.check_run(run, 4)
    assert run.events() == []
    assert verify(run.path).sound


def test_an_error_of_another_kind_ends_the_recording_too(tmp_path: Path) -> None:
    """A tokenizer that fails for one id must not leave the loop waiting for a dead thread."""

    def piece_of(token: int) -> Piece:
        if token == helpers.token_at(3):
            raise IndexError("no piece of that id")
        return helpers.piece_of(token)

    alarms: list[Alarm] = []
    writer = RunWriter(tmp_path / "a.sot", helpers.make_spec(), piece_of=piece_of, on_alarm=alarms.append, ring_bytes=1)
    source = helpers.Source(writer)
    for _ in range(50):
        source.step(1)
    writer.flush()
    writer.close()
    assert [alarm.message for alarm in alarms] == [
        "recording ended after 2 rows: no piece of that id; decoding goes on unrecorded"
    ]
    assert not open_run(tmp_path / "a.sot").complete
    assert len(open_run(tmp_path / "a.sot")) == 2


@pytest.mark.parametrize(
    "resid", [np.ones((1, 3, 8), np.int32), np.ones((1, 3, 7), np.float32), np.ones((2, 3, 8), np.float32), None]
)
def test_states_of_the_wrong_shape_or_type_are_never_stored(tmp_path: Path, resid: np.ndarray | None) -> None:
    alarms: list[Alarm] = []
    writer = open_writer(tmp_path / "a.sot", alarms)
    helpers.Source(writer).step(2)
    rows = helpers.rows_at(writer.spec, np.array([2]))
    rows.states = {} if resid is None else {**rows.states, "resid": resid}
    writer.commit(Step(1, 0, "ar", 2, (0,), (0,)), rows)
    writer.close()
    assert len(alarms) == 1
    helpers.check_run(open_run(tmp_path / "a.sot"), 2)


def test_an_error_while_publishing_raises_one_alarm_and_nothing_in_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sotscope.store.writer.PUBLISH_EVERY_S", 0.001)
    alarms: list[Alarm] = []
    raised = threading.Event()

    def on_alarm(alarm: Alarm) -> None:
        alarms.append(alarm)
        raised.set()

    writer = RunWriter(tmp_path / "a.sot", helpers.make_spec(), piece_of=helpers.piece_of, on_alarm=on_alarm)
    source = helpers.Source(writer)
    source.step(3)
    writer.publish()
    monkeypatch.setattr("sotscope.store.arrays.os.replace", failing(errno.EIO))
    assert raised.wait(20)
    source.step(2)
    writer.flush()
    writer.publish()
    writer.close()
    assert len(alarms) == 1
    assert "Input/output error" in alarms[0].message
    assert not list((tmp_path / "a.sot" / STATES).rglob(".*"))  # half-written files are taken away
    monkeypatch.undo()
    run = open_run(tmp_path / "a.sot")
    assert not run.complete
    helpers.check_run(run, 3)
    assert verify(run.path, repair=True).sound


def test_an_error_at_the_last_publish_does_not_reach_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alarms: list[Alarm] = []

    def on_alarm(alarm: Alarm) -> None:
        alarms.append(alarm)
        writer.event("alarm", alarm=alarm.kind)  # what an observer may do with it

    writer = RunWriter(tmp_path / "a.sot", helpers.make_spec(), piece_of=helpers.piece_of, on_alarm=on_alarm)
    helpers.Source(writer).step(3)
    writer.flush()
    monkeypatch.setattr("sotscope.store.arrays.os.replace", failing(errno.EIO))
    writer.close()
    assert len(alarms) == 1
    monkeypatch.undo()
    run = open_run(tmp_path / "a.sot")
    assert (run.complete, run.recording) == (False, False)
    helpers.check_run(run, 3)


def test_a_disk_that_recovers_gets_what_was_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sotscope.store.writer.PUBLISH_EVERY_S", 1e6)
    alarms: list[Alarm] = []
    writer = open_writer(tmp_path / "a.sot", alarms)
    source = helpers.Source(writer)
    source.step(3)
    writer.publish()
    source.step(2)
    with monkeypatch.context() as patch:
        patch.setattr("sotscope.store.arrays.os.replace", failing(errno.EIO))
        writer.publish()
    writer.close()
    assert len(alarms) == 1
    verdict = verify(tmp_path / "a.sot")
    assert (verdict.problems, verdict.published_rows, verdict.complete) == ([], 5, False)


def replace_journal(path: Path) -> None:
    copy = path / "copy"
    shutil.copyfile(path / JOURNAL, copy)
    os.replace(copy, path / JOURNAL)


def replace_chunk(path: Path) -> None:
    """What zarr does when somebody opens the run ``r+`` and writes."""
    chunk = path / STATES / "resid/c/0/0/0"
    shutil.copyfile(chunk, path / "copy")
    os.replace(path / "copy", chunk)


@pytest.mark.parametrize(
    ("meddle", "message"),
    [
        (replace_journal, "journal.bin was replaced by another program"),
        (lambda path: (path / JOURNAL).unlink(), "No such file or directory"),
        (replace_chunk, "resid/c/0/0/0 was replaced by another program"),
        (lambda path: path.rename(path.with_name("b.sot")), "No such file or directory"),
    ],
)
@pytest.mark.parametrize("closing", [False, True])
def test_somebody_who_replaces_our_files_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meddle: Callable[[Path], None], message: str, closing: bool
) -> None:
    monkeypatch.setattr("sotscope.store.writer.PUBLISH_EVERY_S", 1e6 if closing else 0.001)
    alarms: list[Alarm] = []
    path = tmp_path / "a.sot"
    writer = open_writer(path, alarms)
    source = helpers.Source(writer)
    source.step(3)
    writer.publish()
    meddle(path)
    source.step(2)
    if not closing:
        helpers.wait_until(lambda: writer.failure is not None)
        source.step(2)
    writer.close()
    assert len(alarms) == 1
    assert message in alarms[0].message
    if (path / JOURNAL).exists():
        assert not open_run(path).complete


def test_the_program_may_change_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    alarms: list[Alarm] = []
    writer = open_writer(Path("a.sot"), alarms)
    run = open_run("a.sot", live=True)
    source = helpers.Source(writer)
    source.step(200)
    writer.publish()
    monkeypatch.chdir(tmp_path / "elsewhere")
    source.step(200)
    writer.close()
    assert alarms == []
    assert run.refresh() == 400
    assert run.complete
    helpers.check_run(run, 400)
    assert not list((tmp_path / "elsewhere").iterdir())
