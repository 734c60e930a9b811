"""The library: what a list says of each run, ids that are no paths, and what is neither opened nor deleted."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from store_helpers import make_run, wait_until, writer_process

from sotscope.errors import StoreError
from sotscope.store.reader import open_run
from sotscope.testing.runs import write_run
from sotscope_dashboards import library as module
from sotscope_dashboards.library import Library
from sotscope_dashboards.summary import stamp_of

GONE = "no such run here any more"
WORDS = {0: "Why", 1: " is", 2: "\u202ethe", 3: "\n sky"}


def run_at(path: Path, rows: int = 4) -> Path:
    path.parent.mkdir(exist_ok=True)
    write_run(path, {"resid": np.ones((rows, 2, 3), np.float32)}, words=WORDS, attributes={"model": {"name": "a/tiny"}})
    return path


def tell(path: Path, **config: Any) -> None:
    """Put other facts into the run's config event."""
    events = path / "events.jsonl"
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    events.write_text("".join(json.dumps(line | (config if line["kind"] == "config" else {})) + "\n" for line in lines))


def only(library: Library) -> dict[str, Any]:
    (entry,) = library.entries()
    return entry


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Path]:
    """A run that another process writes, some steps long."""
    path = tmp_path / "live.sot"
    with writer_process(path, steps=5) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        yield path


# -- the list ------------------------------------------------------------------------------------------------------


def test_what_the_list_says_of_a_finished_run(tmp_path: Path) -> None:
    path = run_at(tmp_path / "sky.sot")
    size = open_run(path).info()["bytes"]
    tell(path, time=1234.5, settings={"input": {"prompt": "Why\x1b[2J is\nthe \u202esky" + "!" * 99}})
    entry = only(Library(tmp_path))
    assert re.fullmatch(r"[0-9a-f]{16}", entry.pop("id"))
    assert entry.pop("bytes") == size
    prompt = ("Why\x1b[2J is\nthe \u202esky" + "!" * 99)[:80]
    assert entry == {
        "name": "sky.sot", "model": "tiny", "mode": "ar", "rows": 4, "state": "complete", "started": 1234.5,
        "prompt": prompt.replace("\x1b", "<U+001B>").replace("\n", "⏎").replace("\u202e", "<U+202E>"), "problem": "",
    }  # fmt: skip


def test_a_run_that_does_not_say_its_prompt_shows_the_beginning_of_its_text(tmp_path: Path) -> None:
    run_at(tmp_path / "sky.sot")
    assert only(Library(tmp_path))["prompt"] == "Why is<U+202E>the⏎ skyWhy"


def test_the_last_question_of_a_conversation_is_its_prompt(tmp_path: Path) -> None:
    path = run_at(tmp_path / "chat.sot")
    said = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "two"},
    ]
    tell(path, settings={"input": {"prompt": None, "messages": said}, "decode": {"mode": "sot"}})
    assert only(Library(tmp_path))["prompt"] == "two"


