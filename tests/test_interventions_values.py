"""What each kind makes of a row, against numpy: one layer is changed, and compared with what it was before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from safetensors.torch import save_file

from sotscope.capture.intervening import Intervening
from sotscope.capture.interventions import Place, Recurrent
from sotscope.errors import HealthError, SotscopeError
from sotscope.recorder import record
from sotscope.testing.interventions import rows_of
from sotscope.testing.tiny import tiny
from sotscope_hooks.interventions.interpolate import slerp
from sotscope_hooks.interventions.prune import Prune, PruneDims

IDS = [5, 17, 3, 88, 41, 9, 60, 2, 7, 30, 11, 12, 44, 45, 46, 47, 48, 49, 50, 51]
PLACE = Place("resid", 1, 32, 4)


def changed_rows(model: Any, text: str, site: str = "resid", layer: int | None = 1) -> tuple[Any, Any]:
    """Rows [token, ...] of one layer without and with an intervention at that layer alone."""
    where = f"{text}{',' if ':' in text else ':'}site={site}" + ("" if layer is None else f",layers={layer}")
    before, after = (rows_of(model, IDS, configs, [site])[site] for configs in ([], [where]))
    return (before, after) if layer is None else (before[:, layer], after[:, layer])


def lower_median(values: NDArray[Any]) -> NDArray[Any]:
    return np.sort(values, -1)[..., (values.shape[-1] - 1) // 2]


@pytest.mark.parametrize("how", ["zero", "clamp", "mean"])
def test_prune_takes_back_what_is_beyond_k_robust_sigmas_of_its_row(llama: Any, how: str) -> None:
    before, after = changed_rows(llama, f"prune:k=1.5,how={how}")
    middle = lower_median(before)[:, None]
    limit = 1.5 * 1.4826 * lower_median(np.abs(before - middle))[:, None]
    outside = np.abs(before - middle) > limit
    assert outside.any(1).all()
    kept = np.array([row[~out].mean() for row, out in zip(before, outside, strict=True)])[:, None]
    filler = {"zero": 0 * before, "clamp": np.clip(before, middle - limit, middle + limit), "mean": kept + 0 * before}
    assert after == pytest.approx(np.where(outside, filler[how], before), rel=1e-5, abs=1e-6)


@given(arrays(np.float32, (3, 15), elements=st.floats(-50, 50, width=32)), st.sampled_from(["clamp", "zero", "mean"]))
def test_prune_leaves_what_is_inside_and_never_widens_a_row(states: NDArray[np.float32], how: str) -> None:
    after = Prune(PLACE, k=2.0, how=how).rows(torch.from_numpy(states), range(3)).numpy()
    middle = np.median(states, -1, keepdims=True)
    limit = 2.0 * 1.4826 * np.median(np.abs(states - middle), -1, keepdims=True)
    inside = np.abs(states - middle) <= limit * (1 - 1e-5)
    assert np.array_equal(after[inside], states[inside])
    assert np.abs(after).max() <= np.abs(states).max() * (1 + 1e-5)


def test_prune_leaves_a_row_alone_of_which_half_the_values_are_the_same() -> None:
    row = torch.tensor([[0.0, 0, 0, 0, 0, 7, -3, 100]])
    assert torch.equal(Prune(PLACE, k=1.0).rows(row, range(1)), row)


def follow(intervention: Recurrent, states: NDArray[Any], first: int = 1) -> NDArray[Any]:
    memory, out = None, []
    for pos, row in enumerate(states, first):
        changed, memory = intervention.row(torch.from_numpy(row), memory, pos)
        out.append(changed.numpy())
    return np.stack(out)


@pytest.mark.parametrize("how", ["zero", "clamp", "mean"])
def test_prune_per_dim_judges_by_mean_and_deviation_of_earlier_rows(how: str) -> None:
    generator = np.random.default_rng(0)
    states = generator.normal(3.0, 1.0, (20, 5)).astype(np.float32)
    states[:15] = states[:15].clip(1.5, 4.5)
    states[15] = [30, 3, 3, -30, 3]
    after = follow(PruneDims(4.0, how), states)
    assert np.array_equal(after[:15], states[:15])
    mean, deviation = states[:15].mean(0), states[:15].std(0, ddof=1)
    limits = {"zero": (0, 0), "clamp": ((mean + 4 * deviation)[0], (mean - 4 * deviation)[3]), "mean": mean[[0, 3]]}
    assert after[15, [0, 3]] == pytest.approx(limits[how], rel=1e-4, abs=1e-5)
    assert np.array_equal(after[15, [1, 2, 4]], states[15, [1, 2, 4]])


def test_prune_per_dim_is_not_widened_by_an_outlier_and_leaves_the_sink_out() -> None:
    generator = np.random.default_rng(1)
    states = generator.normal(0.0, 1.0, (60, 4)).astype(np.float32).clip(-2, 2)
    states[0] = 25_000  # an attention sink
    states[30:40:3, 2] = 1000
    after = follow(PruneDims(5.0, "zero"), states, first=0)
    assert np.array_equal(after[0], states[0])
    assert not after[30:40:3, 2].any()


def test_interpolate_is_the_exponential_moving_average_without_the_sink(llama: Any) -> None:
    before, after = changed_rows(llama, "interpolate:alpha=0.25")
    expected = before.copy()
    for i in range(2, len(before)):
        expected[i] = 0.25 * before[i] + 0.75 * expected[i - 1]
    assert after == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_interpolate_along_the_arc_averages_angles_and_norms() -> None:
    start, end = torch.tensor([2.0, 0.0]), torch.tensor([0.0, 4.0])
    third = slerp(start, end, 1 / 3)
    assert third.norm().item() == pytest.approx(8 / 3)
    assert torch.atan2(third[1], third[0]).rad2deg().item() == pytest.approx(30, abs=1e-4)
    for other in (2 * start, -2 * start):  # no arc, or any
        assert torch.allclose(slerp(start, other, 0.25), 0.75 * start + 0.25 * other)


def test_interpolate_spherical_keeps_between_the_rows_it_averages(llama: Any) -> None:
    before, after = changed_rows(llama, "interpolate:alpha=0.5,how=spherical")
    norms = np.linalg.norm(before, axis=-1)
    expected = norms.copy()
    for i in range(2, len(norms)):
        expected[i] = 0.5 * norms[i] + 0.5 * expected[i - 1]
    assert np.linalg.norm(after, axis=-1) == pytest.approx(expected, rel=1e-4)


def test_rescale_gives_the_median_norm_of_the_rows_before(llama: Any) -> None:
    before, after = changed_rows(llama, "rescale:window=8")
    norms = np.linalg.norm(before, axis=-1)
    assert np.array_equal(after[:9], before[:9])
    for i in range(9, len(norms)):
        median = lower_median(norms[max(1, i - 8) : i])
        assert after[i] == pytest.approx(before[i] * median / norms[i], rel=1e-4, abs=1e-6)


def test_rescale_with_a_factor_multiplies(llama: Any) -> None:
    before, after = changed_rows(llama, "rescale:factor=3", "mlp_out")
    assert after == pytest.approx(3 * before, rel=1e-6)


@pytest.mark.parametrize("site", ["resid", "mlp_act", "head_out", "query", "attn_out"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "qwen3", "gemma3", "phi3", "opt"])
def test_steer_adds_to_one_value_of_any_site_of_any_family(name: str, site: str) -> None:
    before, after = changed_rows(tiny(name), "steer:dim=5,value=2,tokens=3-", site)
    added = (after - before).reshape(len(IDS), -1)
    expected = np.zeros_like(added)
    expected[3:, 5] = 2
    assert added == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt-projected", "mamba"])
@pytest.mark.parametrize("site", ["embed", "final"])
def test_steer_adds_to_sites_without_layers(name: str, site: str) -> None:
    before, after = changed_rows(tiny(name), "steer:dim=5,value=-1.5", site, None)
    expected = np.zeros_like(before)
    expected[:, 5] = -1.5
    assert after - before == pytest.approx(expected, abs=1e-5)


def test_what_is_steered_at_the_end_reaches_the_logits(llama: Any) -> None:
    with torch.inference_mode():
        logits = llama(torch.tensor([IDS])).logits
        with Intervening(llama, ["steer:site=final,dim=0,value=2"], 5):
            steered = llama(torch.tensor([IDS])).logits
    expected = logits + 2 * llama.lm_head.weight[:, 0]
    assert torch.allclose(steered, expected, atol=1e-4)


def test_steer_reads_a_vector_or_one_a_layer_and_scales_it(llama: Any, tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(4, 32)).astype(np.float32)
    np.save(tmp_path / "layers.npy", vectors)
    save_file({"v": torch.tensor(vectors[1])}, tmp_path / "one.safetensors")
    before, after = changed_rows(llama, f"steer:file={tmp_path}/layers.npy,value=3")
    assert after == pytest.approx(before + 3 * vectors[1], abs=1e-5)
    again = changed_rows(llama, f"steer:file={tmp_path}/one.safetensors,key=v,value=3")[1]
    assert np.array_equal(again, after)
    relative = changed_rows(llama, f"steer:file={tmp_path}/one.safetensors,value=0.1,relative=true")[1]
    added = 0.1 * np.linalg.norm(before, axis=-1, keepdims=True) * vectors[1] / np.linalg.norm(vectors[1])
    assert relative == pytest.approx(before + added, abs=1e-5)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox"])
def test_temperature_divides_the_scores_of_attention(name: str) -> None:
    model = tiny(name, attn_implementation="eager")
    with torch.inference_mode():
        plain = model(torch.tensor([IDS]), output_attentions=True).attentions[1][0]
        with Intervening(model, ["temperature:value=3,layers=1"], 5):
            flat = model(torch.tensor([IDS]), output_attentions=True).attentions[1][0]
    assert torch.allclose(flat, (plain.log() / 3).softmax(-1), atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "phi3"])
def test_temperature_leaves_keys_and_values_of_a_fused_projection(name: str) -> None:
    model = tiny(name)
    before, after = (_cache(model, configs) for configs in ([], ["temperature:value=3,layers=1"]))
    for layer in (0, 1):
        for kept, now in zip(before[layer], after[layer], strict=True):
            assert torch.equal(kept, now)


@torch.inference_mode()
def _cache(model: Any, configs: list[str]) -> list[tuple[Any, Any]]:
    with Intervening(model, configs, 5):
        cache = model(torch.tensor([IDS]), use_cache=True)
    held = getattr(cache, "cache", None) or cache.past_key_values
    return [(layer.keys, layer.values) for layer in held.layers]


def test_skip_always_gives_the_input_of_the_block(llama: Any) -> None:
    before = rows_of(llama, IDS, [], ["resid"])["resid"]
    after = rows_of(llama, IDS, ["skip:always=true,layers=1,tokens=4-"], ["resid"])["resid"]
    assert np.array_equal(after[4:, 1], before[4:, 0])
    assert np.array_equal(after[:4], before[:4])


def test_skip_judges_by_the_cosines_of_earlier_rows(llama: Any) -> None:
    rows = rows_of(llama, IDS, [], ["resid"])["resid"]
    entered, gave = rows[:, 0], rows[:, 1]
    cosine = np.vecdot(entered, gave) / np.linalg.norm(entered, axis=-1) / np.linalg.norm(gave, axis=-1)
    means = np.array([np.nan, *(cosine[max(0, i - 4) : i].mean() for i in range(1, len(IDS)))])
    above = float(np.sort(means[1:])[9:11].mean())
    after = rows_of(llama, IDS, [f"skip:above={above},rows=4,layers=1"], ["resid"])["resid"][:, 1]
    skipped = means >= above
    assert 0 < skipped.sum() < len(IDS)
    assert np.array_equal(after, np.where(skipped[:, None], entered, gave))


@pytest.mark.parametrize("at", ["before", "first"])
def test_freeze_holds_dims_at_the_row_before_or_the_first_row(llama: Any, at: str) -> None:
    before, after = changed_rows(llama, f"freeze:dims=2,7-9,at={at},tokens=6-12")
    expected = before.copy()
    expected[6:13, [2, 7, 8, 9]] = before[5 if at == "before" else 6, [2, 7, 8, 9]]
    assert np.array_equal(after, expected)


def test_freeze_holds_generated_rows_where_nothing_else_is_said(llama: Any) -> None:
    before, after = changed_rows(llama, "freeze:dims=3")  # rows_of says: 6 prompt tokens
    assert np.array_equal(after[:6], before[:6])
    assert np.array_equal(after[6:, 3], np.full(len(IDS) - 6, before[5, 3]))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("source") / "a.sot"
    return record(tiny("llama"), "60 2 7 30 11", sites=["resid", "final", "head_out"], max_new_tokens=6, out=out)


def test_transfer_adds_a_difference_of_means(llama: Any, source: Any) -> None:
    before, after = changed_rows(llama, f"transfer:source={source.path},rows=5-8,reference=1-4")
    rows = source.states("resid", layer=1)
    assert after == pytest.approx(before + rows[5:9].mean(0) - rows[1:5].mean(0), abs=1e-5)
    nothing = changed_rows(llama, f"transfer:source={source.path},reference={source.path}")[1]
    assert nothing == pytest.approx(before, abs=1e-6)
    heads = source.states("head_out", layer=1)
    before, after = changed_rows(llama, f"transfer:source={source.path},rows=5-8,reference=1-4", "head_out")
    assert after == pytest.approx(before + heads[5:9].mean(0) - heads[1:5].mean(0), abs=1e-5)


def test_transfer_patches_rows_by_position(llama: Any, source: Any) -> None:
    rows = source.states("resid", layer=1)
    before, after = changed_rows(llama, f"transfer:source={source.path},how=patch,tokens=4-")
    assert np.array_equal(after[4:10], rows[4:10])
    assert np.array_equal(after[10:], before[10:])  # the source has ten rows
    assert np.array_equal(after[:4], before[:4])
    shifted = changed_rows(llama, f"transfer:source={source.path},how=patch,shift=-3,rows=1-2")[1]
    assert np.array_equal(shifted[4:6], rows[1:3])
    assert np.array_equal(shifted[6:], before[6:])
    other = changed_rows(llama, f"transfer:source={source.path},how=patch,layer=3")[1]
    assert np.array_equal(other[1:10], source.states("resid", layer=3)[1:])
    half = changed_rows(llama, f"transfer:source={source.path},how=patch,strength=0.5")[1]
    assert half[1:10] == pytest.approx((before[1:10] + rows[1:]) / 2, abs=1e-5)


def test_all_final_states_patched_are_the_text_of_the_source(llama: Any, source: Any) -> None:
    ids = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 1, 1, 1]])
    with (
        torch.inference_mode(),
        Intervening(llama, [f"transfer:source={source.path},how=patch,site=final,rows=all"], 5),
    ):
        chosen = llama(ids).logits[0].argmax(-1).tolist()
    assert chosen[4:] == source.tokens.all_ids[5:]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("how=patch,site=mlp_out", "mlp_out"),
        ("how=patch,rows=20-", "has no rows at positions 20-"),
        ("how=patch,seq=1", "has no sequence 1"),
        ("reference=prompt,rows=40", "has no rows at positions 40"),
        ("reference=/nowhere.sot", "/nowhere.sot does not exist"),
    ],
)
def test_transfer_refuses_what_the_source_does_not_have(llama: Any, source: Any, more: str, says: str) -> None:
    with pytest.raises(SotscopeError, match=says):
        Intervening(llama, [f"transfer:source={source.path},{more}"], 5)


def test_transfer_refuses_a_model_of_another_size_and_patches_on_the_same_rows(source: Any) -> None:
    with pytest.raises(HealthError, match=r"rows of resid have 32 values in .*, 64 in this model"):
        Intervening(tiny("llama", hidden_size=64), [f"transfer:source={source.path},how=patch"], 5)
    two = [f"transfer:source={source.path},how=patch,rows={rows}" for rows in ("1-5", "5-8", "6-7,shift=5")]
    with pytest.raises(HealthError, match="'transfer' and 'transfer 2' contradict each other at resid, layers 0-3"):
        Intervening(tiny("llama"), two[:2], 5)
    Intervening(tiny("llama"), [two[0], two[2].replace("shift=5", "shift=-5")], 5)
