"""Architectures without a family: blocks found by shape; finer sites only where a module is named by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sotscope.capture.plan import anatomy, available
from sotscope.config import CaptureConfig, RunConfig
from sotscope.errors import SiteError
from sotscope.testing.drafters import greedy, mix
from sotscope.testing.oracle import check_run, uncached
from sotscope.testing.tiny import tiny

PROMPT = [5, 17, 3, 88, 41]


@pytest.mark.parametrize("name", ["phi", "bloom", "bamba"])
def test_embed_resid_and_final_are_true_without_a_family(name: str, go: Any) -> None:
    model = tiny(name)
    truth = greedy(model, PROMPT, 12)
    run = go(
        model,
        sites=["embed", "resid", "final"],
        max_new_tokens=12,
        drafter=None if name == "bamba" else mix(truth, 4, 97),
    )
    assert run.tokens.all_ids == [*PROMPT, *truth]
    assert run.attributes["family"] == f"generic ({name})"
    assert set(check_run(model, run)) == {"embed", "resid", "final"}
    assert run.info()["outcome"]["self_check"]["passed"]


def test_all_means_what_the_generic_way_can_have(go: Any) -> None:
    assert go(tiny("phi"), sites=["all"], max_new_tokens=1).sites == ["embed", "resid", "final"]


def test_finer_site_is_refused_with_candidates_and_the_flag(go: Any) -> None:
    with pytest.raises(SiteError) as refusal:
        go(tiny("phi"), sites=["mlp_out"], max_new_tokens=1)
    text = str(refusal.value)
    assert "'mlp_out'" in text
    assert "--module mlp_out=PATH" in text
    assert "mlp.fc2" in text
    assert "self_attn.dense" in text
    assert "\n" not in text


def test_module_given_by_hand_is_recorded(go: Any) -> None:
    model = tiny("phi")
    by_hand = {"mlp_out": "mlp.fc2", "mlp_act": "mlp.fc2", "head_out": "self_attn.dense", "attn_out": "self_attn.dense"}
    config = RunConfig(capture=CaptureConfig(sites=["resid", *by_hand], modules=by_hand))
    run = go(model, config=config, max_new_tokens=6)
    kept: dict[tuple[str, int], torch.Tensor] = {}
    handles = []
    for layer, block in enumerate(model.model.layers):
        for site, module in (("mlp", block.mlp.fc2), ("attn", block.self_attn.dense)):
            handles.append(_keep(module, kept, site, layer))
    uncached(model, run.tokens.ids, ["resid"])
    for handle in handles:
        handle.remove()
    for layer in range(4):
        for site, key in (("mlp_act", "mlp in"), ("mlp_out", "mlp out"), ("attn_out", "attn out")):
            assert run.states(site, layer) == pytest.approx(kept[key, layer].numpy(), abs=1e-5)
        heads = kept["attn in", layer].reshape(-1, 4, 8).numpy()
        assert run.states("head_out", layer) == pytest.approx(heads, abs=1e-5)


def _keep(module: nn.Module, kept: dict[tuple[str, int], torch.Tensor], site: str, layer: int) -> Any:
    def hook(module: nn.Module, args: Any, output: torch.Tensor) -> None:
        kept[f"{site} in", layer], kept[f"{site} out", layer] = args[0][0].clone(), output[0].clone()

    return module.register_forward_hook(hook)


def test_module_given_by_hand_that_is_not_there_is_refused(go: Any) -> None:
    config = RunConfig(capture=CaptureConfig(sites=["mlp_out"], modules={"mlp_out": "mlp.fc9"}))
    with pytest.raises(SiteError, match=r"no module 'mlp\.fc9'"):
        go(tiny("phi"), config=config)


def test_module_given_by_hand_wins_over_the_family(llama: Any, go: Any) -> None:
    config = RunConfig(capture=CaptureConfig(sites=["mlp_out"], modules={"mlp_out": "mlp.up_proj"}))
    assert go(llama, config=config, max_new_tokens=1).states("mlp_out").shape == (5, 4, 64)


@pytest.mark.parametrize(
    ("name", "site", "reason"),
    [
        ("mixtral", "mlp_act", "fused"),
        ("mamba", "attn_out", "no attention"),
        ("llama", "router", "without experts"),
        ("llama", "attn", "eager"),
    ],
)
def test_a_family_says_why_it_has_no_such_site(name: str, site: str, reason: str, go: Any) -> None:
    model = tiny(name)
    assert reason in available(anatomy(model))[site]
    capture = CaptureConfig(attn_layers="all") if site == "attn" else CaptureConfig(sites=[site])
    with pytest.raises(SiteError, match=f"site '{site}' is not available: .*{reason}.* Available: .*resid"):
        go(model, config=RunConfig(capture=capture))


def test_dense_layers_of_a_mixture_have_no_router(go: Any) -> None:
    model = tiny("qwen3_moe", mlp_only_layers=[0], intermediate_size=64)
    with pytest.raises(SiteError, match=r"layer 0 has no router .*layers that do: 1, 2, 3"):
        go(model, sites=["router"], max_new_tokens=1)
    assert go(model, sites=["router"], layers="1-3", max_new_tokens=1).states("router").shape == (5, 3, 4)


def test_blocks_that_cannot_be_told_are_an_error_that_lists_the_lists() -> None:
    model = tiny("phi")
    model.model.other = nn.ModuleList([nn.Identity() for _ in range(4)])
    with pytest.raises(SiteError, match=r"cannot tell where the 4 blocks of 'phi' are; .*layers \(4\), other \(4\)"):
        anatomy(model)


def test_shared_blocks_are_refused() -> None:
    model = tiny("llama")
    model.model.layers[1] = model.model.layers[0]
    with pytest.raises(SiteError, match="share modules"):
        anatomy(model)
