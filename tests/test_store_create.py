"""Where a run may be created, how private it is, and what others see of it while it is being created."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest
import store_helpers as helpers

from sotscope.errors import StoreError
from sotscope.store import arrays
from sotscope.store.layout import JOURNAL, STATES, SiteSpec
from sotscope.store.reader import open_run
from sotscope.store.runs import find_runs
from sotscope.store.writer import RunWriter


def snapshot(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def test_a_second_writer_on_one_path_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.sot"
    with helpers.writer_process(path, steps=20) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"  # it holds the run open
        with pytest.raises(StoreError, match=r"a\.sot exists already; choose another --out"):
            RunWriter(path, helpers.make_spec())
        assert open_run(path).recording
        helpers.check_run(open_run(path, live=True), len(open_run(path, live=True)))
        assert len(open_run(path, live=True).steps) == 20


@pytest.mark.parametrize("existing", ["run", "folder", "file"])
def test_an_existing_path_is_refused_and_left_as_it_is(tmp_path: Path, existing: str) -> None:
    path = tmp_path / "a.sot"
    if existing == "run":
        helpers.make_run(path)
    elif existing == "folder":
        path.mkdir()
        (path / "mine.txt").write_text("keep")
    else:
        path.write_text("keep")
    before = snapshot(tmp_path)
    with pytest.raises(StoreError, match=r"a\.sot exists already"):
        RunWriter(path, helpers.make_spec())
    assert snapshot(tmp_path) == before


def test_a_parent_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "a.sot", tmp_path / "file" / "runs" / "a.sot"):
        with pytest.raises(StoreError, match=r"^cannot create [^\n]*a\.sot: [^\n]*; choose another --out\.$"):
            RunWriter(path, helpers.make_spec())


def test_a_disk_that_fails_while_the_run_is_created_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(arrays.os, "replace", fail)
    with pytest.raises(StoreError, match=r"cannot create [^\n]*a\.sot: No space left on device"):
        RunWriter(tmp_path / "a.sot", helpers.make_spec())
    monkeypatch.undo()
    assert not list(tmp_path.iterdir())
    assert len(os.listdir("/proc/self/fd")) == before
    helpers.check_run(open_run(helpers.make_run(tmp_path / "a.sot")), 10)


def test_runs_are_private(tmp_path: Path) -> None:
    old = os.umask(0o002)
    try:
        helpers.make_run(tmp_path / "new" / "runs" / "a.sot")
        helpers.make_run(tmp_path / "b.sot")
    finally:
        os.umask(old)
    for private in (tmp_path / "new/runs", tmp_path / "new/runs/a.sot", tmp_path / "b.sot"):
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert (tmp_path / "new/runs/.gitignore").read_text() == "*\n"
    assert not (tmp_path / ".gitignore").exists()  # that folder was there before


def test_runs_in_one_new_folder_can_be_started_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exists = Path.exists

    def appears_later(path: Path) -> bool:
        found = exists(path)
        if path.name == "runs" and not found:
            path.mkdir()  # the other recording makes it between our look and our mkdir
        return found

    monkeypatch.setattr(Path, "exists", appears_later)
    RunWriter(tmp_path / "runs" / "a.sot", helpers.make_spec()).close()


def test_a_run_that_can_be_found_can_be_opened_and_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every file operation of a run's creation a reader finds either no run or a whole, empty one."""
    seen: list[bool] = []

    def look() -> None:
        found = find_runs(tmp_path)
        seen.append(bool(found))
        if found:
            run = open_run(found[0])
            assert (len(run), run.recording, run.complete) == (0, True, False)
        elif (tmp_path / "a.sot").exists():
            with pytest.raises(StoreError, match="is not a sotscope run"):
                open_run(tmp_path / "a.sot")

    for name in ("open", "mkdir", "write", "rename", "replace", "ftruncate"):
        original = getattr(os, name)

        def watched(*args: object, _original: object = original, **kwargs: object) -> object:
            if not looking:
                looking.append(True)
                look()
                looking.clear()
            return _original(*args, **kwargs)  # type: ignore[operator]

        monkeypatch.setattr(os, name, watched)
    looking: list[bool] = []
    monkeypatch.setattr("sotscope.store.writer.PUBLISH_EVERY_S", 1e6)
    writer = RunWriter(tmp_path / "a.sot", helpers.make_spec())
    look()
    monkeypatch.undo()
    assert seen.count(False) > 50
    assert seen[-1]
    writer.close()


def test_closing_twice_is_once_and_nothing_is_added_after(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "a.sot", helpers.make_spec())
    source = helpers.Source(writer)
    source.step(2)
    writer.close()
    before = snapshot(tmp_path)
    writer.close()
    assert snapshot(tmp_path) == before
    with pytest.raises(StoreError, match="is closed; nothing can be added to it"):
        source.step(1)
    assert not [name for name in os.listdir(tmp_path / "a.sot" / STATES) if name.startswith(".")]
    assert not (tmp_path / "a.sot" / f".{JOURNAL}.new").exists()


@pytest.mark.parametrize("name", ["pos", "layer", "scalars"])
def test_a_site_cannot_take_a_name_of_the_stores_own(tmp_path: Path, name: str) -> None:
    site = SiteSpec(name=name, row=(4,), dims=("token", "dim"), dtype="float32", source_dtype="float32")
    spec = helpers.make_spec(()).model_copy(update={"sites": (site,)})
    with pytest.raises(StoreError, match=f"array or group '{name}' of its own; give that site another name"):
        RunWriter(tmp_path / "a.sot", spec)
    assert not (tmp_path / "a.sot").exists()


def test_a_file_system_without_locks_still_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", flock)
    with RunWriter(tmp_path / "a.sot", helpers.make_spec(), piece_of=helpers.piece_of) as writer:
        helpers.Source(writer).step(3)
        writer.flush()
        helpers.check_run(open_run(tmp_path / "a.sot", live=True), 3)
    assert open_run(tmp_path / "a.sot").complete
