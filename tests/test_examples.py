"""Notebooks and scripts in examples/ run to their end with the embedded model, and say what they promise."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = {
    "probe.py": ("always guessing the same is right", "layer  15: right"),
    "tables.py": ("median norm by layer", "milliseconds a step"),
    "switch_modes.py": ("combine", "sot"),
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import sotscope

    out = tmp_path_factory.mktemp("examples") / "a.sot"
    sotscope.record("smollm2", "Why is the sky blue?", max_new_tokens=64, out=out)
    return out


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SCRIPTS)
    assert all(len(path.read_text().splitlines()) <= 60 for path in EXAMPLES.glob("*.py"))


@pytest.mark.model
@pytest.mark.parametrize("script", SCRIPTS)
def test_script_runs(
    script: str, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argument = tmp_path / "new.sot" if script == "switch_modes.py" else recorded
    monkeypatch.setattr(sys, "argv", [script, str(argument)])
    runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    said = capsys.readouterr().out
    assert all(words in said for words in SCRIPTS[script]), said


@pytest.mark.model
@pytest.mark.timeout(600)
@pytest.mark.parametrize("notebook", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    book = nbformat.read(notebook, as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells), "notebooks are kept without their outputs"
    client = NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    drawn = [output for cell in book.cells for output in cell.get("outputs", [])]
    assert any("text/html" in output.get("data", {}) for output in drawn)
