"""What can go wrong with a drafter costs speed at most: it is refused in one line, or switched off with an alarm."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decode_helpers import PROMPT, bundle_folder, trained
from safetensors.torch import load_file, save_file
from torch import Tensor

from sotscope.capture.plan import hook_counts
from sotscope.decode.contracts import Context, Drafter, Proposal
from sotscope.errors import DecodeError, PromptError, SotscopeError
from sotscope.events import Step
from sotscope.recorder import record
from sotscope.testing.bundles import tiny_bundle
from sotscope.testing.drafters import greedy, mix, oracle
from sotscope.testing.oracle import check_run
from sotscope.testing.tiny import tiny

COUNT = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_folder(tiny("llama"), tmp_path_factory.mktemp("drafter"))


@pytest.fixture(scope="module")
def truth() -> list[int]:
    return greedy(tiny("llama"), PROMPT, 64)


# -- a folder that is not what it should be ----------------------------------------------------------------------


def test_a_drafter_of_another_base_is_refused_with_both_names(go: Any, folder: Path) -> None:
    with pytest.raises(
        DecodeError, match=r"was trained for LlamaForCausalLM \(weights \w+\), not for Gemma\w+ \("
    ) as no:
        go(tiny("gemma"), None, config=trained(folder))
    assert "\n" not in str(no.value)
    with pytest.raises(DecodeError, match="sotscope train sot"):
        go(tiny("llama", seed=1), None, config=trained(folder))  # the same sizes, other weights


def change_card(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        card = json.loads((folder / "card.json").read_text())
        (folder / "card.json").write_text(json.dumps({**card, **changes}))

    return change


def change_weights(change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        file = folder / "model.safetensors"
        save_file(change(load_file(file)), file)

    return rewrite


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def nan(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    weights["q.weight"][0, 0] = math.nan
    return weights


WIDE = {"kind": "attention", "dim": 32, "layers": [1, 2], "heads": 4, "kv_heads": 2, "head_dim": 8, "inner": 999}
BROKEN: dict[str, Callable[[Path], Any]] = {
    "no folder": shutil.rmtree,
    "no card": lambda folder: (folder / "card.json").unlink(),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "card is no JSON": lambda folder: (folder / "card.json").write_text('{"predictor": '),
    "card is a list": lambda folder: (folder / "card.json").write_text("[1]"),
    "card says nothing": lambda folder: (folder / "card.json").write_text("{}"),
    "base is no object": change_card(base="llama"),
    "shapes are no numbers": change_card(predictor={**WIDE, "dim": "many"}),
    "unknown architecture": change_card(predictor={**WIDE, "kind": "atention"}),
    "card of other shapes": change_card(predictor=WIDE),
    "layers the model lacks": change_card(predictor={**WIDE, "inner": 64, "layers": [1, 99]}),
    "truncated weights": truncate,
    "weights of something else": change_weights(lambda weights: {"lm_head.weight": torch.zeros(3)}),
    "weights missing": change_weights(lambda weights: {k: v for k, v in weights.items() if k != "q.weight"}),
    "vocabulary of a larger model": change_weights(lambda weights: {**weights, "vocabulary": torch.tensor([5, 97])}),
    "empty vocabulary": change_weights(lambda weights: {**weights, "vocabulary": torch.tensor([], dtype=torch.int32)}),
    "weights not finite": change_weights(nan),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_folder_is_refused_in_one_line(fault: str, llama: Any, go: Any, folder: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(folder, tmp_path / "broken")
    BROKEN[fault](broken)
    with pytest.raises(SotscopeError) as refusal:
        go(llama, None, config=trained(broken))
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 500
    assert not hook_counts(llama)


# -- a drafter that fails in mid-run -----------------------------------------------------------------------------


class Failing(Drafter):
    """Right twice, then something is wrong with it."""

    mode = "sot"
    window = 4

    def __init__(self, truth: list[int], how: str) -> None:
        self._truth = truth
        self._how = how
        self.asked = 0

    def propose(self, context: Context, window: int) -> Proposal:
        self.asked += 1
        right = self._truth[context.new_tokens : context.new_tokens + 2][:window]
        if self.asked <= 2 or self._how == "observe":
            return Proposal(right, [0.9] * len(right))
        if self._how == "propose":
            raise RuntimeError("out of\ncookies")
        return {
            "nan": Proposal(right, [math.nan] * len(right)),
            "nan entropy": Proposal(right, [0.9] * len(right), [math.nan] * len(right)),
            "too high": Proposal([97, 5], [0.9, 0.9]),
            "negative": Proposal([-1], [0.9]),
            "too many": Proposal(right * 4, [0.9] * 8),
        }[self._how]

    def observe(self, context: Context, step: Step, truth: Tensor | None) -> None:
        if self._how == "observe" and self.asked == 2:
            raise ZeroDivisionError("division by zero")


@pytest.mark.parametrize("how", ["propose", "observe", "nan", "nan entropy", "too high", "negative", "too many"])
def test_a_drafter_that_fails_is_switched_off_and_the_text_goes_on(
    how: str, llama: Any, go: Any, truth: list[int]
) -> None:
    drafter = Failing(truth, how)
    run = go(llama, sites=["resid", "final"], max_new_tokens=COUNT, drafter=drafter)
    assert run.tokens.all_ids == [*PROMPT, *truth[:COUNT]]
    check_run(llama, run, tolerance=1e-5)
    [alarm] = run.info()["alarms"]
    assert alarm["alarm"] == "drafter"
    assert alarm["position"] == 5 + 6  # two steps of three tokens
    assert "sot" in alarm["message"]
    assert run.tokens.modes[4:] == ["sot"] * 6 + ["ar"] * (COUNT - 6)
    assert len(run.drafts) == 4
    assert drafter.asked == (2 if how == "observe" else 3), "it was asked again"
    assert run.complete


# -- settings at the edge ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sot", "dmtd", "lookup", "combine"])
def test_window_0_is_plain_decoding(mode: str, llama: Any, go: Any, folder: Path, truth: list[int]) -> None:
    run = go(llama, None, config=trained(folder, mode, window=0, max_new_tokens=COUNT))
    assert run.tokens.all_ids == [*PROMPT, *truth[:COUNT]]
    assert not len(run.drafts)
    assert set(run.steps["rows"][1:]) == {1}


@pytest.mark.parametrize(("mode", "window"), [("sot", 8), ("lookup", 64), ("combine", 64)])
def test_a_window_beyond_the_context_ends_with_the_context(mode: str, window: int, go: Any, tmp_path: Path) -> None:
    model = tiny("llama", max_position_embeddings=16)
    tiny_bundle(model, slots=8, vocabulary=[3, 5]).save(tmp_path / "d")
    config = trained(tmp_path / "d", mode, window=window, max_new_tokens=50, lookup={"shortest": 1, "window": 64})
    run = go(model, "5 17 3 5 17 3 5", config=config)
    assert run.info()["outcome"]["finish_reason"] == "context_limit"
    assert len(run) == 16
    assert run.tokens.all_ids == [5, 17, 3, 5, 17, 3, 5, *greedy(model, [5, 17, 3, 5, 17, 3, 5], 10)]
    assert len(run.drafts)
    assert run.drafts["target"].max() <= 16
    check_run(model, run)


@pytest.mark.parametrize("mode", ["sot", "lookup"])
def test_a_cache_that_cannot_roll_back_is_refused_by_name(mode: str, go: Any, tmp_path: Path) -> None:
    model = tiny("mamba")
    tiny_bundle(model, "gru").save(tmp_path / "d")
    with pytest.raises(DecodeError, match=r"mamba keeps a recurrent state.*use --mode ar"):
        go(model, None, config=trained(tmp_path / "d", mode, max_new_tokens=8))
    assert not hook_counts(model)


@pytest.mark.parametrize("name", ["mistral-sliding", "gemma3", "gpt2"])
def test_predicted_states_behind_a_sliding_window(name: str, go: Any, tmp_path: Path) -> None:
    model = tiny(name)
    folder = bundle_folder(model, tmp_path / "d")
    run = go(model, None, config=trained(folder, sites=("resid", "final"), max_new_tokens=24))
    assert run.tokens.all_ids == [*PROMPT, *greedy(model, PROMPT, 24)]
    assert not run.drafts["accepted"].all(), "nothing was rolled back"
    check_run(model, run)


def test_bf16_differs_from_ar_at_numerical_ties_only(go: Any) -> None:
    model = tiny("llama", dtype="bfloat16")
    plain = go(model, max_new_tokens=64)
    ids = plain.tokens.all_ids
    for drafter in (oracle(ids[5:], 4), mix(ids[5:], 4, 97), mix(ids[5:], 8, 97)):
        other = go(model, max_new_tokens=64, drafter=drafter).tokens.all_ids
        first = next((i for i, (a, b) in enumerate(zip(ids, other, strict=True)) if a != b), None)
        if first is not None:
            with torch.inference_mode():
                largest = float(model(torch.tensor([ids[:first]])).logits[0, -1].abs().max())
            margin = plain.scalars("margin")[first - 1]
            assert margin <= 8 * torch.finfo(torch.bfloat16).eps * max(1.0, largest), (first, margin)


def test_hidden_generation_defaults_are_the_same_in_every_mode(go: Any, tmp_path: Path) -> None:
    model = tiny("llama")
    tiny_bundle(model).save(tmp_path / "d")
    model.generation_config.do_sample = True
    model.generation_config.repetition_penalty = 1.3
    model.generation_config.temperature = 0.7
    modes = ("ar", "sot", "dmtd", "lookup", "combine")
    runs = [go(model, None, config=trained(tmp_path / "d", mode, max_new_tokens=COUNT)) for mode in modes]
    for run in runs:
        config = run.events("config")[0]
        assert config["generation"] == runs[0].events("config")[0]["generation"]
        assert config["generation"]["repetition_penalty"] == 1.3
        assert run.tokens.all_ids == runs[0].tokens.all_ids


@pytest.mark.parametrize("mode", ["sot", "dmtd", "lookup", "oracle"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_bad_weights_end_a_drafted_text_at_once(value: float, mode: str, go: Any, tmp_path: Path) -> None:
    model = tiny("llama")
    model.model.layers[2].mlp.down_proj.weight.data[3, 5] = value
    drafter = oracle([1] * 12, 4) if mode == "oracle" else None
    tiny_bundle(model).save(tmp_path / "d")
    config = trained(tmp_path / "d", "ar" if drafter else mode, max_new_tokens=12)
    run = go(model, None, config=config, **({"drafter": drafter} if drafter else {}))
    outcome = run.info()["outcome"]
    assert outcome["finish_reason"] == "non_finite"
    assert outcome["new_tokens"] == 0
    assert outcome["self_check"]["passed"] is False
    assert len(run) == 5
    alarm = next(alarm for alarm in run.events("alarm") if alarm["alarm"] == "non_finite")
    assert (alarm["first_bad_layer"], alarm["first_bad_position"]) == (2, 0)
    assert not np.isfinite(run.states("resid", layer=2)).all()


@pytest.mark.parametrize(
    ("ids", "numbers", "why"),
    [
        ([1, 2, 3], [1.0] * 3, "3 tokens for a window of 2"),
        ([1, 97], [1.0] * 2, "outside the model's 97"),
        ([1, -1], [1.0] * 2, "outside the model's 97"),
        ([1, 2], [1.0, math.nan], "not finite"),
        ([1, 2], [1.0, math.inf], "not finite"),
    ],
)
def test_a_proposal_that_cannot_be_says_why(ids: list[int], numbers: list[float], why: str) -> None:
    Proposal(ids=[1, 96], probabilities=[1.0, 0.5], entropies=[0.0, 0.7]).check(2, 97)
    with pytest.raises(DecodeError, match=why):
        Proposal(ids=ids, probabilities=numbers, entropies=[0.0] * len(ids)).check(2, 97)


@pytest.mark.parametrize("token", [97, -1])
def test_a_prompt_with_a_token_that_the_model_lacks_is_refused_and_nothing_is_created(
    llama: Any, token: int, tmp_path: Path
) -> None:
    with pytest.raises(PromptError, match=f"token id {token} is not one of the model's 97"):
        record(llama, f"5 {token} 3", out=tmp_path / "a.sot", max_new_tokens=4)
    assert list(tmp_path.iterdir()) == []
