"""`sotscope record`: what is printed where, what the JSON says, and which exit code a recording ends with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_helpers import call, model_folder

from sotscope.capture.selfcheck import SelfCheck
from sotscope.cli.watch import Watch
from sotscope.events import Step
from sotscope.store.reader import open_run

FIELDS = {
    "run", "model", "mode", "prompt_tokens", "new_tokens", "rows", "finish_reason", "text", "tokens_per_second",
    "tokens_per_forward", "bytes", "self_check", "stalled_ms", "alarms",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def record(*arguments: object, code: int = 0, prompt: str = "why?", model: object = None) -> Any:
    """The object of ``record --json``."""
    answer = call("record", prompt, "--model", model or model_folder(), "--json", *arguments)
    assert answer.code == code, answer.err
    assert answer.out.count("\n") == 1, "with --json the object is all of stdout"
    return answer.json


def test_json_says_what_was_recorded() -> None:
    found = record("--raw", "-n", 12, "-o", "a.sot")
    run = open_run("a.sot")
    assert set(found) >= FIELDS
    assert (found["run"], found["mode"], found["finish_reason"]) == ("a.sot", "ar", "max_new_tokens")
    assert (found["prompt_tokens"], found["new_tokens"], found["rows"]) == (4, 12, 15)
    assert found["self_check"]["passed"] is True
    assert found["text"] == run.tokens.generated
    assert len(run) == 15


def test_the_text_on_stdout_is_the_text_of_the_run() -> None:
    answer = call("record", "why?", "-m", model_folder(), "-n", 40, "-o", "a.sot")
    assert answer.code == 0
    assert answer.out.removesuffix("\n") == open_run("a.sot").events("outcome")[0]["text"].removesuffix("\n")
    assert answer.out.strip()


def test_a_character_that_is_held_back_at_the_end_is_printed() -> None:
    """The last token is a byte that makes no character alone; others might have followed."""
    run = open_run(record("--raw", "-n", 30)["run"])
    data = [run.pieces.data[token] for token in run.tokens.generated_ids]
    count = next(number for number, byte in enumerate(data, 1) if byte >= b"\x80")
    answer = call("record", "why?", "-m", model_folder(), "--raw", "-n", count, "-o", "a.sot")
    assert answer.out.endswith("\N{REPLACEMENT CHARACTER}\n")
    assert answer.out.removesuffix("\n") == open_run("a.sot").events("outcome")[0]["text"]


def test_what_is_expected_is_said_before_and_what_came_after() -> None:
    answer = call("record", "why?", "-m", model_folder(), "-n", 8, "-o", "a.sot")
    before, after, following = answer.err.strip().split("\n")
    assert "at most 8 new" in before
    assert "kB in a.sot" in before
    assert "8 new tokens" in after
    assert "self-check: passed" in after
    assert following == "sotscope: kept; next: sotscope show a.sot"


def test_quiet_prints_the_path_alone() -> None:
    answer = call("record", "why?", "-m", model_folder(), "-n", 4, "-q", "-o", "a.sot")
    assert (answer.out, answer.err) == ("a.sot\n", "")


def test_without_out_the_run_is_named_after_the_prompt() -> None:
    path = Path(record("-n", 2, prompt="Why is the sky blue?")["run"])
    assert path.parent == Path("runs")
    assert path.name.endswith("-ar-why-is-the-sky-blue.sot")


def test_sites_and_layers_under_other_names() -> None:
    record("-n", 2, "--sites", "hook_z,resid_post", "--sites", "ln_final", "--layers", "every 2", "-o", "a.sot")
    run = open_run("a.sot")
    assert (run.sites, run.layers) == (["resid", "head_out", "final"], [0, 2])


def test_states_can_be_left_out_and_stored_smaller() -> None:
    assert record("-n", 2, "--sites", "none", "-o", "a.sot")["bytes"] == 0
    record("-n", 2, "--store-dtype", "bfloat16", "-o", "b.sot")
    assert open_run("b.sot").spec.site("resid").dtype == "bfloat16"


def test_force_records_the_given_text_and_implies_the_mode() -> None:
    found = record("--force", "Because.", "-o", "a.sot")
    assert (found["mode"], found["text"], found["finish_reason"]) == ("forced", "Because.", "end_of_text")
    assert found["new_tokens"] == 8


def test_messages_and_a_system_prompt() -> None:
    Path("m.json").write_text('[{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}, '
                              '{"role": "user", "content": "bye"}]')  # fmt: skip
    call("record", "--messages", "m.json", "--system", "Be kind.", "-m", model_folder(), "-n", 2, "-o", "a.sot")
    run = open_run("a.sot")
    text = run.tokens.text
    assert [text.index(word) for word in ("Be kind.", "hello", "hi", "bye")] == sorted(
        text.index(word) for word in ("Be kind.", "hello", "hi", "bye")
    )
    assert set(run.tokens.segments) == {"system", "user", "assistant", "generated"}


def test_stop_strings_and_eos_end_the_text() -> None:
    free = record("--raw", "-n", 30)["text"]
    letter = next(char for char in free if char.isascii())
    stopped = record("--raw", "-n", 30, "--stop", letter, "--stop", "never said")
    assert stopped["finish_reason"] == "stop_string"
    assert stopped["text"] == free[: free.index(letter) + 1]
    run = open_run(record("--raw", "-n", 30, "-o", "a.sot")["run"])
    token = int(run.tokens.generated_ids[3])
    ended = record("--raw", "-n", 30, "--eos", token)
    assert ended["finish_reason"] == "eos"
    assert ended["new_tokens"] == run.tokens.generated_ids.index(token) + 1


def test_sampling_depends_on_the_seed_alone() -> None:
    def text(seed: int) -> str:
        return str(record("--raw", "-n", 20, "--temperature", "1.5", "--seed", seed)["text"])

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_a_model_with_a_nan_ends_with_a_warning_and_exit_code_1() -> None:
    answer = call("record", "why?", "--raw", "-m", model_folder(broken=True), "-n", 8, "--json", "-o", "a.sot")
    assert answer.code == 1
    assert answer.json["finish_reason"] == "non_finite"
    assert answer.json["alarms"][0]["first_bad_layer"] == 2
    assert "from layer 2, position 0" in answer.err
    assert "kept in a.sot" in answer.err


def test_a_self_check_that_fails_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sotscope.summary.self_check", lambda *_: SelfCheck(passed=False, errors={"resid": 0.5}))
    answer = call("record", "why?", "-m", model_folder(), "-n", 4, "-o", "a.sot")
    assert answer.code == 0
    assert "warning: self-check not passed: largest errors resid 0.5" in answer.err
    skipped = call("record", "why?", "-m", model_folder(), "-n", 4, "-o", "b.sot", "--no-self-check")
    assert "self-check: not run" in skipped.err


def test_a_failing_disk_keeps_the_run_and_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system refuses every write from the fifth step on."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    step = Watch.step

    def full(self: Watch, fact: Step) -> None:
        step(self, fact)
        if fact.index == 5:
            self._recorded.writer.flush()
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, before[1]))

    monkeypatch.setattr(Watch, "step", full)
    try:
        answer = call("record", "why?", "--raw", "-m", model_folder(), "-n", 30, "--json", "-o", "a.sot")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert answer.code == 1
    assert answer.json["new_tokens"] == 30, "decoding goes on"
    assert "recording ended after 8 rows: File too large" in answer.err
    assert "kept in a.sot" in answer.err
    assert len(open_run("a.sot")) == 8


def test_an_unexpected_error_shows_its_traceback_and_says_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("sotscope.decode.loop.Decoder._accept", wrong)
    with pytest.raises(ZeroDivisionError):
        call("record", "why?", "-m", model_folder(), "-n", 4, "-o", "a.sot")
    assert open_run("a.sot").events("outcome")[0]["finish_reason"] == "error"
