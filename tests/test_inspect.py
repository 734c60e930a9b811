"""`inspect`: what it says of each architecture, checked against the models' own configs and against recordings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cli_helpers import call, mistake, model_folder

from sotscope.capture.inspect import inspect
from sotscope.capture.plan import hook_counts
from sotscope.testing.tiny import tiny


def test_sizes_are_those_of_the_config() -> None:
    found = inspect(tiny("llama"), quantisation="Q4_1")
    assert (found.layers, found.hidden, found.heads, found.kv_heads, found.head_dim) == (4, 32, 4, 2, 8)
    assert (found.vocabulary, found.context, found.dtype) == (97, 128, "float32")
    assert (found.family, found.norm, found.attention, found.quantisation) == ("llama", "LlamaRMSNorm", "sdpa", "Q4_1")
    assert found.parameters == sum(weight.numel() for weight in tiny("llama").parameters())


@pytest.mark.parametrize(
    ("name", "positions"),
    [("llama", "rotary (RoPE)"), ("gpt2", "learned"), ("opt", "learned"), ("bloom", "ALiBi"), ("mamba", "none"),
     ("smollm3", "rotary (RoPE), not in layers 3")],
)  # fmt: skip
def test_positions(name: str, positions: str) -> None:
    assert inspect(tiny(name)).positions == positions


def test_tied_heads_and_norms() -> None:
    assert inspect(tiny("gpt2")).tied_head is True
    assert inspect(tiny("llama")).tied_head is False
    assert inspect(tiny("llama", tie_word_embeddings=True)).tied_head is True
    assert inspect(tiny("opt-projected")).norm == "none"
    assert inspect(tiny("phi")).norm == "unknown"


def test_only_a_recurrent_cache_cannot_roll_back() -> None:
    assert {name: inspect(tiny(name)).croppable for name in ("llama", "mistral-sliding", "gemma3", "mamba")} == {
        "llama": True,
        "mistral-sliding": True,
        "gemma3": True,
        "mamba": False,
    }


def test_a_recurrent_model_has_no_heads_no_limit_and_says_why_sites_are_missing() -> None:
    found = inspect(tiny("mamba"))
    assert (found.heads, found.kv_heads, found.head_dim, found.context, found.attention) == (None,) * 4 + ("none",)
    assert [site.name for site in found.sites if site.available] == ["embed", "resid", "final"]
    assert "mixer" in found.site("head_out").reason


@pytest.mark.parametrize("name", ["llama", "gemma3", "mixtral", "gpt2", "opt-projected", "phi"])
def test_rows_and_bytes_are_those_of_a_recording(name: str, go: Callable[..., Any]) -> None:
    model = tiny(name)
    found = inspect(model)
    sites = [site for site in found.sites if site.available and site.name != "attn"]
    run = go(model, sites=[site.name for site in sites], max_new_tokens=3)
    for site in sites:
        spec = run.spec.site(site.name)
        assert site.row == spec.row
        assert len(site.dims) == len(site.row)
        assert site.disk_per_1000 == 1000 * spec.row_bytes
        assert site.memory_per_1000 == 1000 * run.states(site.name)[0].nbytes


def test_half_precision_costs_half_on_disk_and_the_same_in_memory() -> None:
    full, half = inspect(tiny("llama")).site("resid"), inspect(tiny("llama", dtype="bfloat16")).site("resid")
    assert (half.dtype, half.disk_per_1000) == ("bfloat16", full.disk_per_1000 // 2)
    assert half.memory_per_1000 == full.memory_per_1000


def test_attention_weights_need_eager() -> None:
    assert "attn_implementation='eager'" in inspect(tiny("llama")).site("attn").reason
    site = inspect(tiny("llama", attn_implementation="eager")).site("attn")
    assert (site.row, site.disk_per_1000) == ((1, 4, 1000), 1000 * 4 * 1000 * 4)


def test_a_site_that_some_layers_lack_says_which_have_it() -> None:
    reason = inspect(tiny("qwen3_moe", mlp_only_layers=[1])).site("router").reason
    assert "layers that do: 0, 2, 3" in reason


def test_places_in_hidden_states_are_where_the_states_are() -> None:
    """Named for embed, resid and final, and right: checked against output_hidden_states."""
    model = tiny("llama")
    found = inspect(model)
    assert found.site("embed").also[0] == "hidden_states[0]"
    assert found.site("resid").also[0] == "hidden_states[layer + 1] (but the last)"
    assert found.site("final").also[0] == "hidden_states[-1]"
    with torch.inference_mode():
        states = model(torch.tensor([[5, 6]]), output_hidden_states=True).hidden_states
        first = model.model.layers[0](
            states[0], position_embeddings=model.model.rotary_emb(states[0], torch.arange(2)[None])
        )
    assert torch.equal(states[0], model.get_input_embeddings()(torch.tensor([[5, 6]])))
    assert torch.allclose(states[1], first, atol=1e-5)
    assert inspect(tiny("mamba")).site("resid").also[0] == "hidden_states[layer] (but the last)"
    assert not any("hidden_states" in other for other in inspect(tiny("opt-projected")).site("final").also)


def test_no_hook_stays_behind() -> None:
    model = tiny("llama")
    before = hook_counts(model)
    inspect(model)
    assert hook_counts(model) == before


def test_the_command_shows_it_and_adds_up_the_chosen_sites() -> None:
    found = call("inspect", model_folder(), "--sites", "resid,head_out", "--layers", "0-1", "--json").json
    assert found["family"] == "llama"
    sites = {site["name"]: site for site in found["sites"]}
    assert sites["router"]["available"] is False
    assert sites["head_out"]["row"] == [4, 4, 8]
    assert found["cost"]["sites"] == ["resid", "head_out"]
    assert found["cost"]["memory_per_1000"] == 1000 * 2 * (32 + 32) * 4
    assert found["cost"]["disk_per_1000"] > found["cost"]["memory_per_1000"]
    shown = call("inspect", model_folder()).out
    for text in (
        "rotary (RoPE)",
        "4 layers × 4 heads × 8",
        "hook_z",
        "router: no; it is a dense model",
        "1,000 tokens",
    ):
        assert text in shown


def test_the_command_refuses_what_cannot_be_inspected() -> None:
    assert "unknown site 'resdi'; did you mean resid" in mistake("inspect", model_folder(), "--sites", "resdi")
    assert "the folder ./nowhere does not exist" in mistake("inspect", "./nowhere")
    assert "the model has 4 layers" in mistake("inspect", model_folder(), "--layers", "12")


def test_sizes_of_a_wide_head_are_not_the_hidden_size() -> None:
    found = inspect(tiny("qwen3"))
    assert math.prod(found.site("head_out").row[1:]) == 4 * 16 != found.hidden
