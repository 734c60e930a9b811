"""Which rows there are, what they hold, and that they are the values of the moment the hook ran."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

from sotscope.capture.contracts import unwrap
from sotscope.capture.plan import anatomy, make_plan
from sotscope.capture.tap import Tap
from sotscope.store.writer import RunWriter
from sotscope.testing.drafters import anti, greedy
from sotscope.testing.oracle import check_run, uncached
from sotscope.testing.tiny import CONFIGS, tiny

SEVEN = "5 17 3 88 41 9 60"


def heads_say(model: Any, run: Any, layers: int) -> np.ndarray:
    """The token that final norm and head make of each row of the last block."""
    state = torch.tensor(run.states("resid", layer=layers - 1))
    with torch.no_grad():
        return model.lm_head(model.model.norm(state)).argmax(-1).numpy()


def test_row_i_chose_token_i_plus_1(llama: Any, go: Any) -> None:
    run = go(llama, SEVEN, max_new_tokens=23)
    assert len(run) == 29
    tokens = run.tokens
    assert tokens.all_ids[:7] == [5, 17, 3, 88, 41, 9, 60]
    assert len(tokens.all_ids) == 30
    assert list(tokens.ids[1:]) == list(tokens.next_ids[:-1])
    assert list(tokens.pos) == list(range(29))
    assert list(heads_say(llama, run, 4)[6:]) == tokens.all_ids[7:]  # 23 predictions, the first by row 6
    assert tokens.modes == ["prompt"] * 6 + ["ar"] * 23
    check_run(llama, run)


def test_last_token_is_absent_not_zero_and_not_a_copy(llama: Any, go: Any) -> None:
    rows = go(llama, SEVEN, max_new_tokens=23).states("resid")
    assert np.linalg.norm(rows, axis=-1).min() > 0
    assert np.abs(rows[-1] - rows[-2]).max() > 1e-3


def test_one_prompt_token_and_one_new_token_make_one_row(llama: Any, go: Any) -> None:
    run = go(llama, "5", max_new_tokens=1)
    assert len(run) == 1
    assert run.tokens.all_ids == [5, *greedy(llama, [5], 1)]
    assert list(heads_say(llama, run, 4)) == run.tokens.all_ids[1:]


@pytest.mark.parametrize("name", [name for name in CONFIGS if not name.startswith("mamba")])
def test_embed_is_what_block_0_reads(name: str) -> None:
    model = tiny(name)
    ids = torch.tensor([[5, 17, 3, 88, 41]])
    with torch.inference_mode():
        truth = model(ids, output_hidden_states=True).hidden_states[0][0].numpy()
        with Tap(make_plan(model, ["embed"])) as tap:
            model(ids)
    assert tap.take(5, (-1,) * 5).states["embed"] == pytest.approx(truth, abs=1e-6)


def test_embed_of_gemma_is_scaled_and_of_gpt2_has_positions(go: Any) -> None:
    gemma, gpt2 = tiny("gemma2"), tiny("gpt2")
    rows = go(gemma, sites=["embed"], max_new_tokens=1).states("embed")
    table = gemma.model.embed_tokens.weight.detach()
    assert rows == pytest.approx(np.sqrt(32) * table[[5, 17, 3, 88, 41]].numpy(), rel=1e-5)
    rows = go(gpt2, "7 7 7", sites=["embed"], max_new_tokens=1).states("embed")
    assert np.abs(rows[0] - rows[1]).max() > 0.01


@pytest.mark.parametrize("name", list(CONFIGS))
def test_every_block_of_the_config_is_recorded(name: str) -> None:
    model = tiny(name)
    with torch.inference_mode(), Tap(make_plan(model, ["resid"])) as tap:
        model(torch.tensor([[5, 17, 3]]))
    assert tap.take(3, (-1,) * 3).states["resid"].shape == (3, model.config.num_hidden_layers, 32)
    assert len(anatomy(model).blocks) == model.config.num_hidden_layers


def test_some_layers_are_the_same_as_of_all_layers(llama: Any, go: Any) -> None:
    sites = ["resid", "attn_out", "head_out", "mlp_act"]
    whole = go(llama, sites=sites, max_new_tokens=8)
    part = go(llama, sites=sites, layers="1,3", max_new_tokens=8)
    assert part.layers == [1, 3]
    for site in sites:
        assert np.array_equal(part.states(site), whole.states(site)[:, [1, 3]]), site
        assert np.array_equal(part.states(site, layer=3), whole.states(site, layer=3)), site
    assert np.array_equal(part.scalars("norm"), whole.scalars("norm")[:, [1, 3]])
    assert np.array_equal(part.scalars("cosine")[1:], whole.scalars("cosine")[1:, [1, 3]])


def test_no_site_at_all_leaves_the_scalars(llama: Any, go: Any) -> None:
    run = go(llama, sites=["none"], max_new_tokens=8)
    assert run.sites == []
    assert run.scalars("norm") == pytest.approx(np.linalg.norm(truth_of(llama, run), axis=-1), rel=1e-4)


def truth_of(model: Any, run: Any) -> Any:
    return uncached(model, run.tokens.ids, ["resid"])["resid"]


@pytest.mark.parametrize("make", [tuple, list, lambda parts: dict(zip("ab", parts, strict=False))])
def test_unwrap_finds_the_state_and_keeps_the_batch(make: Any) -> None:
    state, router = torch.ones(2, 5, 32), torch.zeros(2, 5, 4)
    assert unwrap(state) is state
    for parts in ((state,), (state, router), (state, object()), (None, state)):
        assert unwrap(make(parts)) is state


def test_unwrap_finds_the_state_in_a_model_output_and_refuses_what_has_none(llama: Any) -> None:
    with torch.inference_mode():
        output = llama.model(torch.tensor([[5, 17], [3, 88]]))
    assert unwrap(output).shape == (2, 2, 32)
    with pytest.raises(TypeError, match="no tensor in a tuple"):
        unwrap((None, "text"))


def test_router_logits_are_never_taken_for_a_state(go: Any) -> None:
    model = tiny("mixtral")
    run = go(model, sites=["resid", "mlp_out", "router"], max_new_tokens=2)
    assert run.states("mlp_out").shape == (6, 4, 32)
    assert run.states("router").shape == (6, 4, 4)


@pytest.mark.parametrize("on_device_copy", [False, True])
def test_what_happens_to_a_tensor_after_the_hook_is_not_seen(on_device_copy: bool) -> None:
    model = tiny("llama")
    ids = torch.tensor([[5, 17, 3, 88, 41]])
    plan = make_plan(model, ["embed", "resid", "attn_out"])

    def spoil(module: Any, args: Any, output: Any) -> None:
        unwrap(output).add_(1000.0)

    taken = []
    for spoilt in (False, True):
        with torch.inference_mode(), Tap(plan, on_device_copy=on_device_copy) as tap:
            if spoilt:  # registered last, so it runs after the tap's own hook
                handle = model.model.layers[-1].register_forward_hook(spoil)
            model(ids)
            taken.append(tap.take(5, (-1,) * 5).states)
    handle.remove()
    for site, states in taken[0].items():
        assert np.array_equal(states, taken[1][site]), site


def test_what_an_earlier_hook_changed_is_seen() -> None:
    model = tiny("llama")
    handle = model.model.layers[1].register_forward_hook(lambda module, args, output: unwrap(output) * 0)
    with torch.inference_mode(), Tap(make_plan(model, ["resid"])) as tap:
        model(torch.tensor([[5, 17, 3]]))
        states = tap.take(3, (-1,) * 3).states["resid"]
    handle.remove()
    assert not states[:, 1].any()
    assert states[:, 0].any()


def test_rows_of_an_earlier_step_do_not_change_with_the_next(llama: Any) -> None:
    with torch.inference_mode(), Tap(make_plan(llama, ["resid", "head_out"])) as tap:
        llama(torch.tensor([[5, 17, 3]]))
        first = tap.take(3, (-1,) * 3).states
        copy = {site: states.copy() for site, states in first.items()}
        llama(torch.tensor([[60, 61, 62]]))
        tap.take(3, (-1,) * 3)
    assert all(np.array_equal(first[site], copy[site]) for site in copy)


def test_a_slow_disk_writes_each_step_as_it_was(llama: Any, go: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write = RunWriter._write

    def late(self: RunWriter, item: Any) -> None:
        time.sleep(0.02)  # the decode loop is several steps ahead by now
        write(self, item)

    monkeypatch.setattr(RunWriter, "_write", late)
    truth = greedy(llama, [5, 17, 3, 88, 41], 12)
    run = go(llama, sites=["resid", "mlp_act"], max_new_tokens=12, drafter=anti(truth, 4, 97))
    check_run(llama, run)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "mixtral", "gpt_neox", "gemma3", "gpt2"])
def test_the_way_over_an_accelerator_gives_the_same_rows(name: str, dtype: str) -> None:
    model = tiny(name, dtype=dtype)
    ids = torch.tensor([[5, 17, 3, 88, 41]])
    taken = []
    for on_device_copy in (False, True):
        with torch.inference_mode(), Tap(make_plan(model, ["all"]), on_device_copy=on_device_copy) as tap:
            model(ids)
            taken.append(tap.take(4, (17, 3, 88, 41)))
    fast, device = taken
    assert set(fast.states) == set(device.states) >= {"embed", "resid", "attn_out", "query", "head_out", "final"}
    for site, states in fast.states.items():
        assert states.dtype == device.states[site].dtype
        assert str(states.dtype) == dtype
        assert states.tobytes() == device.states[site].tobytes(), site
    for name, values in fast.scalars.items():
        assert np.array_equal(values, device.scalars[name], equal_nan=True), name
