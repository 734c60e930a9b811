"""Options and --config: every setting can be given, and an option overrides the file."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from sotscope.cli import record
from sotscope.cli.options import parse_bytes
from sotscope.cli.settings import PLACES, run_config
from sotscope.config import RunConfig

FILE = """
model: {name: other, dtype: bfloat16}
input: {prompt: from the file, system: be kind}
capture: {layers: last, sites: [head_out], durable: true}
decode: {temperature: 0.7, seed: 3, max_new_tokens: 9}
max_bytes: 5000
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(FILE)
    return path


def leaves(model: type[BaseModel], before: str = "") -> set[str]:
    """Every setting, with dots."""
    found = set()
    for name, field in model.model_fields.items():
        inner: Any = field.annotation
        nested = isinstance(inner, type) and issubclass(inner, BaseModel)
        found |= leaves(inner, f"{before}{name}.") if nested else {f"{before}{name}"}
    return found


def test_every_setting_has_an_option_and_every_option_a_setting() -> None:
    others = {name for name in leaves(RunConfig) if name.startswith("dmtd_config.")} | {"decode.do_sample"}
    assert set(PLACES.values()) == leaves(RunConfig) - others, "do_sample is --greedy and its opposites"
    others = {"prompt_argument", "config", "greedy", "no_self_check", "as_json", "quiet"}
    parameters = set(inspect.signature(record.command).parameters)
    assert parameters == (set(PLACES) - {"self_check"}) | others


def test_options_override_the_file_and_leave_the_rest(file: Path) -> None:
    settings = run_config({"model": "mine", "seed": 8, "layers": "all", "max_bytes": "2MB"}, file)
    assert (settings.model.name, settings.model.dtype) == ("mine", "bfloat16")
    assert (settings.capture.layers, settings.capture.sites, settings.capture.durable) == ("all", ["head_out"], True)
    assert (settings.decode.seed, settings.decode.temperature) == (8, 0.7)
    assert settings.decode.do_sample is True
    assert (settings.input.prompt, settings.max_bytes) == ("from the file", 2_000_000)


def test_a_prompt_replaces_the_files_prompt_of_any_kind(file: Path, tmp_path: Path) -> None:
    text = tmp_path / "p.txt"
    settings = run_config({"prompt_file": text}, file)
    assert (settings.input.prompt, settings.input.prompt_file, settings.input.system) == (None, text, "be kind")


def test_greedy_takes_back_the_files_sampling(file: Path) -> None:
    settings = run_config({"greedy": True}, file)
    assert (settings.decode.do_sample, settings.decode.temperature) == (False, None)
    assert settings.decode.overrides() == {"do_sample": False}


def test_a_temperature_samples_although_the_file_is_greedy(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("decode: {do_sample: false}")
    assert run_config({"temperature": 0.5}, path).decode.do_sample is True
    assert run_config({}, path).decode.do_sample is False


def test_what_is_not_given_is_the_default() -> None:
    assert run_config({"prompt": "x", "sites": [], "stop": None}, None) == RunConfig.build(
        {"input": {"prompt": "x"}}, ""
    )


def test_comma_lists_and_pairs() -> None:
    settings = run_config({"sites": ["resid, head_out", "final"], "modules": ["attn_out=a.b", "mlp_out = c"]}, None)
    assert settings.capture.sites == ["resid", "head_out", "final"]
    assert settings.capture.modules == {"attn_out": "a.b", "mlp_out": "c"}


@pytest.mark.parametrize(
    ("text", "count"),
    [("20GB", 20 * 10**9), ("500 MB", 500 * 10**6), ("1.5k", 1500), ("12", 12), ("2e9", 2 * 10**9), ("1GiB", 1 << 30)],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_bytes(text) == count
