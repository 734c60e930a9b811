"""The options of drafting: they reach the settings, mistakes are one line, and lossy text is called so everywhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_helpers import Answer, call, mistake, model_folder

from sotscope.cli.options import complete_combine, complete_gates
from sotscope.cli.settings import run_config
from sotscope.cli.terminal import lossy
from sotscope.config import DecodeConfig, RunConfig
from sotscope.errors import ConfigError
from sotscope.store.reader import Run, open_run

PROMPT = "the cat and the dog and the cat and the dog and"
BY_ORDER = ("--controller", "none", "--no-guard")
"""Nothing goes by the clock."""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def record(*arguments: object) -> Answer:
    answer = call("record", PROMPT, "--raw", "-m", model_folder(), "-n", 48, "--no-self-check", *arguments)
    assert answer.code == 0, answer.err
    return answer


def test_every_option_has_its_place() -> None:
    given = {
        "window": 3, "drafter": "mine", "policy": "typical", "typical_epsilon": 0.2, "typical_alpha": 0.1,
        "draft_temperature": 1.3, "correction": 0.25, "draft_floor": 0.1, "draft_dtype": "bfloat16",
        "draft_sample": True, "record_predicted": True, "lookup_window": 5, "lookup_longest": 4, "lookup_shortest": 3,
        "combine": "lookup, dmtd", "gates": ["periodic", "entropy:threshold=2,rest=8"], "controller": "none",
        "guard": False,
    }  # fmt: skip
    expected = DecodeConfig.model_validate(
        {
            "mode": "combine", "window": 3, "drafter": "mine", "policy": "typical",
            "typical": {"epsilon": 0.2, "alpha": 0.1},
            "draft": {"temperature": 1.3, "correction": 0.25, "floor": 0.1, "dtype": "bfloat16", "sample": True,
                      "record_states": True},
            "lookup": {"window": 5, "longest": 4, "shortest": 3}, "combine": ["lookup", "dmtd"],
            "gates": {"periodic": {}, "entropy": {"threshold": 2, "rest": 8}}, "controller": "none", "guard": False,
        }
    )  # fmt: skip
    assert run_config(given, None).decode == expected


def test_gates_of_the_command_line_join_those_of_the_file() -> None:
    Path("run.yaml").write_text("decode: {gates: {entropy: {threshold: 2, rest: 4}, warmup: {}, cost: {}, guard: {}}}")
    settings = run_config(
        {"gates": ["entropy:rest=8", "periodic"], "controller": "none", "guard": False}, Path("run.yaml")
    )
    assert settings.decode.gates == {"entropy": {"threshold": 2, "rest": 8}, "warmup": {}, "periodic": {}}


def test_the_shell_offers_gates_and_who_can_be_combined() -> None:
    assert {"periodic", "entropy", "mix_ratio"} <= set(complete_gates())
    assert "lookup,sot" in complete_combine("lookup,s")
    assert not {"ar", "forced", "combine"} & set(complete_combine(""))


def test_a_gate_and_a_window_do_what_they_say() -> None:
    record("--mode", "lookup", "--window", 3, "--gate", "mix_ratio:drafted=4,plain=2", *BY_ORDER, "-o", "a.sot")
    run = open_run("a.sot")
    steps = run.steps[run.steps["reason"] != "prefill"]
    assert steps["window"].max() == 3
    assert len(run.drafts)
    said = 0
    for rows, reason in zip(steps["rows"], steps["reason"], strict=True):
        assert said % 6 + rows <= 4 or (rows, reason) == (1, "gated")
        said += rows
    assert run.events("config")[0]["settings"]["decode"]["gates"] == {"mix_ratio": {"drafted": 4, "plain": 2}}
    record("-o", "ar.sot")
    assert run.tokens.all_ids == open_run("ar.sot").tokens.all_ids


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--gate", "periodc"], "unknown gate 'periodc'; did you mean periodic?"),
        (["--gate", "periodic:evry=3"], "unknown parameter of gate periodic 'evry'; did you mean every?"),
        (["--gate", "paragraph:every=3"], "gate paragraph takes no parameters."),
        (["--gate", "cost:widths=3"], "unknown parameter of gate cost 'widths'"),
        (["--gate", "periodic:every=often"], "gate periodic: every = 'often' is not a whole number."),
        (["--gate", "periodic:every=1.5"], "gate periodic: every = 1.5 is not a whole number."),
        (["--gate", "entropy:threshold=much"], "gate entropy: threshold = 'much' is not a number."),
        (["--gate", "periodic:every=0"], "gate periodic: every = 0; give 1 or more."),
        (["--gate", "periodic:every"], "--gate 'periodic:every' is not NAME or NAME:PARAM=VALUE,..."),
        (["--gate", "periodic:"], "--gate 'periodic:' is not NAME or NAME:PARAM=VALUE,..."),
        (["--gate", ":every=1"], "--gate ':every=1' is not NAME or NAME:PARAM=VALUE,..."),
        (["--window=-1"], "decode.window = -1: input should be greater than or equal to 0."),
        (["--policy", "lossy"], "decode.policy = 'lossy': input should be 'exact', 'typical' or 'none'."),
        (["--controller", "me"], "decode.controller = 'me': input should be 'cost', 'lstm' or 'none'."),
        (["--draft-temperature", "0"], "decode.draft.temperature = 0.0: input should be greater than 0."),
        (["--typical-alpha", "0.1"], "--typical-alpha is for --policy typical, not for exact; leave one of them out."),
        (["--combine", "lookup", "--mode", "sot"], "--combine is for --mode combine, not for sot; leave one of them"),
        (["--combine", "lookup,sto"], "unknown mode 'sto'; did you mean sot"),
        (["--combine", ","], "decode.combine = []: list should have at least 1 item"),
    ],
    ids=str,
)  # fmt: skip
def test_a_mistake_is_one_line_before_a_model_is_loaded(options: list[str], line: str) -> None:
    found = mistake("record", "why?", "-m", "./nowhere", *options)
    assert found.removeprefix("settings: ").startswith(line)


# -- dmtd_config -----------------------------------------------------------------------------------------------

BLOCK = "dmtd_config: {max_tokens: 2, entropy_threshold: 2.5, warmup_steps: 4, batch_strategy: elastic}\n"


def test_dmtd_config_is_turned_into_our_settings() -> None:
    settings = RunConfig.build(yaml.safe_load(BLOCK), "run.yaml")
    decode = settings.decode
    assert (decode.mode, decode.window) == ("dmtd", 2)
    assert decode.gates == {"entropy": {"threshold": 2.5}, "cost": {"warmup_steps": 4}}
    for again in (settings.model_dump(exclude_unset=True), settings.model_dump(), yaml.safe_load(settings.to_yaml())):
        assert RunConfig.build(again, "again") == settings
    assert len(settings.notices) == 1
    assert RunConfig.build({"dmtd_config": {"batch_strategy": "static"}}, "").notices == []


@pytest.mark.parametrize(
    ("decode", "says"),
    [
        ("{window: 3}", "dmtd_config and decode.window contradict each other"),
        ("{gates: {entropy: {threshold: 1}}}", "dmtd_config and decode.gates.entropy.threshold contradict each other"),
        ("{gates: {cost: {warmup_steps: 1}}}", "dmtd_config and decode.gates.cost.warmup_steps contradict each other"),
        ("{controller: none}", "dmtd_config.warmup_steps is for controller cost, not none"),
    ],
)
def test_dmtd_config_that_contradicts_the_rest_of_the_file_is_refused(decode: str, says: str) -> None:
    Path("run.yaml").write_text(f"{BLOCK}decode: {decode}")
    assert mistake("record", "why?", "-c", "run.yaml") == f"run.yaml: {says}; leave one of them out."


def test_dmtd_config_goes_with_settings_that_say_the_same_or_something_else() -> None:
    data = yaml.safe_load(f"{BLOCK}decode: {{mode: sot, window: 2, gates: {{entropy: {{rest: 3}}}}}}")
    decode = RunConfig.build(data, "").decode
    assert (decode.mode, decode.window, decode.gates["entropy"]) == ("sot", 2, {"rest": 3, "threshold": 2.5})


@pytest.mark.parametrize(
    ("block", "says"),
    [
        ("{max_tokens: 0}", "dmtd_config.max_tokens = 0: "),
        ("{max_tokns: 2}", "unknown setting 'dmtd_config.max_tokns'; did you mean 'max_tokens'?"),
        ("{batch_strategy: rubber}", "dmtd_config.batch_strategy = 'rubber': "),
    ],
)
def test_a_dmtd_config_that_is_wrong(block: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^f: {says.replace('?', '.')}"):
        RunConfig.build({"dmtd_config": yaml.safe_load(block)}, "f")


def test_options_override_what_dmtd_config_says() -> None:
    Path("run.yaml").write_text(BLOCK)
    decode = run_config({"window": 5, "mode": "sot", "controller": "none"}, Path("run.yaml")).decode
    assert (decode.mode, decode.window, decode.gates) == ("sot", 5, {"entropy": {"threshold": 2.5}})


def test_the_notice_is_given_once_and_kept() -> None:
    Path("run.yaml").write_text(f"{BLOCK}decode: {{mode: lookup, guard: false}}")
    answer = record("-c", "run.yaml", "-o", "a.sot")
    assert answer.err.count("elastic") == 1
    assert "warning: dmtd_config.batch_strategy elastic has no effect on a single sequence yet" in answer.err
    config = open_run("a.sot").events("config")[0]
    assert config["warnings"] == ["dmtd_config.batch_strategy elastic has no effect on a single sequence yet"]
    assert config["settings"]["decode"]["window"] == 2
    assert open_run("a.sot").steps["window"].max() == 2


# -- lossy text ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def believing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Answer]:
    """A run that believed every draft, and what `record` printed."""
    path = tmp_path_factory.mktemp("lossy") / "a.sot"
    answer = record("--mode", "lookup", "--policy", "none", *BY_ORDER, "-o", path)
    return open_run(path), answer


def test_a_lossy_run_is_called_so_with_its_count(believing: tuple[Run, Answer]) -> None:
    run, answer = believing
    # greedy: a token that is not the likeliest after its row was not the model's choice
    foreign = int((run.top[0][:, 0] != run.tokens.next_ids)[len(PROMPT) - 1 :].sum())
    assert foreign > 1
    words = f"lossy (none): {foreign} of 48 tokens are not what ar would have chosen"
    assert f"sotscope: {words}\n" in answer.err
    assert "mode lookup, lossy (none): " in answer.err
    assert words in call("info", run.path).out
    assert f"The text is {words}" in call("show", run.path).out
    assert "lookup, lossy" in call("list", run.path.parent).out
    outcome: Any = call("info", run.path, "--json").json["outcome"]
    assert (outcome["policy"], outcome["lossy"], outcome["believed"]) == ("none", True, foreign)
    assert call("list", run.path.parent, "--json").json["runs"][0]["lossy"] is True


def test_show_marks_the_tokens_that_were_believed(believing: tuple[Run, Answer]) -> None:
    run, _ = believing
    found = call("show", run.path, "--rows", "0-", "--json").json
    believed = set(run.drafts.loc[run.drafts["reason"] == "believed", "target"])
    assert {row["pos"] for row in found["rows"] if row["believed"]} == believed & {row["pos"] for row in found["rows"]}
    assert found["lossy"].startswith("lossy (none): ")
    assert "lookup, believed" in call("show", run.path).out


def test_a_lossy_run_that_was_cut_off_is_called_so(believing: tuple[Run, Answer], tmp_path: Path) -> None:
    run, _ = believing
    journal = Path(shutil.copytree(run.path, tmp_path / "b.sot")) / "journal.bin"
    journal.write_bytes(journal.read_bytes()[: int(journal.stat().st_size * 0.8)])
    assert open_run(journal.parent).events("outcome") == []
    assert "lossy (none): " in call("info", journal.parent).out


def test_an_exact_run_says_nothing_of_it() -> None:
    answer = record("--mode", "lookup", *BY_ORDER, "-o", "a.sot")
    said = [answer.err, *(call(command, "a.sot").out for command in ("info", "show")), call("list", ".").out]
    assert not [text for text in said if "lossy" in text]
    found = json.loads(call("show", "a.sot", "--json").out)
    assert found["lossy"] is None


def test_lossy_in_words() -> None:
    assert lossy("typical", 12, 128) == "lossy (typical): 12 of 128 tokens are not what ar would have chosen"
    assert lossy("none", 1, 1) == "lossy (none): 1 of 1 token is not what ar would have chosen"
    assert lossy("exact", 0, 9).startswith("lossy in part: 0 of 9 tokens are")
