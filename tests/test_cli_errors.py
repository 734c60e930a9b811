"""A user's mistake: one line on stderr that says what to do, exit code 2, never a traceback, nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_helpers import call, mistake, model_folder

RECORD = ("record", "why?", "-n", 4)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_model_folder_that_does_not_exist(tmp_path: Path) -> None:
    assert "the folder ./nowhere does not exist" in mistake(*RECORD, "--model", "./nowhere")
    assert list(tmp_path.iterdir()) == []


def test_a_model_folder_whose_config_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_text("{not json")
    assert mistake(*RECORD, "-m", "./bad").startswith("cannot load ./bad: ")


def test_a_model_that_is_some_other_file(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    assert "neither a model folder nor a .gguf file" in mistake(*RECORD, "-m", "notes.txt")


def test_a_gguf_file_that_is_not_there() -> None:
    assert mistake(*RECORD, "-m", "nowhere.gguf") == "nowhere.gguf does not exist."


def test_a_hub_id_without_network_names_the_local_folder_as_the_way_out() -> None:
    line = mistake(*RECORD, "-m", "someone/some-model")
    assert "'someone/some-model'" in line
    assert "local folder" in line


def test_an_unknown_site_is_refused_before_a_model_is_loaded() -> None:
    line = mistake(*RECORD, "-m", "./nowhere", "--sites", "resid,haed_out")
    assert line.startswith("unknown site 'haed_out'; did you mean head_out")


@pytest.mark.parametrize("layers", ["9", "2-9", "-5"])
def test_a_layer_out_of_range_says_which_there_are(layers: str) -> None:
    assert "the model has 4 layers, 0-3" in mistake(*RECORD, "-m", model_folder(), f"--layers={layers}")


def test_a_site_the_model_lacks_says_why_and_what_it_has() -> None:
    line = mistake(*RECORD, "-m", model_folder(), "--sites", "router")
    assert "dense model" in line
    assert "head_out" in line


@pytest.mark.parametrize("prompt", ["", "   ", "\n\t"])
def test_an_empty_prompt(prompt: str) -> None:
    assert mistake("record", prompt, "-m", "./nowhere") == "the prompt is empty; give some text."


def test_no_prompt_at_all_shows_what_to_type() -> None:
    assert 'sotscope record "Why is the sky blue?"' in mistake("record", "-m", "./nowhere")


def test_two_prompts(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("hello")
    assert "given twice" in mistake("record", "one", "--prompt", "two")
    assert "--prompt and --prompt-file" in mistake("record", "one", "--prompt-file", "p.txt")


def test_a_prompt_longer_than_the_context(tmp_path: Path) -> None:
    line = mistake("record", "x" * 300, "--raw", "-m", model_folder())
    assert line == "the prompt has 300 tokens, the model's context holds 256; shorten it."
    assert not (tmp_path / "runs").exists()


def test_a_prompt_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert "No such file" in mistake("record", "--prompt-file", "p.txt", "-m", model_folder())
    (tmp_path / "p.txt").write_bytes(b"\xff\xfe\xfa")
    assert "cannot read p.txt" in mistake("record", "--prompt-file", "p.txt", "-m", model_folder())


def test_an_existing_path_is_refused_and_keeps_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "a.sot").mkdir()
    (tmp_path / "a.sot" / "thesis.txt").write_text("precious")
    assert "exists already" in mistake(*RECORD, "-m", "./nowhere", "-o", "a.sot")
    assert (tmp_path / "a.sot" / "thesis.txt").read_text() == "precious"


def test_a_second_recording_to_the_same_path_leaves_the_first_as_it_was(tmp_path: Path) -> None:
    command = (*RECORD, "-m", model_folder(), "-o", "a.sot")
    assert call(*command).code == 0
    before = (tmp_path / "a.sot" / "journal.bin").read_bytes()
    assert "exists already" in mistake(*command)
    assert (tmp_path / "a.sot" / "journal.bin").read_bytes() == before
    assert call("verify", "a.sot").code == 0


def test_a_path_below_a_file_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    line = mistake(*RECORD, "-m", model_folder(), "-o", "file/a.sot")
    assert line.startswith("cannot create ")
    assert "file/a.sot: Not a directory" in line


def test_an_unknown_mode_names_those_there_are() -> None:
    line = mistake(*RECORD, "-m", "./nowhere", "--mode", "focred")
    assert line.startswith("unknown mode 'focred'; did you mean forced")


def test_a_forecast_over_the_budget_names_cheaper_settings(tmp_path: Path) -> None:
    line = mistake(*RECORD, "-m", model_folder(), "--max-bytes", "1kB")
    assert "more than 1.0 kB allowed" in line
    assert "--layers 'every 4'" in line
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("size", ["lots", "20XB", "-3", "5ib"])
def test_a_size_that_is_none(size: str) -> None:
    assert "--max-bytes" in mistake(*RECORD, f"--max-bytes={size}")


def test_bad_yaml_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("decode: [unclosed")
    assert mistake(*RECORD, "--config", "run.yaml").startswith("run.yaml is not YAML")
    assert "cannot read none.yaml" in mistake(*RECORD, "--config", "none.yaml")


def test_an_unknown_key_in_a_config_is_named_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("decode: {temprature: 0.5}")
    line = mistake(*RECORD, "--config", "run.yaml")
    assert line == "run.yaml: unknown setting 'decode.temprature'; did you mean 'temperature'?"


def test_a_value_out_of_range_names_the_setting() -> None:
    assert "decode.temperature = -1" in mistake(*RECORD, "--temperature=-1")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[{", "is not JSON"),
        ("{}", "must hold a list of messages"),
        ("[]", "must hold a list of messages"),
        ('[{"role": "user"}]', "message 0 must have role and content"),
        ('[{"role": "user", "content": "hi"}, "hello"]', "message 1 must have role and content"),
        ('[{"role": "user", "content": 5}]', "must be text"),
        ('[{"role": "wizard", "content": "hi"}]', "role 'wizard'"),
    ],
)
def test_a_bad_messages_file(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "m.json").write_text(content)
    assert says in mistake("record", "--messages", "m.json", "-m", model_folder())


def test_a_messages_file_that_is_not_there() -> None:
    assert mistake("record", "--messages", "m.json") == "cannot read m.json: No such file or directory."


def test_greedy_with_a_sampling_option_is_a_contradiction() -> None:
    assert "--temperature would do nothing" in mistake(*RECORD, "--greedy", "--temperature", "0.7")


def test_force_with_another_mode_is_refused() -> None:
    (Path("run.yaml")).write_text(json.dumps({"decode": {"mode": "nonsense", "force": "x"}}))
    assert "unknown mode 'nonsense'" in mistake(*RECORD, "-c", "run.yaml", "-m", model_folder())
    assert "empty" in mistake(*RECORD, "--force", "", "--mode", "forced", "-m", model_folder())


def test_a_module_without_a_path() -> None:
    assert "is not SITE=PATH" in mistake(*RECORD, "--module", "attn_out")


def test_a_wrong_option_is_one_line_that_points_to_the_help() -> None:
    assert mistake("record", "--frobnicate").startswith("No such option: --frobnicate")
    assert mistake("show").endswith("see: sotscope show --help")
    assert mistake("record", "a", "-n", "x").startswith("Invalid value for '--max-new-tokens' / '-n'")


def test_an_unknown_command_suggests_the_nearest() -> None:
    assert mistake("recrod", "hello") == "unknown command 'recrod'; did you mean record?"
