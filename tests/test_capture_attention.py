"""Attention rows and their entropy against ``output_attentions`` of the uncached forward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sotscope.capture.plan import as_it_was
from sotscope.config import CaptureConfig, RunConfig
from sotscope.errors import SiteError
from sotscope.testing.drafters import greedy, mix
from sotscope.testing.tiny import tiny

PROMPT = [5, 17, 3, 88, 41]


def asked(**capture: Any) -> RunConfig:
    return RunConfig(capture=CaptureConfig(**capture))


def attentions(model: Any, ids: Any) -> np.ndarray:
    """[token, layer, head, key] of one uncached forward."""
    with as_it_was(model), torch.inference_mode():
        found = model(torch.tensor([[int(i) for i in ids]]), use_cache=False, output_attentions=True).attentions
    return np.stack([layer[0].permute(1, 0, 2).float().numpy() for layer in found], 1)


@pytest.fixture(scope="module")
def eager() -> Any:
    return tiny("llama", attn_implementation="eager")


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "mixtral", "opt", "mistral-sliding", "gemma3"])
@pytest.mark.parametrize("drafted", [False, True])
def test_attention_rows_equal_output_attentions(name: str, drafted: bool, go: Any) -> None:
    model = tiny(name, attn_implementation="eager")
    truth = greedy(model, PROMPT, 18)  # two and a half sliding windows
    drafter = mix(truth, 4, 97) if drafted else None
    config = asked(attn_layers="all", attn_entropy=True)
    run = go(model, config=config, max_new_tokens=18, prefill_block=3, drafter=drafter)
    rows, expected = run.states("attn"), attentions(model, run.tokens.ids)
    keys = len(run)
    assert rows[..., :keys] == pytest.approx(expected, abs=1e-5)
    assert not rows[..., keys:].any()
    entropy = -(expected * np.log(np.maximum(expected, 1e-30))).sum(-1)
    assert run.scalars("attn_entropy") == pytest.approx(entropy, abs=1e-4)


def test_attention_rows_sum_to_one_and_see_no_later_token(eager: Any, go: Any) -> None:
    rows = go(eager, config=asked(attn_layers="all"), max_new_tokens=10).states("attn")
    assert rows.sum(-1) == pytest.approx(1.0, abs=1e-5)
    for row in range(len(rows)):
        assert not rows[row, :, :, row + 1 :].any()
        assert (rows[row, :, :, : row + 1] > 0).all()


def test_attention_of_some_layers_beside_states_of_others(eager: Any, go: Any) -> None:
    whole = go(eager, config=asked(attn_layers="all", attn_entropy=True), max_new_tokens=4)
    part = go(eager, layers="0,2", config=asked(attn_layers="1,3", attn_entropy=True), max_new_tokens=4)
    assert np.array_equal(part.states("attn"), whole.states("attn")[:, [1, 3]])
    assert np.array_equal(part.states("attn", layer=3), whole.states("attn", layer=3))
    assert np.array_equal(part.states("resid"), whole.states("resid")[:, [0, 2]])
    assert np.array_equal(part.scalars("attn_entropy"), whole.scalars("attn_entropy")[:, [0, 2]])


def test_attention_entropy_alone_stores_no_attention_rows(eager: Any, go: Any) -> None:
    run = go(eager, config=asked(attn_entropy=True), max_new_tokens=2)
    assert run.sites == ["resid"]
    assert run.scalars("attn_entropy").shape == (6, 4, 4)
    assert run.scalars("attn_entropy")[0] == pytest.approx(0.0, abs=1e-6)  # the first token sees only itself


@pytest.mark.parametrize("capture", [{"attn_layers": "last"}, {"attn_entropy": True}])
def test_attention_is_refused_without_eager_attention(capture: dict[str, Any], llama: Any, go: Any) -> None:
    with pytest.raises(SiteError, match=r"'attn'.*attn_implementation='eager'.*'sdpa'"):
        go(llama, config=asked(**capture))


def test_attention_of_bfloat16_weights_is_stored_as_float32(go: Any) -> None:
    run = go(tiny("llama", dtype="bfloat16", attn_implementation="eager"), config=asked(attn_layers="0"))
    assert run.spec.site("attn").source_dtype == "float32"
    assert run.states("attn").sum(-1) == pytest.approx(1.0, abs=2e-2)
