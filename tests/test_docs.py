"""Every code block in the documentation runs, in order, with the embedded model."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml
from cli_helpers import call

from sotscope.config import RunConfig

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROSE = {"text", ""}
"""Blocks that are output, not code."""
SHELL = {"|", ">", "<", "&&", "&", ";"}


def blocks(page: Path) -> list[tuple[str, str]]:
    return [(language, body) for language, body in BLOCK.findall(page.read_text()) if language not in PROSE]


def test_every_page_uses_languages_that_are_executed():
    assert {language for page in PAGES for language, _ in blocks(page)} <= {"python", "sh", "yaml"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_yaml_blocks_are_valid_settings(page: Path):
    for language, body in blocks(page):
        if language == "yaml":
            RunConfig.build(yaml.safe_load(body), page.name)


@pytest.mark.model
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [p for p in PAGES if any(b[0] != "yaml" for b in blocks(p))], ids=lambda p: p.stem)
def test_code_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    namespace: dict[str, object] = {"__name__": "__docs__"}
    for language, body in blocks(page):
        if language == "python":
            exec(compile(body, f"{page.name} block", "exec"), namespace)
        elif language == "yaml":
            (tmp_path / "run.yaml").write_text(body)
        elif language == "sh":
            for line in body.replace("\\\n", " ").splitlines():
                run_line(line, tmp_path)


def run_line(line: str, folder: Path) -> None:
    """Run a `sotscope` line; of a `make` line, which would run this suite, see that the target exists."""
    words = shlex.split(line, comments=True)
    if not words:
        return
    if words[0] == "make":
        targets = re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(words[1:]) <= set(targets), f"no such make target: {line}"
        return
    assert words[0] == "sotscope", f"what is this line? {line}"
    assert not SHELL & set(words), f"a line of its own, please: {line}"
    if words[1] in ("dashboard", "demo"):
        serve(words, folder)
        return
    answer = call(*words[1:])
    assert answer.code == 0, f"{line}\n{answer.out}\n{answer.err}"


def serve(words: list[str], folder: Path) -> None:
    """Run a command that serves until Ctrl-C; its link must let us in."""
    command = [*words, *([] if "--no-browser" in words else ["--no-browser"])]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        link = next(found[0] for line in process.stdout if (found := re.search(r"http://\S+", line)))
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        assert b"sotscope" in opener.open(link, timeout=60).read()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_the_reference_is_what_the_code_says():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import make_reference
    finally:
        sys.path.pop(0)
    assert make_reference.PAGE.read_text() == make_reference.page(), "run `make docs`"
