"""Half precision: stored as it is computed, read as float32, never cast down in silence."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from sotscope.config import CaptureConfig, RunConfig
from sotscope.testing.oracle import check_run
from sotscope.testing.tiny import tiny


def stored_as(dtype: str, **capture: Any) -> RunConfig:
    return RunConfig(capture=CaptureConfig(dtype=dtype, **capture))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt2"])
def test_half_precision_models_record(dtype: str, name: str, go: Any) -> None:
    model = tiny(name, dtype=dtype)
    run = go(model, sites=["all"], max_new_tokens=8)
    assert {site.dtype for site in run.spec.sites} == {dtype}
    assert {site.source_dtype for site in run.spec.sites} == {dtype}
    check_run(model, run, tolerance=0.08)
    assert run.info()["outcome"]["self_check"]["passed"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_stored_values_are_bitwise_the_models_own(dtype: str, go: Any) -> None:
    model = tiny("llama", dtype=dtype)
    kept: list[torch.Tensor] = []
    handle = model.model.layers[1].register_forward_hook(lambda module, args, output: kept.append(output[0].clone()))
    run = go(model, max_new_tokens=6)
    handle.remove()
    rows = torch.cat(kept[1:])  # the first forward is the probe for shapes; the last, if any, the self-check's
    states = run.states("resid", layer=1)
    assert states.dtype == np.float32
    assert np.array_equal(states, rows[: len(states)].float().numpy())


def test_norms_of_float16_states_do_not_overflow(go: Any) -> None:
    model = tiny("llama", dtype="float16")
    model.model.embed_tokens.weight.data.fill_(1000.0)  # 32 values of 1000: a norm of 5657, squares of a million
    run = go(model, max_new_tokens=1, sites=["embed"])
    assert run.scalars("norm") == pytest.approx(1000 * np.sqrt(32), rel=0.01)
    assert not run.info()["alarms"]


@pytest.mark.parametrize(("dtype", "native"), [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)])
def test_states_stored_in_a_smaller_type_are_rounded(dtype: str, native: Any, llama: Any, go: Any) -> None:
    whole = go(llama, max_new_tokens=6)
    small = go(llama, max_new_tokens=6, config=stored_as(dtype))
    assert small.spec.site("resid").dtype == dtype
    assert small.spec.site("resid").source_dtype == "float32"
    assert np.array_equal(small.states("resid"), whole.states("resid").astype(native).astype(np.float32))
    assert small.info()["outcome"]["self_check"]["passed"]
    assert not small.info()["alarms"]


def test_a_value_that_float16_cannot_hold_is_flagged(go: Any) -> None:
    model = tiny("llama")
    model.model.embed_tokens.weight.data[3, 7] = 70000.0  # the third prompt token
    run = go(model, max_new_tokens=4, config=stored_as("float16", sites=["embed", "resid"]))
    alarms = {alarm["site"]: alarm for alarm in run.events("alarm") if alarm["alarm"] == "overflow"}
    assert alarms["embed"]["position"] == 2
    assert "overflow float16; stored as inf" in alarms["embed"]["message"]
    assert np.isinf(run.states("embed")[2, 7])
    assert run.scalars("max_abs").max() > 65504  # what is always on is not cast
    check = run.info()["outcome"]["self_check"]
    assert not check["passed"]
    assert run.info()["outcome"]["finish_reason"] == "max_new_tokens"


def test_float32_and_bfloat16_hold_what_float16_cannot(go: Any) -> None:
    model = tiny("llama")
    model.model.embed_tokens.weight.data[3, 7] = 70000.0
    for config in (RunConfig(), stored_as("bfloat16")):
        run = go(model, max_new_tokens=2, sites=["embed", "resid"], config=config)
        assert not run.info()["alarms"]
        assert run.states("embed")[2, 7] == pytest.approx(70000.0, rel=0.01)
