"""`record --monitor --recover --intervene --from`: what is printed where, what the run says, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_helpers import call, mistake, model_folder

from sotscope.store.reader import open_run


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def command(*arguments: object) -> tuple[object, ...]:
    return ("record", "a", "--raw", "--greedy", "--model", model_folder(), *arguments)


def looping(*arguments: object) -> tuple[object, ...]:
    """The tiny model comes to repeat itself within so many tokens."""
    return command("-n", 100, *arguments)


def test_a_pipe_gets_the_text_that_stands_in_the_end_and_stderr_what_was_taken_back() -> None:
    answer = call(*looping("--recover", "rollback", "-o", "a.sot"))
    assert answer.code == 0
    run = open_run("a.sot")
    assert run.events("retracted"), "there was a loop"
    last = int(run.sequences["seq_id"].iloc[-1])
    assert answer.out.rstrip("\n") == run.tokens_of(last).generated.rstrip("\n")
    assert "tokens are taken back" in answer.err
    assert call("show", "a.sot", "--text").out.rstrip("\n").endswith(run.tokens_of(last).generated.rstrip("\n"))


def test_json_names_the_alarms_and_the_interventions() -> None:
    found = call(*looping("--monitor", "--json", "-o", "a.sot")).json
    assert "repetition" in {alarm["kind"] for alarm in found["alarms"]}
    assert found["interventions"] == []
    steered = call(*command("-n", 8, "--intervene", "steer:dim=3,value=2", "--measure", "--json", "-o", "b.sot")).json
    assert steered["interventions"] == ["steer"]
    assert open_run("b.sot").scalars("intervened").all()


def test_diagnose_says_what_where_and_what_to_try() -> None:
    call(*looping("-o", "a.sot"))
    answer = call("diagnose", "a.sot")
    assert answer.code == 0
    assert "cycle" in answer.out
    assert "--recover rollback" in answer.out
    found = call("diagnose", "a.sot", "--json").json
    alarm = found["sequences"][0]["alarms"][0]
    assert {"kind", "severity", "onset", "pos", "end", "message", "evidence", "advice"} <= set(alarm)
    assert found["verdict"] in ("warning", "critical")


def test_from_goes_on_with_the_settings_of_the_run() -> None:
    call(*command("-n", 20, "-o", "a.sot", "--repetition-penalty", 1.3))
    first = open_run("a.sot")
    length = int(first.sequences["prompt_length"].iloc[0])
    answer = call("record", "--from", f"a.sot@{length + 6}", "--model", model_folder(), "-o", "b.sot", "--json")
    assert answer.code == 0, answer.err
    second = open_run("b.sot")
    assert second.tokens.all_ids == first.tokens.all_ids
    assert second.info()["settings"]["decode"]["repetition_penalty"] == 1.3
    call("record", "--from", f"a.sot@{length + 6}", "--model", model_folder(), "-o", "c.sot", "-n", 3)
    assert open_run("c.sot").tokens.all_ids == first.tokens.all_ids[: length + 9]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--monitors", "repetitions"), "did you mean"),
        (("--monitors", "repetition:tokens=x"), "tokens = 'x'"),
        (("--monitors", "repetition:tokens=0"), "repetition"),
        (("--recover", "rolback"), "did you mean"),
        (("--recover", "rollback:hold=0"), "hold >= 1"),
        (("--recover", "rollback", "--recover-on", "loops"), "unknown monitor"),
        (("--attempts", 0), "attempts"),
        (("--baseline", "none.json"), "cannot read none.json"),
        (("--intervene", "prunes"), "did you mean"),
        (("--intervene", "prune:k=-1"), "k"),
        (("--intervene", "temperature:value=2", "--intervene", "temperature:value=3"), "contradict"),
        (("--from", "a.sot"), "leave out --prompt"),
    ],
)
def test_a_mistake_is_one_line_and_makes_no_run(arguments: tuple[object, ...], says: str) -> None:
    assert says in mistake(*command("-o", "a.sot", *arguments))
    assert not Path("a.sot").exists()
