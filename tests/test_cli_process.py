"""Recording in a process of its own: interrupted, without network, and with stderr as a user sees it."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import model_folder, popen, spawn

from sotscope.errors import StoreError
from sotscope.store.reader import open_run

NO_NETWORK = """
import socket
def refuse(*arguments, **options):
    open("network.txt", "a").write(f"{arguments}")
    raise OSError("no network here")
socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
"""


def interrupt(process: Any, path: Path) -> tuple[str, str]:
    """SIGINT once the run at ``path`` has ten rows of decoded tokens; what the process printed."""
    deadline = time.monotonic() + 60
    rows = 0
    while rows < 14:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        try:
            rows = len(open_run(path, live=True))
        except StoreError:
            time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return out, err


@pytest.mark.parametrize("flags", [[], ["--json"]], ids=["text", "json"])
def test_ctrl_c_keeps_the_run(tmp_path: Path, flags: list[str]) -> None:
    model = model_folder(max_position_embeddings=200_000)
    command = ["record", "why?", "--raw", "-m", model, "-n", 100_000, "-o", "a.sot", *flags]
    process = popen(*command, cwd=tmp_path)
    out, err = interrupt(process, tmp_path / "a.sot")
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "sotscope show a.sot" in err
    run = open_run(tmp_path / "a.sot")
    assert len(run) >= 14
    assert run.complete is False
    assert run.states("resid").shape[0] == len(run)
    outcome = run.events("outcome")[0]
    assert (outcome["finish_reason"], outcome["rows"]) == ("interrupted", len(run))
    if flags:
        found = json.loads(out.strip().split("\n")[-1])
        assert (found["finish_reason"], found["rows"], found["run"]) == ("interrupted", len(run), "a.sot")


def test_ctrl_c_before_the_first_token_is_quiet(tmp_path: Path) -> None:
    before = "import sotscope.cli.settings as s\ndef stop(names): raise KeyboardInterrupt\ns.check_sites = stop\n"
    answer = spawn("record", "why?", "-m", model_folder(), before=before, cwd=tmp_path)
    assert (answer.code, answer.out, answer.err) == (130, "", "")
    assert list(tmp_path.iterdir()) == []


def test_without_network_a_local_folder_records_and_nothing_is_tried(tmp_path: Path) -> None:
    answer = spawn("record", "why?", "-m", model_folder(), "-n", 4, "--json", before=NO_NETWORK, cwd=tmp_path)
    assert answer.code == 0
    assert answer.json["new_tokens"] == 4
    assert not (tmp_path / "network.txt").exists()


def test_stderr_holds_nothing_but_our_own_lines(tmp_path: Path) -> None:
    """transformers warns about Mamba's kernels, and shows a bar while weights are read."""
    model = model_folder("mamba", max_position_embeddings=None)
    answer = spawn("record", "why?", "--raw", "-m", model, "-n", 4, "--greedy", "-o", "a.sot", cwd=tmp_path)
    assert answer.code == 0
    assert len(answer.err.strip().split("\n")) == 3
    assert all(line.startswith("sotscope: ") for line in answer.err.strip().split("\n"))
