"""The engine: whose rows are changed, in which order, from when on; what it leaves alone and what it never hides."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sotscope.capture.intervening import Intervening
from sotscope.capture.interventions import Recurrent, Rowwise, read_intervention
from sotscope.capture.plan import anatomy, hook_counts, make_plan
from sotscope.capture.tap import Tap
from sotscope.catalog import INTERVENTIONS
from sotscope.config import RunConfig
from sotscope.decode.cache import CachedModel
from sotscope.errors import CaptureError, HealthError
from sotscope.recorder import recording
from sotscope.store.reader import open_run
from sotscope.testing.drafters import mix
from sotscope.testing.interventions import PROMPT, check_intervention, check_widths, recorded, rows_of
from sotscope.testing.oracle import row_error
from sotscope.testing.tiny import tiny

IDS = [5, 17, 3, 88, 41, 9, 60, 2, 7, 30, 11, 12, 44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55]
MANY = [
    "prune:k=1.5,how=clamp,layers=0",
    "prune:per=dim,k=1,layers=1,tokens=6-",
    "interpolate:alpha=0.7,how=spherical,layers=2,tokens=3-18",
    "rescale:site=mlp_out,window=8",
    "steer:dim=3,value=2,site=attn_out,strength=0.5",
    "temperature:value=2,layers=1-2",
    "freeze:dims=1,4,site=mlp_act,tokens=7-",
    "skip:above=0.5,rows=3,layers=3",
]
LOOK = ["resid", "attn_out", "mlp_out", "mlp_act", "query", "final"]


def forward(model: Any, ids: list[int] = IDS, **more: Any) -> Any:
    with torch.inference_mode():
        return model(torch.tensor([ids]), **more)


# -- width -----------------------------------------------------------------------------------------------------


def test_all_at_once_are_the_same_for_any_width(llama: Any, tmp_path: Path) -> None:
    check_widths(llama, [read_intervention(text) for text in MANY], tmp_path, LOOK)


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4)), min_size=24, max_size=24),
    st.lists(st.sampled_from(MANY), min_size=1, max_size=4, unique=True),
)
def test_any_cut_of_a_text_with_any_rejected_drafts_gives_the_same_rows(
    cuts: list[tuple[int, int]], configs: list[str]
) -> None:
    model = tiny("llama")
    truth = rows_of(model, IDS, configs, LOOK)
    cached, done = CachedModel(model), 0
    found: dict[str, list[Any]] = {site: [] for site in LOOK}
    with torch.inference_mode(), Intervening(model, configs, len(PROMPT)), Tap(make_plan(model, LOOK)) as tap:
        for width, rejected in cuts:
            block = IDS[done : done + width]
            if not block:
                break
            cached.forward([*block, *[1] * rejected])
            states = tap.take(len(block), (-1,) * len(block), logits=False).states
            cached.keep(rejected)
            done += len(block)
            for site in LOOK:
                found[site].append(states[site])
    for site in LOOK:
        assert row_error(truth[site], np.concatenate(found[site])) <= 1e-4, site


@pytest.mark.parametrize("name", ["gemma3", "phi3", "qwen3", "opt", "mistral-sliding", "mixtral", "qwen3_moe"])
def test_other_families_are_the_same_for_any_width(name: str, tmp_path: Path) -> None:
    model = tiny(name)
    configs = ["interpolate:layers=1,alpha=0.6", "temperature:value=2", "steer:dim=2,value=1,site=mlp_out", "rescale"]
    check_widths(model, [read_intervention(text) for text in configs], tmp_path, ["resid", "query", "mlp_out", "final"])


def test_a_recurrent_model_is_changed_as_in_one_forward(tmp_path: Path) -> None:
    model = tiny("mamba")
    configs = ["interpolate:layers=1", "steer:dim=2,value=1,site=embed"]
    run = recorded(model, configs, tmp_path / "a.sot")
    truth = rows_of(model, [int(i) for i in run.tokens.ids], configs, ["resid"])["resid"]
    assert row_error(truth, run.states("resid")) <= 1e-3
    assert np.abs(rows_of(model, [int(i) for i in run.tokens.ids], [], ["resid"])["resid"] - truth).max() > 0.1


class LooksAhead(Rowwise):
    """Wrong: a row depends on the rows of its forward."""

    name = "ahead"

    def __init__(self, place: Any) -> None:
        pass

    def rows(self, states: Tensor, positions: range) -> Tensor:
        return states - 0.5 * states.mean(0)


class Counts(Recurrent):
    """Wrong: it remembers rows that were rejected."""

    name = "counts"

    def __init__(self, place: Any) -> None:
        self.seen = 0

    def row(self, state: Tensor, memory: Any, pos: int) -> tuple[Tensor, Any]:
        self.seen += 1
        return state * (1 + 0.01 * self.seen), None


class Squeezes(Rowwise):
    """Wrong: another number of values."""

    name = "squeezes"

    def __init__(self, place: Any) -> None:
        pass

    def rows(self, states: Tensor, positions: range) -> Tensor:
        return states[:, :1]


@pytest.mark.parametrize("kind", [LooksAhead, Counts])
def test_the_suite_finds_an_intervention_that_goes_by_the_width(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(INTERVENTIONS, "_entries", {**INTERVENTIONS._entries, kind.name: ""})
    monkeypatch.setattr(INTERVENTIONS, "_loaded", {**INTERVENTIONS._loaded, kind.name: kind})
    with pytest.raises(AssertionError, match=r"width of a step|of its norm from"):
        check_intervention(kind.name)


def test_an_intervention_that_gives_another_shape_is_named(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(INTERVENTIONS, "_entries", {**INTERVENTIONS._entries, "squeezes": ""})
    monkeypatch.setattr(INTERVENTIONS, "_loaded", {**INTERVENTIONS._loaded, "squeezes": Squeezes})
    with Intervening(llama, ["squeezes"], 5), pytest.raises(HealthError, match=r"squeezes made \[24, 1\] of rows"):
        forward(llama)


# -- order, strength, what is touched --------------------------------------------------------------------------


def test_they_are_applied_in_the_stated_order(llama: Any) -> None:
    before = rows_of(llama, IDS, [], ["resid"])["resid"][:, 1]
    add, twice = "steer:dim=0,value=10,layers=1", "rescale:factor=2,layers=1"
    first = rows_of(llama, IDS, [add, twice], ["resid"])["resid"][:, 1]
    second = rows_of(llama, IDS, [twice, add], ["resid"])["resid"][:, 1]
    assert first[:, 0] == pytest.approx(2 * (before[:, 0] + 10), rel=1e-5)
    assert second[:, 0] == pytest.approx(2 * before[:, 0] + 10, rel=1e-5)


@pytest.mark.parametrize("strength", [0.25, 1.0, -1.0, 2.0])
def test_strength_is_the_share_of_the_change(llama: Any, strength: float) -> None:
    before = rows_of(llama, IDS, [], ["resid"])["resid"][:, 1]
    after = rows_of(llama, IDS, [f"rescale:factor=3,layers=1,strength={strength}"], ["resid"])["resid"][:, 1]
    assert after == pytest.approx(before + strength * 2 * before, rel=1e-5, abs=1e-6)


def test_only_the_modules_of_active_ones_get_a_hook_and_all_are_taken_off(llama: Any) -> None:
    before = hook_counts(llama)
    with Intervening(llama, ["prune:on=false", "steer:dim=1,strength=0"], 5):
        assert hook_counts(llama) == before
    with Intervening(llama, ["prune:layers=1", "rescale:layers=1,site=mlp_out", "steer:dim=1,layers=1"], 5) as engine:
        hooked = set(hook_counts(llama) - before)
        assert hooked == {"model", "model.layers.1", "model.layers.1.mlp.down_proj"}
        engine.set([], 0)
        assert hook_counts(llama) == before
        engine.set(["steer:dim=1,site=final"], 0)
        assert set(hook_counts(llama) - before) == {"model"}
    assert hook_counts(llama) == before
    with pytest.raises(KeyboardInterrupt), Intervening(llama, MANY, 5):
        raise KeyboardInterrupt
    assert hook_counts(llama) == before


def test_a_tap_that_was_there_before_sees_the_changed_rows(llama: Any) -> None:
    plan = make_plan(llama, ["resid", "embed"])
    with Tap(plan) as tap, Intervening(llama, ["steer:dim=0,value=7,layers=2", "steer:dim=0,value=7,site=embed"], 5):
        forward(llama)
        states = tap.take(len(IDS), (-1,) * len(IDS), logits=False).states
    truth = rows_of(llama, IDS, ["steer:dim=0,value=7,layers=2", "steer:dim=0,value=7,site=embed"], ["resid", "embed"])
    assert all(np.array_equal(states[site], truth[site]) for site in truth)
    assert not np.array_equal(states["embed"], rows_of(llama, IDS, [], ["embed"])["embed"])


class Pair(torch.nn.Module):
    """A block that gives a tuple, as blocks of older architectures do."""

    def __init__(self, block: torch.nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.gave = (self.block(*args, **kwargs), "weights", None)
        return self.gave


def test_the_other_entries_of_a_tuple_are_kept() -> None:
    model = tiny("llama")
    truth = rows_of(model, IDS, ["steer:dim=0,value=3,layers=3"], ["resid"])["resid"]
    seen: list[Any] = []
    block = model.model.layers[3]
    model.model.layers[3] = pair = Pair(block)

    def first(module: Any, args: Any, output: Any) -> Any:
        seen.append(output)
        return output[0]  # so that the model goes on

    with Intervening(model, ["steer:dim=0,value=3,layers=3"], 5):
        pair.register_forward_hook(first)
        forward(model)
    assert seen[0][1:] == ("weights", None)
    assert isinstance(seen[0], tuple)
    assert seen[0][0][0].numpy() == pytest.approx(truth[:, 3], abs=1e-5)
    assert not torch.equal(pair.gave[0], seen[0][0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_what_it_is_and_untouched_rows_keep_their_bits(dtype: str) -> None:
    model = tiny("llama", dtype=dtype)
    with torch.inference_mode():
        plain = model(torch.tensor([IDS]), use_cache=False)
    with Intervening(model, [*MANY[2:5], "freeze:dims=1,tokens=9-"], 5):
        changed = forward(model, use_cache=False)
    assert changed.logits.dtype == plain.logits.dtype
    late = rows_of(model, IDS, ["steer:dim=0,value=1,tokens=9-"], ["resid"])["resid"]
    assert np.array_equal(late[:9], rows_of(model, IDS, [], ["resid"])["resid"][:9])


@pytest.mark.parametrize("text", ["prune", *MANY])
def test_what_is_not_finite_is_not_hidden(llama: Any, text: str) -> None:
    broken = "rescale:factor=1e39,layers=0,tokens=12,name=broken"
    after = read_intervention(text).model_copy(update={"tokens": "all"})
    cached = CachedModel(llama)  # row 12 alone: behind a causal mask it would spoil the rows of its forward
    with torch.inference_mode(), Intervening(llama, [broken, after], 5), Tap(make_plan(llama, ["resid"])) as tap:
        cached.forward(IDS[:12])
        assert not tap.take(12, (-1,) * 12, logits=False).scalars["nonfinite"].any()
        cached.forward(IDS[12:13])
        assert (tap.take(1, (-1,), logits=False).scalars["nonfinite"][0, 1:] == 32).all()


def test_a_batch_is_refused(llama: Any) -> None:
    with Intervening(llama, ["prune"], 5), pytest.raises(CaptureError, match="a batch of 2 sequences"):
        llama(torch.tensor([IDS, IDS]))


# -- positions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_the_position_is_that_of_the_cache_where_nobody_says_it(name: str) -> None:
    model = tiny(name)
    configs = ["interpolate:layers=1", "steer:dim=0,value=3,tokens=9-12"]
    truth = rows_of(model, IDS, configs, ["resid"])["resid"]
    with Intervening(model, configs, 5), Tap(make_plan(model, ["resid"])) as tap:
        output = forward(model, IDS[:10], use_cache=True)
        held = getattr(output, "cache", None) or output.past_key_values
        first = tap.take(10, (-1,) * 10, logits=False).states["resid"]
        forward(model, IDS[10:], use_cache=True, **{"cache" if hasattr(output, "cache") else "past_key_values": held})
        second = tap.take(len(IDS) - 10, (-1,) * (len(IDS) - 10), logits=False).states["resid"]
    assert row_error(truth, np.concatenate([first, second])) <= 1e-4


def test_generated_begins_after_the_prompt_and_a_restart_moves_it(llama: Any) -> None:
    plain = rows_of(llama, IDS, [], ["resid"])["resid"]
    with Intervening(llama, ["steer:dim=0,value=3,tokens=generated", "steer:dim=0,value=3,tokens=prompt"], 7) as engine:
        assert [engine.active(pos) for pos in (0, 6, 7, 99)] == [2, 2, 1, 1]
        engine.restart(3)
        assert [engine.active(pos) for pos in (0, 2, 3, 99)] == [2, 2, 1, 1]
        assert engine.active(cast(int, np.int64(3))) == 1
        with Tap(make_plan(llama, ["resid"])) as tap:
            forward(llama, use_cache=False)
            rows = tap.take(len(IDS), (-1,) * len(IDS), logits=False).states["resid"]
    assert rows[:, 0, 0] == pytest.approx(plain[:, 0, 0] + 3, abs=1e-5)


def test_memory_of_many_rows_is_bounded_and_what_is_unknown_starts_anew(llama: Any) -> None:
    engine = Intervening(llama, ["interpolate:layers=1"], 5)
    applied = engine._schedule[0][1][0].at["resid", 1]
    states = torch.randn(400, 32)
    whole = applied.change(states, None, range(1, 401))
    assert len(applied._memories) == 128
    again = applied.change(states[380:], None, range(381, 401))  # twenty rows taken back
    assert torch.equal(again, whole[380:])
    applied.change(states[389:390], None, range(390, 391))
    assert max(applied._memories) == 390  # what was fed after it is forgotten
    fresh = applied.change(states[100:101], None, range(101, 102))  # too far back
    assert torch.equal(fresh, states[100:101])


# -- live ------------------------------------------------------------------------------------------------------

SCHEDULE = [
    (0, ["interpolate:alpha=0.5,layers=1"]),
    (9, ["steer:dim=0,value=3,layers=2", "interpolate:alpha=0.5,layers=1"]),
    (14, ["interpolate:alpha=0.9,layers=1"]),
    (17, []),
    (20, ["interpolate:alpha=0.9,layers=1", "freeze:dims=1,2,at=first"]),
]


def test_what_is_switched_while_decoding_is_what_one_forward_with_the_schedule_gives(
    llama: Any, tmp_path: Path
) -> None:
    truth: list[Any] = []
    for drafted in (False, True):
        out = tmp_path / f"{drafted}.sot"
        data = {"input": {"prompt": " ".join(map(str, PROMPT))}, "decode": {"max_new_tokens": 20}, "out": out}
        todo = SCHEDULE[1:]
        drafter = mix(truth, 4, 97) if drafted else None
        marks: dict[int, int] = {}
        settings = RunConfig.model_validate(data)
        with (
            Intervening(llama, SCHEDULE[0][1], len(PROMPT)) as engine,
            recording(settings, model=llama, drafter=drafter) as going,
        ):
            for step in going.steps():
                marks.update({pos: engine.active(pos) for pos in range(step.pos, step.pos + step.rows)})
                while todo and todo[0][0] <= step.pos + step.rows + 5:  # said ahead: a step may be wide
                    start, configs = todo.pop(0)
                    engine.set(configs, start)
        run = open_run(out)
        if drafted:
            assert run.tokens.all_ids[len(PROMPT) :] == truth
        truth = run.tokens.all_ids[len(PROMPT) :]
        with Intervening(llama, SCHEDULE[0][1], len(PROMPT)) as engine:
            for start, configs in SCHEDULE[1:]:
                engine.set(configs, start)
            expected = rows_of(llama, [int(i) for i in run.tokens.ids], [], ["resid"])["resid"]
        assert row_error(expected, run.states("resid")) <= 1e-4
        assert engine.names == ["interpolate", "steer", "freeze"]
        assert [marks[pos] for pos in (8, 9, 14, 17, 20, 23)] == [1, 3, 1, 0, 5, 5]


def test_one_that_stays_on_goes_on_and_one_that_comes_back_begins_anew(llama: Any) -> None:
    before = rows_of(llama, IDS, [], ["resid"])["resid"][:, 3]
    on = "interpolate:alpha=0.5,layers=3"
    with Intervening(llama, [on], 5) as engine:
        engine.set([on, "steer:dim=0,value=3,layers=3,on=false"], 8)  # the same, with another beside it
        engine.set([], 12)
        engine.set([on], 15)
        after = rows_of(llama, IDS, [], ["resid"])["resid"][:, 3]
    expected = before.copy()
    for i in [*range(2, 12), *range(16, len(IDS))]:
        expected[i] = (before[i] + expected[i - 1]) / 2
    assert after == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_going_back_replaces_what_was_to_come(llama: Any) -> None:
    engine = Intervening(llama, ["steer:dim=0,name=a"], 5)
    engine.set(["steer:dim=1,name=b"], 10)
    engine.set(["steer:dim=2,name=c"], 7)  # a branch from an earlier position
    assert [engine.active(pos) for pos in (6, 7, 10, 20)] == [1, 4, 4, 4]
    assert engine.names == ["a", "b", "c"]


def test_a_name_stays_with_its_settings(llama: Any) -> None:
    engine = Intervening(llama, ["steer:dim=1", "steer:dim=2"], 5)
    engine.set(["steer:dim=2,strength=0.5"], 6)
    assert [engine.active(pos) for pos in (5, 6)] == [3, 2]
    engine.set(["steer:dim=3", "steer:dim=2"], 7)  # another takes the name that is free
    assert engine.names == ["steer", "steer 2"]
    assert engine.active(7) == 3


def test_what_is_off_is_checked_too(llama: Any) -> None:
    with pytest.raises(HealthError, match="there is no dim 99"):
        Intervening(llama, ["steer:dim=99,on=false"], 5)


def test_a_refused_change_leaves_all_as_it_was(llama: Any) -> None:
    with Intervening(llama, ["prune:layers=1"], 5) as engine:
        before, hooks = rows_of(llama, IDS, [], ["resid"])["resid"], hook_counts(llama)
        with pytest.raises(HealthError, match="contradict"):
            engine.set(["temperature", "temperature"], 3)
        with pytest.raises(HealthError, match="unknown intervention"):
            engine.set(["pruned"], 3)
        assert engine.names == ["prune"]
        assert [config.kind for config in engine.configs] == ["prune"]
        assert hook_counts(llama) == hooks
        assert np.array_equal(rows_of(llama, IDS, [], ["resid"])["resid"], before)


def test_off_is_the_unchanged_model_and_forgets_nothing(llama: Any) -> None:
    truth = rows_of(llama, IDS, ["interpolate:layers=1"], ["resid"])["resid"]
    plain = forward(llama).logits
    cached = CachedModel(llama)
    plan = make_plan(llama, ["resid"])
    with torch.inference_mode(), Intervening(llama, ["interpolate:layers=1"], 5) as engine, Tap(plan) as tap:
        cached.forward(IDS[:20])
        with engine.off():
            assert torch.equal(llama(torch.tensor([IDS])).logits, plain)
            with engine.off():
                pass
            cached.forward(IDS[20:21])
            cached.keep(1)
        cached.forward(IDS[20:])
        rows = tap.take(4, (-1,) * 4, logits=False).states["resid"]
    assert row_error(truth[20:], rows) <= 1e-4


def test_a_plan_does_as_well_as_a_model(llama: Any) -> None:
    plan = make_plan(llama, ["resid"])
    assert Intervening(plan, ["prune"], 5).body is plan.anatomy


def test_a_module_named_by_hand_is_changed() -> None:
    model = tiny("phi")  # no family describes it
    assert anatomy(model).family is None
    by_hand = {"mlp_out": "mlp.fc2"}
    seen: list[Any] = []
    with Intervening(model, ["rescale:factor=0.5,site=mlp_out,layers=0"], 5, module_names=by_hand):
        handle = model.model.layers[0].mlp.fc2.register_forward_hook(lambda m, a, out: seen.append((m, a, out)))
        model(torch.tensor([IDS]))
        handle.remove()
    module, args, out = seen[0]
    assert torch.allclose(out, 0.5 * torch.nn.functional.linear(args[0], module.weight, module.bias))
