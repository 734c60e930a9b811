"""`list`, `info`, `show` and `verify`: what they say of sound, broken and growing runs, without torch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cli_helpers import call, mistake, recorded, spawn

from sotscope.events import Branch
from sotscope.store.reader import Run, open_run
from sotscope.store.writer import RunWriter

READERS = ("info", "show", "verify")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    return open_run(recorded(tmp_path))


@pytest.mark.parametrize("command", READERS)
def test_what_is_no_run(tmp_path: Path, command: str) -> None:
    assert "does not exist" in mistake(command, tmp_path / "none.sot") or command == "verify"
    (tmp_path / "empty.sot").mkdir()
    assert "is not a sotscope run" in mistake(command, tmp_path / "empty.sot")
    (tmp_path / "file.sot").write_text("hello")
    assert mistake(command, tmp_path / "file.sot")


@pytest.mark.parametrize("command", ["info", "show"])
def test_a_zarr_v2_store_is_not_opened(tmp_path: Path, command: str) -> None:
    (tmp_path / "old.zarr").mkdir()
    (tmp_path / "old.zarr" / ".zgroup").write_text('{"zarr_format": 2}')
    assert "Zarr v2" in mistake(command, tmp_path / "old.zarr")


def test_info_says_what_the_run_is(run: Run) -> None:
    found = call("info", run.path, "--json").json
    assert found == json.loads(json.dumps(run.info()))
    shown = call("info", run.path).out
    for text in ("complete", "passed", "head_out", "max_new_tokens", "llama", f"{len(run)}"):
        assert text in shown


def test_verify_of_a_sound_run(run: Run) -> None:
    assert call("verify", run.path).out.endswith("every checksum right.\n")
    found = call("verify", run.path, "--json").json
    assert (found["sound"], found["rows"], found["complete"]) == (True, len(run), True)


def test_a_flipped_byte_in_the_states_is_found(run: Run) -> None:
    chunk = next((run.path / "states.zarr" / "resid").rglob("c/0/*/*"))
    with open(chunk, "r+b") as file:
        file.seek(100)
        file.write(b"\xff\xff")
    answer = call("verify", run.path, "--json")
    assert answer.code == 1
    assert answer.json["sound"] is False
    assert "crc32c differs" in answer.err


def cut(run: Run, share: float) -> None:
    journal = run.path / "journal.bin"
    data = journal.read_bytes()
    journal.write_bytes(data[: int(len(data) * share)])


def test_a_journal_cut_in_the_middle_is_read_up_to_there(run: Run) -> None:
    whole = len(run)
    cut(run, 0.7)
    assert 0 < call("info", run.path, "--json").json["rows"] < whole
    shown = call("show", run.path, "--json").json
    assert shown["rows"][-1]["row"] == call("info", run.path, "--json").json["rows"] - 1
    answer = call("verify", run.path)
    assert answer.code == 1
    assert f"{whole} tokens" in answer.err
    repaired = call("verify", run.path, "--repair", "--json").json
    assert repaired["published_rows"] == repaired["rows"] < whole


@pytest.mark.parametrize("command", READERS)
def test_a_journal_without_its_header_is_one_line(run: Run, command: str) -> None:
    cut(run, 0.001)
    assert mistake(command, run.path)


def test_damage_inside_the_journal_is_shown_and_fails_verify(run: Run) -> None:
    with open(run.path / "journal.bin", "r+b") as file:
        file.seek((run.path / "journal.bin").stat().st_size * 3 // 4)
        file.write(b"\x00\x01\x02\x03")
    answer = call("info", run.path)
    assert answer.code == 0
    assert "journal damaged at byte" in answer.err
    assert call("verify", run.path).code == 1


def test_list_has_the_newest_last_and_a_broken_run_with_its_problem(run: Run, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "runs" / "z-older.sot")
    shutil.copytree(run.path, tmp_path / "runs" / "a-newer.sot")
    events = tmp_path / "runs" / "a-newer.sot" / "events.jsonl"
    first, *others = events.read_text().split("\n")
    event = json.loads(first)
    assert event["kind"] == "config"
    later = f"{event['time'] + 1:.6f}".ljust(len(str(event["time"])), "0")[: len(str(event["time"]))]
    events.write_text("\n".join([first.replace(str(event["time"]), later), *others]))
    (tmp_path / "runs" / "broken.sot").mkdir()
    shutil.copytree(run.path, tmp_path / "runs" / "torn.sot")
    (tmp_path / "runs" / "torn.sot" / "journal.bin").write_bytes(b"nonsense")
    found = call("list", "--json").json["runs"]
    sound = [entry["name"] for entry in found if entry["state"] == "complete"]
    assert sound == ["z-older.sot", "a-newer.sot"]
    problems = {entry["name"]: entry["problem"] for entry in found if entry["state"] == "broken"}
    assert set(problems) == {"broken.sot", "torn.sot"}
    assert "no journal.bin" in problems["broken.sot"]
    answer = call("list")
    assert answer.code == 0
    assert all(entry["name"] in answer.out for entry in found)
    assert problems["torn.sot"] in answer.out.replace("\n", " ")


def test_list_of_nothing_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = call("list")
    assert (answer.code, answer.out) == (0, "")
    assert "sotscope record" in answer.err
    assert call("list", "--json").json == {"folder": "runs", "runs": []}
    assert "is not a folder" in mistake("list", "elsewhere")


def test_a_run_that_is_being_written_is_listed_as_recording(run: Run, tmp_path: Path) -> None:
    with RunWriter(tmp_path / "live.sot", run.spec) as writer:
        writer.sequence(Branch(0, 1))
        writer.publish()
        found = {entry["name"]: entry for entry in call("list", tmp_path, "--json").json["runs"]}
        assert found["live.sot"]["state"] == "recording"
        assert "is being recorded" in mistake("verify", tmp_path / "live.sot", "--repair")
        assert call("show", tmp_path / "live.sot").err == f"sotscope: {tmp_path / 'live.sot'} has no rows yet\n"


def test_escape_sequences_in_a_name_do_not_reach_the_terminal(run: Run, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "runs" / "\x1b[31mred.sot")
    assert "\x1b" not in call("list").out
    assert r"\x1b[31mred.sot" in call("list").out


def test_readers_need_no_torch(run: Run, tmp_path: Path) -> None:
    """One process runs all four; then a command that needs torch says how to get it."""
    shutil.copytree(run.path, tmp_path / "runs" / "b.sot")
    block = "import sys\nfor name in ('torch', 'transformers'): sys.modules[name] = None\n"
    calls = [["list"], ["info", "a.sot"], ["show", "a.sot", "--json"], ["verify", "a.sot"], ["record", "hello"]]
    before = f"{block}from sotscope.cli.main import run\nprint([run(command) for command in {calls}])\nsys.exit()"
    answer = spawn(before=before, cwd=tmp_path)
    assert answer.out.strip().split("\n")[-1] == "[0, 0, 0, 0, 2]"
    assert answer.err == "sotscope: record needs torch and transformers: pip install 'sotscope[capture]'\n"