def test_two_levels_are_listed_newest_first(tmp_path: Path) -> None:
    for number, name in enumerate(["a.sot", "day/b.sot", "day/deep/c.sot", ".hidden/d.sot", "day/plain"]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        tell(run_at(tmp_path / name), time=100.0 + number)
    (tmp_path / "notes").mkdir()
    (tmp_path / "file.sot").write_text("no folder")
    assert [entry["name"] for entry in Library(tmp_path).entries()] == ["day/plain", "day/b.sot", "a.sot"]


@pytest.mark.parametrize("there", [True, False])
def test_no_runs(tmp_path: Path, there: bool) -> None:
    assert Library(tmp_path if there else tmp_path / "none").entries() == []


def test_damaged_runs_say_what_is_wrong_with_them(tmp_path: Path) -> None:
    for name in ("cut", "tail", "nojournal", "nozarr", "v2", "empty", "badevents", "sound"):
        make_run(tmp_path / f"{name}.sot")
    for name, keep in (("cut", 0.7), ("tail", 0.999)):
        journal = tmp_path / f"{name}.sot/journal.bin"
        journal.write_bytes(journal.read_bytes()[: int(journal.stat().st_size * keep)])
    (tmp_path / "nojournal.sot/journal.bin").unlink()
    (tmp_path / "nozarr.sot/states.zarr/zarr.json").write_text("{")
    (tmp_path / "v2.sot/states.zarr/.zgroup").write_text("{}")
    shutil.rmtree(tmp_path / "empty.sot/states.zarr")
    (tmp_path / "badevents.sot/events.jsonl").write_text('{"kind": ["config"], "time": "config"}\n')
    found = {entry["name"].removesuffix(".sot"): entry for entry in Library(tmp_path).entries()}
    assert found.pop("sound")["problem"] == ""
    assert (found["tail"]["state"], found.pop("tail")["rows"]) == ("complete", 10), "no row was lost"
    assert found.pop("badevents")["rows"] == 10, "its states and tokens can be read"
    assert {entry["state"] for entry in found.values()} == {"damaged"}
    assert found["cut"]["rows"] == len(open_run(tmp_path / "cut.sot")) < 10
    words = {"cut": "10 rows were published", "nojournal": "journal.bin", "nozarr": "damaged",
             "v2": "Zarr v2", "empty": "no zarr.json"}  # fmt: skip
    for name, word in words.items():
        assert word in found[name]["problem"], name
        assert "\n" not in found[name]["problem"]


def test_a_run_being_recorded_then_killed(tmp_path: Path, recording: Path) -> None:
    library = Library(tmp_path)
    entry = only(library)
    assert (entry["state"], entry["problem"]) == ("recording", "")
    assert entry["rows"] == len(open_run(recording, live=True)) > 0


def test_what_was_killed_is_interrupted(tmp_path: Path) -> None:
    library = Library(tmp_path)
    with writer_process(tmp_path / "live.sot", steps=5) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        rows = only(library)["rows"]
    assert (only(library)["state"], only(library)["rows"]) == ("interrupted", rows)


def test_what_is_closed_without_a_new_row_is_complete(tmp_path: Path) -> None:
    library = Library(tmp_path)
    with writer_process(tmp_path / "live.sot", steps=5) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "written\n"
        assert only(library)["state"] == "recording"
        process.stdin.write("\n")
        process.stdin.flush()
        process.wait(30)
    assert only(library)["state"] == "complete"


def test_a_run_that_did_not_change_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        run_at(tmp_path / f"{number}.sot")
    read: list[str] = []
    summary = module.summary
    monkeypatch.setattr(module, "summary", lambda path, follow: read.append(path.name) or summary(path, follow))
    library = Library(tmp_path)
    first = library.entries()
    assert len(read) == 3
    assert library.entries() == first
    assert len(read) == 3
    shutil.rmtree(tmp_path / "1.sot")
    run_at(tmp_path / "1.sot", rows=7)
    assert sorted(entry["rows"] for entry in library.entries()) == [4, 4, 7]
    assert read[3:] == ["1.sot"]


# -- ids -----------------------------------------------------------------------------------------------------------


def test_ids_open_runs_and_say_nothing_of_their_names(tmp_path: Path) -> None:
    for name in ("a.sot", "day/b.sot"):
        run_at(tmp_path / name)
    library = Library(tmp_path)
    ids = {entry["name"]: entry["id"] for entry in library.entries()}
    for name, id_ in ids.items():
        assert library.open(id_).path == tmp_path / name
        assert library.id_of(tmp_path / name) == id_
        assert name not in id_
        assert Library(tmp_path).id_of(tmp_path / name) == id_, "a link keeps working when the server is started anew"


@pytest.mark.parametrize(
    "id_", ["", ".", "..", "a.sot", "/a.sot", "../a.sot", "a.sot/../a.sot", "0" * 16, "é", "\ud800", "a.sot\0"]
)
def test_a_path_is_no_id(tmp_path: Path, id_: str) -> None:
    run_at(tmp_path / "a.sot")
    library = Library(tmp_path)
    library.entries()
    for given in (id_, str(tmp_path / "a.sot")):
        with pytest.raises(StoreError, match=GONE):
            library.open(given)
        with pytest.raises(StoreError, match=GONE):
            library.delete(given)
    assert (tmp_path / "a.sot/journal.bin").is_file()


def test_a_path_that_is_not_ours_has_no_id(tmp_path: Path) -> None:
    outside, runs = run_at(tmp_path / "outside.sot"), tmp_path / "runs"
    runs.mkdir()
    (runs / "link.sot").symlink_to(outside)
    library = Library(runs)
    for path in (outside, runs / ".." / "outside.sot", runs / "link.sot", runs, runs / "none.sot"):
        with pytest.raises(StoreError):
            library.id_of(path)


def test_an_id_can_be_had_for_a_run_that_was_not_listed_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    library = Library(Path("runs"))
    run_at(tmp_path / "runs/new.sot")
    assert len(library.open(library.id_of("runs/new.sot"))) == 4
    assert len(library.open(only(library)["id"])) == 4


# -- links and odd names -------------------------------------------------------------------------------------------


def test_a_link_out_of_the_folder_is_refused_and_one_within_is_not(tmp_path: Path) -> None:
    outside = run_at(tmp_path / "elsewhere/secret.sot").parent
    runs = tmp_path / "runs"
    run_at(runs / "a.sot")
    (runs / "out.sot").symlink_to(outside / "secret.sot")
    (runs / "day").symlink_to(outside)
    (runs / "within.sot").symlink_to(runs / "a.sot")
    library = Library(runs)
    assert {entry["name"] for entry in library.entries()} == {"a.sot", "within.sot"}
    assert [line.split(" is not opened")[0] for line in library.refused] == ["day/secret.sot", "out.sot"]


def test_a_run_with_a_link_inside_is_refused(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    path = run_at(tmp_path / "runs/a.sot")
    (path / "pieces.jsonl").unlink()
    (path / "pieces.jsonl").symlink_to(secret)
    library = Library(tmp_path / "runs")
    entry = only(library)
    assert (entry["state"], "symbolic link" in entry["problem"]) == ("damaged", True)
    with pytest.raises(StoreError, match="symbolic link"):
        library.open(entry["id"])


def test_a_run_that_becomes_a_link_is_refused(tmp_path: Path) -> None:
    run_at(tmp_path / "runs/a.sot").rename(tmp_path / "moved.sot")
    run_at(tmp_path / "runs/a.sot")
    library = Library(tmp_path / "runs")
    id_ = only(library)["id"]
    library.open(id_)
    shutil.rmtree(tmp_path / "runs/a.sot")
    (tmp_path / "runs/a.sot").symlink_to(tmp_path / "moved.sot")
    for act in (library.open, library.delete):
        with pytest.raises(StoreError, match="leads out of this folder"):
            act(id_)
    assert (tmp_path / "moved.sot/journal.bin").is_file()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names themselves")
def test_odd_names_are_refused_and_said(tmp_path: Path) -> None:
    whole = run_at(tmp_path / "déjà vu <b>.sot")
    for name in (b"new\nline.sot", b"\xe2\x80\xaegnp.sot", b"not\xffutf8.sot", b"back\\slash.sot", b"esc\x1b[2J.sot"):
        shutil.copytree(whole, tmp_path / os.fsdecode(name))
    library = Library(tmp_path)
    assert only(library)["name"] == whole.name
    assert len(library.refused) == 5
    assert all(line.isprintable() for line in library.refused)
    json.dumps(library.refused).encode()


# -- open and delete -----------------------------------------------------------------------------------------------


def test_at_most_eight_runs_are_kept_open_and_the_one_looked_at_longest_ago_goes(tmp_path: Path) -> None:
    for number in range(9):
        run_at(tmp_path / f"{number}.sot")
    library = Library(tmp_path)
    ids = [library.id_of(tmp_path / f"{number}.sot") for number in range(9)]
    runs = [library.open(id_) for id_ in ids[:8]]
    assert library.open(ids[0]) is runs[0]
    library.open(ids[8])
    assert library.open(ids[0]) is runs[0]
    assert library.open(ids[1]) is not runs[1]
    assert len(library._open) == 8


def test_threads_get_one_run(tmp_path: Path) -> None:
    for number in range(12):
        run_at(tmp_path / f"{number}.sot")
    library = Library(tmp_path)
    ids = [entry["id"] for entry in library.entries()]
    failed: list[BaseException] = []

    def look() -> None:
        try:
            for id_ in ids * 5:
                assert len(library.open(id_)) == 4
            assert len(library.entries()) == 12
        except BaseException as error:  # noqa: BLE001 - told to the test
            failed.append(error)

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_an_open_run_is_live(tmp_path: Path) -> None:
    path = tmp_path / "live.sot"
    with writer_process(path, pause=0.01):
        wait_until(lambda: stamp_of(path) != (0, 0, 0))
        library = Library(tmp_path)
        run = library.open(library.id_of(path))
        before = len(run)
        wait_until(lambda: bool(run.refresh()))
        assert len(library.open(library.id_of(path))) == len(run) > before


def test_a_deleted_run_is_one_clear_line_and_a_new_one_in_its_place_is_opened(tmp_path: Path) -> None:
    library = Library(tmp_path)
    id_ = library.id_of(run_at(tmp_path / "a.sot"))
    library.open(id_)
    shutil.rmtree(tmp_path / "a.sot")
    with pytest.raises(StoreError, match=GONE):
        library.open(id_)
    run_at(tmp_path / "a.sot", rows=7)
    assert len(library.open(id_)) == 7


def test_a_broken_run_is_one_clear_line(tmp_path: Path) -> None:
    path = run_at(tmp_path / "a.sot")
    (path / "journal.bin").write_text("hello")
    library = Library(tmp_path)
    with pytest.raises(StoreError, match="not a sotscope journal"):
        library.open(only(library)["id"])
    (path / "journal.bin").unlink()
    with pytest.raises(StoreError, match=r"has no journal\.bin"):
        library.open(only(library)["id"])


def test_delete_removes_that_run_only(tmp_path: Path) -> None:
    for name in ("a.sot", "b.sot"):
        run_at(tmp_path / name)
    library = Library(tmp_path)
    library.delete(library.id_of(tmp_path / "a.sot"))
    assert [path.name for path in tmp_path.iterdir()] == ["b.sot"]
    assert only(library)["name"] == "b.sot"


def test_delete_refuses_a_run_that_is_being_recorded(tmp_path: Path, recording: Path) -> None:
    library = Library(tmp_path)
    with pytest.raises(StoreError, match="being recorded"):
        library.delete(library.id_of(recording))
    assert only(library)["state"] == "recording"


def test_delete_follows_no_link_and_takes_no_folder_that_is_no_run(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    run_at(runs / "a.sot")
    (runs / "link.sot").symlink_to(runs / "a.sot")
    (runs / "photos.sot").mkdir()
    (runs / "photos.sot/cat.png").write_text("cat")
    library = Library(runs)
    ids = {entry["name"]: entry["id"] for entry in library.entries()}
    with pytest.raises(StoreError, match="symbolic link; remove it by hand"):
        library.delete(ids["link.sot"])
    with pytest.raises(StoreError, match="no sotscope run"):
        library.delete(ids["photos.sot"])
    assert (runs / "photos.sot/cat.png").is_file()
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep/file").write_text("keep")
    (runs / "a.sot/inner").symlink_to(tmp_path / "keep")
    library.delete(ids["a.sot"])
    assert (tmp_path / "keep/file").is_file()
