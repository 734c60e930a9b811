"""The command line, called in this process (``call``) or in one of its own (``spawn``), and a tiny model for it."""

from __future__ import annotations

import atexit
import functools
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sotscope.cli.main import run


@dataclass(frozen=True)
class Answer:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The last line of stdout, by the letter of the JSON standard (no NaN, no Infinity)."""
        return json.loads(self.out.rstrip("\n").split("\n")[-1], parse_constant=_refuse)

    @property
    def line(self) -> str:
        """The one line on stderr that a mistake is answered with."""
        lines = self.err.strip().split("\n")
        assert len(lines) == 1, f"more than one line: {self.err}"
        assert lines[0].startswith("sotscope: ")
        return lines[0].removeprefix("sotscope: ")


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def call(*arguments: object) -> Answer:
    """Run a command here."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = run([str(argument) for argument in arguments])
        except SystemExit as exit_:
            code = int(exit_.code or 0)
    return Answer(code, out.getvalue(), err.getvalue())


def mistake(*arguments: object) -> str:
    """Run a command that must be refused: exit code 2, nothing on stdout, one line. Returns the line."""
    answer = call(*arguments)
    assert answer.code == 2, answer
    assert answer.out == ""
    return answer.line


def popen(*arguments: object, before: str = "", **options: Any) -> subprocess.Popen[str]:
    """Start a command in a process of its own; ``before`` is Python that runs first."""
    script = f"{before}\nfrom sotscope.cli.main import main\nmain()"
    command = [sys.executable, "-c", script, *map(str, arguments)]
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "",
        **options.pop("env", {}),
    }
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment, **options}
    return subprocess.Popen(command, **given)


def spawn(*arguments: object, **options: Any) -> Answer:
    """Run a command in a process of its own."""
    process = popen(*arguments, **options)
    out, err = process.communicate(timeout=120)
    return Answer(process.returncode, out, err)


@functools.cache
def workplace() -> Path:
    """A folder that lasts as long as the tests."""
    folder = Path(tempfile.mkdtemp(prefix="sotscope-cli-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def model_folder(name: str = "llama", broken: bool = False, **changes: Any) -> Path:
    """A tiny model with a tokenizer of one byte a token, saved; ``broken``: with a NaN among its weights."""
    import torch

    from sotscope.testing.tiny import tiny
    from sotscope.testing.tokenizers import byte_tokenizer

    torch.set_num_threads(1)  # a second one only gets in the way of models of this size
    model = tiny(name, **{"vocab_size": 260, "max_position_embeddings": 256, **changes})
    if broken:
        with torch.no_grad():
            model.model.layers[2].mlp.down_proj.weight[0, 0] = float("nan")
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=workplace()))
    model.save_pretrained(folder)
    byte_tokenizer(chat=True).save_pretrained(folder)
    return folder


@functools.cache
def _recorded() -> Path:
    path = workplace() / "recorded.sot"
    answer = call("record", "why?", "-m", model_folder(), "-n", 60, "--sites", "resid,head_out", "-o", path, "--quiet")
    assert answer.code == 0, answer.err
    return path


def recorded(folder: Path, name: str = "a.sot") -> Path:
    """A copy of a finished run in ``folder``."""
    return Path(shutil.copytree(_recorded(), folder / name))
