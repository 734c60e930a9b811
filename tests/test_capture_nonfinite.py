"""A NaN or an Inf ends decoding at once, with the layer and position it came from; skipped layers raise no alarm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import zarr
from torch import nn

from sotscope.config import CaptureConfig, RunConfig
from sotscope.testing.drafters import greedy, oracle
from sotscope.testing.tiny import tiny


def broken(value: float, layer: int = 2) -> Any:
    model = tiny("llama")
    model.model.layers[layer].mlp.down_proj.weight.data[3, 5] = value
    return model


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("prompt", ["5 17 3 88 41", "5"])
def test_a_bad_weight_stops_at_once_and_is_located(value: float, prompt: str, go: Any) -> None:
    run = go(broken(value), prompt, max_new_tokens=12)
    length = len(prompt.split())
    outcome = run.info()["outcome"]
    assert outcome["finish_reason"] == "non_finite"
    assert outcome["new_tokens"] == 0
    assert run.sequences["finish"].tolist() == ["non_finite"]
    alarms = [alarm for alarm in run.events("alarm") if alarm["alarm"] == "non_finite"]
    assert len(alarms) == 1
    assert alarms[0]["first_bad_layer"] == 2
    assert alarms[0]["first_bad_position"] == 0
    assert len(run) == length, "the row is kept as evidence"
    assert run.tokens.next_ids[-1] == -1
    assert np.isfinite(run.states("resid", layer=1)).all()
    assert not np.isfinite(run.states("resid", layer=2)).all()
    assert (run.scalars("nonfinite")[:, :2] == 0).all()
    assert (run.scalars("nonfinite")[:, 2:] > 0).all()
    assert not outcome["self_check"]["passed"]


def test_a_nan_that_comes_later_keeps_what_was_decoded_before(go: Any) -> None:
    model = tiny("llama")
    truth = greedy(model, [5, 17, 3, 88, 41], 8)
    bad = truth[3]
    first = truth.index(bad)
    model.model.embed_tokens.weight.data[bad] = torch.nan
    model.lm_head.weight = nn.Parameter(tiny("llama").lm_head.weight.data)  # not tied to the spoilt embedding
    for drafter in (None, oracle(truth, 4)):
        run = go(model, max_new_tokens=8, drafter=drafter)
        assert run.tokens.all_ids[5:] == truth[: first + 1]
        assert run.tokens.next_ids[-1] == -1
        assert len(run) == 5 + first + 1
        alarm = run.events("alarm")[0]
        assert (alarm["first_bad_layer"], alarm["first_bad_position"]) == (0, 5 + first)


def test_last_row_is_not_fed_again_after_a_nan(go: Any) -> None:
    run = go(broken(float("nan")), max_new_tokens=4, config=RunConfig(capture=CaptureConfig(last_row=True)))
    assert list(run.tokens.pos) == [0, 1, 2, 3, 4]


def test_a_head_that_is_not_finite_is_reported_by_position(go: Any) -> None:
    model = tiny("llama", tie_word_embeddings=False)
    model.lm_head.weight.data[0] = torch.nan
    run = go(model, max_new_tokens=4)
    alarm = run.events("alarm")[0]
    assert (alarm["alarm"], alarm["position"]) == ("non_finite", 4)
    assert np.isfinite(run.states("resid")).all()


class Skipping(nn.Module):
    """Runs in a decoder's place; every second single token goes through the last two blocks only."""

    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.decoder = decoder
        self.calls = 0
        self.whole = decoder.forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        inputs = kwargs["input_ids"]
        self.calls += inputs.shape[1] == 1
        layers = self.decoder.layers
        if inputs.shape[1] == 1 and self.calls % 2 == 0:
            self.decoder._modules["layers"] = layers[2:]
        try:
            return self.whole(*args, **kwargs)
        finally:
            self.decoder._modules["layers"] = layers


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sites", [["resid"], ["resid", "attn_out", "head_out", "mlp_act"]])
def test_skipped_layers_are_absent_cells_and_nothing_is_shifted(dtype: str, sites: list[str], go: Any) -> None:
    model = tiny("llama", dtype=dtype)
    seen: list[list[Any]] = [[] for _ in range(4)]
    for layer, block in enumerate(model.model.layers):
        block.register_forward_hook(
            lambda module, args, output, layer=layer: seen[layer].append(output[0, -1].float().numpy().copy())
        )
    object.__setattr__(model.model, "forward", Skipping(model.model).forward)
    run = go(model, sites=sites, max_new_tokens=9, prefill_block=4)
    # the probe for shapes (two tokens), one block of four, then nine single tokens: those of even number skip
    assert len(run) == 13
    skipped = [5, 7, 9, 11]
    present = np.ones((13, 4), bool)
    present[skipped, :2] = False
    assert np.array_equal(run.present, present)
    for site in sites:
        cells = np.isnan(run.states(site)).reshape(13, 4, -1)
        assert np.array_equal(cells.all(-1), ~present), site
        assert np.array_equal(cells.any(-1), ~present), site
    for layer in range(4):
        mine = run.states("resid", layer=layer)[4:][present[4:, layer]]
        single = np.stack(seen[layer][2 : 2 + len(mine)])
        assert np.array_equal(mine, single), layer
    assert not run.events("alarm")
    attributes = zarr.open_group(run.path / "states.zarr", mode="r").attrs
    assert attributes["rows_per_layer"] == [9, 9, 13, 13]


def test_layers_of_which_none_ran_are_absent_too(go: Any) -> None:
    model = tiny("llama")
    object.__setattr__(model.model, "forward", Skipping(model.model).forward)
    run = go(model, layers="0,1", max_new_tokens=5)
    assert run.present[:, 0].tolist() == [True] * 5 + [False, True, False, True]
    assert np.isnan(run.states("resid")[5]).all()
    assert not run.events("alarm")
