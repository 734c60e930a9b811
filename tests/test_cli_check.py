"""``sotscope check``: what it accepts, what it says, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import call, mistake, model_folder

LINES: list[Any] = [
    "one two one two",
    {"prompt": "def f(x):\n    return x\n", "kind": "code", "raw": True},
    {"prompt": "why?", "system": "be kind"},
    {"messages": [{"role": "user", "content": "hello hello hello"}], "kind": "chat"},
]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write(tmp_path, *LINES)


def write(folder: Path, *lines: Any) -> Path:
    path = folder / "mine.jsonl"
    path.write_text("\n".join([*map(json.dumps, lines), ""]))
    return path


def check(path: Path, *more: object, mode: str = "lookup", model: Path | None = None) -> Any:
    where = model or model_folder()
    return call("check", "--mode", mode, "--prompts", path, "-m", where, "-n", 24, "--controller", "none", *more)


def test_every_prompt_gets_its_verdict(prompts: Path) -> None:
    answer = check(prompts)
    assert answer.code == 0, answer
    rows = [line for line in answer.out.splitlines() if " identical " in line]
    assert len(rows) == 4
    assert rows[1].startswith("def f(x): return x ")
    assert rows[3].startswith("hello hello hello ")
    assert "4 prompts, 96 tokens: 4 identical;" in answer.out
    assert answer.err == ""


def test_json_says_all_of_it(prompts: Path) -> None:
    found = check(prompts, "--json", "--limit", 2).json
    assert (found["mode"], found["policy"], found["lossless"]) == ("lookup", "exact", True)
    assert (found["identical"], found["tie"], found["divergence"], found["invalid"]) == (2, 0, 0, 0)
    assert [entry["verdict"] for entry in found["prompts"]] == ["identical"] * 2
    assert found["prompts"][1]["kind"] == "code"
    assert found["prompts"][0]["tokens"] == 24
    assert found["prompts"][0]["index"] is None
    assert found["prompts"][0]["speedup"] > 0


def test_a_real_divergence_is_exit_code_1_with_its_place(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "one two one two one two", "raw": True})
    answer = check(path, "--policy", "none", "--json")
    (entry,) = answer.json["prompts"]
    assert answer.code == 1
    assert (entry["verdict"], answer.json["lossless"]) == ("divergence", False)
    assert entry["index"] >= 0
    assert entry["margin"] > 0
    plain = check(path, "--policy", "none")
    assert plain.code == 1
    assert "REAL DIVERGENCE" in plain.out
    assert "1 REAL DIVERGENCE (policy none is lossy)" in plain.out.splitlines()[-1]


def test_logits_that_are_not_finite_are_invalid_and_exit_code_1(prompts: Path) -> None:
    answer = check(prompts, "--limit", 1, model=model_folder(broken=True))
    assert answer.code == 1
    assert "INVALID" in answer.out
    assert "identical" not in answer.out


def test_a_text_file_has_one_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text('first\n\n{"prompt": "not JSON here"}\n')
    found = check(path, "--json").json
    assert [entry["prompt"] for entry in found["prompts"]] == ["first", '{"prompt": "not JSON here"}']
    assert [entry["line"] for entry in found["prompts"]] == [1, 3]


def test_a_mode_that_drafted_nothing_was_not_checked(tmp_path: Path) -> None:
    answer = check(write(tmp_path, {"prompt": "ab", "raw": True}), "-n", 1)
    assert answer.code == 0
    assert "drafted nothing" in answer.line


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2: not JSON"),
        ("5", "line 2: give a string"),
        ('{"text": "x"}', "line 2: unknown field 'text'"),
        ('{"kind": "chat"}', "line 2: give a string"),
        ('{"prompt": 5}', "line 2: prompt must be a str"),
        ('{"messages": ["x"]}', "line 2: messages are objects"),
        ('{"messages": [{"role": "nobody", "content": "x"}]}', "line 2: message 0 has role 'nobody'"),
        ('""', "line 2: the prompt is empty"),
        (json.dumps("x" * 400), "line 2: 4"),
    ],
)
def test_a_line_that_is_wrong_is_named(line: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(f'"fine"\n{line}\n')
    assert words in mistake("check", "--mode", "lookup", "--prompts", path, "-m", model_folder())


def test_what_cannot_be_checked_is_refused(prompts: Path, tmp_path: Path) -> None:
    ask = ["check", "--prompts", prompts, "-m", model_folder()]
    assert "mode ar drafts nothing" in mistake(*ask, "--mode", "ar")
    assert "'lokup'" in mistake(*ask, "--mode", "lokup")
    assert "no trained sot drafter" in mistake(*ask, "--mode", "sot")
    assert "policy" in mistake(*ask, "--mode", "lookup", "--policy", "exakt")
    assert "cannot read" in mistake("check", "--mode", "lookup", "--prompts", tmp_path / "no.jsonl")
    (tmp_path / "empty.txt").write_text("\n")
    assert "holds no prompts" in mistake("check", "--mode", "lookup", "--prompts", tmp_path / "empty.txt")
    mamba = model_folder("mamba")
    assert "recurrent state" in mistake("check", "--mode", "lookup", "--prompts", prompts, "-m", mamba, "-n", 4)
