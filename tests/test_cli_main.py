"""The command line as a whole: what a newcomer sees, help, completion, pipes, and errors nobody planned."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import call, model_folder, popen, recorded, spawn

import sotscope
from sotscope.catalog import DRAFTERS
from sotscope.cli.main import COMMANDS
from sotscope.store.reader import open_run

SUBCOMMANDS = [[name] for name in COMMANDS] + [["bench", "capture"], ["bench", "store"]]


def test_without_a_command_it_says_what_to_type_first() -> None:
    answer = call()
    assert (answer.code, answer.err) == (0, "")
    for text in ("sotscope fetch", 'sotscope record "', "sotscope list", "sotscope show", "--help"):
        assert text in answer.out


def test_version() -> None:
    assert call("--version").out == f"sotscope {sotscope.__version__}\n"


def test_help_groups_the_commands() -> None:
    out = call("--help").out
    places = [out.index(panel) for panel in ("Start", "Look", "Share", "Build")]
    assert places == sorted(places)
    assert all(f" {name} " in out for name in COMMANDS)


@pytest.mark.parametrize("command", SUBCOMMANDS, ids=" ".join)
def test_help_of_every_command_has_an_example(command: list[str]) -> None:
    answer = call(*command, "--help")
    assert answer.code == 0
    examples = answer.out.split("Example")[-1]
    assert "sotscope " in examples
    assert call(*command, "-h").out == answer.out


def test_reading_the_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\nfrom sotscope.cli.main import run\nrun(['--help']); run(['record', '--help'])\n"
        "print([name for name in ('torch', 'transformers', 'zarr', 'pandas', 'xarray') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip().split("\n")[-1] == "[]"


def complete(line: str, cwd: Path) -> list[str]:
    """What the shell offers at the end of ``line``."""
    words = line.split(" ")
    env = {"_SOTSCOPE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    return spawn(env=env, cwd=cwd).out.split()


def test_the_shell_completes_commands_runs_sites_and_modes(tmp_path: Path) -> None:
    (tmp_path / "runs" / "sky.sot").mkdir(parents=True)
    assert complete("sotscope in", tmp_path) == ["inspect", "info"]
    assert complete("sotscope show ", tmp_path) == ["runs/sky.sot"]
    assert complete("sotscope record --sites resid,h", tmp_path) == ["resid,head_out"]
    assert complete("sotscope record --mode ", tmp_path) == DRAFTERS.names()
    assert "entropy" in complete("sotscope record --gate ", tmp_path)


@pytest.mark.parametrize(
    "command",
    [[], ["--help"], ["show", "a.sot"], ["show", "a.sot", "--text"], ["show", "a.sot", "--json"], ["list", "."]],
    ids=" ".join,
)
def test_a_closed_pipe_is_no_traceback(tmp_path: Path, command: list[str]) -> None:
    recorded(tmp_path)
    process = popen(*command, cwd=tmp_path)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=60)
    assert err == ""


def test_a_recording_goes_on_when_nobody_reads_its_text(tmp_path: Path) -> None:
    process = popen("record", "why?", "-m", model_folder(), "-n", 20, "-o", "a.sot", cwd=tmp_path)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "20 new tokens" in err
    assert "Traceback" not in err
    assert open_run(tmp_path / "a.sot").complete


def test_what_the_disk_refuses_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "a.sot/journal.bin")

    monkeypatch.setattr("sotscope.store.reader.open_run", full)
    answer = call("info", tmp_path)
    assert answer.code == 1
    assert answer.line == "No space left on device: a.sot/journal.bin"


def test_a_bug_shows_its_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def wrong(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("sotscope.store.reader.open_run", wrong)
    with pytest.raises(ZeroDivisionError):
        call("info", tmp_path)
