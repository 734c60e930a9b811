"""Identical, a numerical tie, or a real divergence: what the comparison of a mode with `ar` says."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from sotscope.checking import Checked, Checker, compare
from sotscope.config import DecodeConfig
from sotscope.decode.sampling import Sampler
from sotscope.errors import DecodeError
from sotscope.models.load import Loaded
from sotscope.testing.drafters import greedy, mix, oracle
from sotscope.testing.tiny import tiny

PROMPT = [5, 17, 3, 88, 41]


def check(model: Any, drafter: Any, tokens: int = 24, prompt: list[int] = PROMPT, **settings: Any) -> Checked:
    decode = DecodeConfig(mode="lookup", max_new_tokens=tokens, controller="none", guard=False, **settings)
    return Checker(Loaded(model, None, "tiny", "in memory"), decode, drafter=drafter).check(prompt)


@pytest.fixture(scope="module")
def truth(llama: Any) -> list[int]:
    return greedy(llama, PROMPT, 24)


@pytest.mark.parametrize("window", [1, 2, 4, 8])
def test_blocks_of_any_width_in_fp32_are_identical(window: int, llama: Any, truth: list[int]) -> None:
    checked = check(llama, mix(truth, window, 97))
    assert checked.verdict.kind == "identical"
    assert checked.tokens == 24
    assert checked.forwards < 24 or window == 1
    assert checked.drafts > 0


@pytest.mark.parametrize(("name", "last"), [("llama", 43), ("qwen3", 44)])
def test_what_differs_in_bf16_is_a_tie_within_its_resolution(name: str, last: int) -> None:
    model, prompt = tiny(name, dtype="bfloat16"), [5, 17, 3, 88, last]
    verdict = check(model, mix(greedy(model, prompt, 64), 4, 97), 64, prompt).verdict
    assert verdict.kind in ("identical", "tie")
    if verdict.kind == "tie":
        assert verdict.index is not None
        assert verdict.margin <= max(2 * verdict.width_difference, 2**-7)


@pytest.fixture(scope="module")
def twins(truth: list[int]) -> tuple[Any, list[int], int, int]:
    """A model with two equal lm_head rows, what it writes, the place where one of both is chosen, and the other one."""
    model = tiny("llama")
    place = next(i for i in range(5, 24) if truth[i] not in truth[:i])
    twin = next(token for token in range(97) if token not in truth)
    with torch.no_grad():
        model.lm_head.weight[twin] = model.lm_head.weight[truth[place]]
    text = greedy(model, PROMPT, place + 1)
    return model, text, place, twin if text[place] != twin else truth[place]


def test_two_equally_likely_tokens_are_a_tie(twins: Any) -> None:
    model, text, place, other = twins
    verdict = compare(model, PROMPT, [*text[:place], other], text)
    assert (verdict.kind, verdict.index) == ("tie", place)
    assert verdict.margin < 1e-6
    assert verdict.width_difference < 1e-4


def test_a_third_token_at_a_tie_is_a_real_divergence(twins: Any) -> None:
    model, text, place, other = twins
    third = next(token for token in range(97) if token not in (text[place], other))
    verdict = compare(model, PROMPT, [*text[:place], third], text)
    assert (verdict.kind, verdict.index) == ("divergence", place)


def test_believed_drafts_are_a_real_divergence_with_its_place_and_margin(llama: Any, truth: list[int]) -> None:
    verdict = check(llama, mix(truth, 4, 97), policy="none").verdict
    assert (verdict.kind, verdict.index) == ("divergence", 2)  # every third draft is wrong
    with torch.inference_mode():
        logits = llama(torch.tensor([[*PROMPT, *truth[:2]]])).logits[0, -1]
    top = logits.topk(2).values
    assert verdict.margin == pytest.approx(float(top[0] - top[1]), abs=1e-4)
    assert verdict.margin > 2 * verdict.width_difference


def test_a_model_that_computes_blocks_wrongly_is_not_excused(truth: list[int]) -> None:
    model = tiny("llama")

    def push(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        blocks = output.shape[1] > 1 and args[0].shape[1] > 1
        return output + 50 * torch.nn.functional.one_hot(torch.tensor(7), 97) if blocks else output

    model.lm_head.register_forward_hook(push)
    plain = check(model, oracle(truth, 4)).verdict
    assert plain.kind == "divergence"
    assert plain.width_difference > 10, "its blocks say something else, and not by rounding"


def test_a_text_that_ended_early_is_a_divergence(llama: Any, truth: list[int]) -> None:
    for ours, theirs in ((truth[:5], truth), (truth, truth[:5])):
        verdict = compare(llama, PROMPT, ours, theirs)
        assert (verdict.kind, verdict.index) == ("divergence", 5)
        assert math.isnan(verdict.margin)


def test_processors_count_for_the_margin(llama: Any, truth: list[int]) -> None:
    class Ban:
        """What would be chosen in place 3 cannot be."""

        def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            scores[:, truth[3]] = -math.inf
            return scores

    with torch.inference_mode():
        logits = llama(torch.tensor([[*PROMPT, *truth[:3]]])).logits[0, -1]
    first, second, third = logits.topk(3).indices.tolist()
    assert first == truth[3]
    verdict = compare(
        llama, PROMPT, [*truth[:3], third], [*truth[:3], second], sampler=Sampler(llama, 5, processors=[Ban()])
    )
    assert verdict.kind == "divergence"
    assert verdict.margin == pytest.approx(float(logits[second] - logits[third]), abs=1e-4)
    assert check(llama, mix(truth, 4, 97), repetition_penalty=1.3).verdict.kind == "identical"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_texts_from_logits_that_are_not_finite_are_never_identical(value: float, truth: list[int]) -> None:
    model = tiny("llama")
    with torch.no_grad():
        model.model.layers[2].mlp.down_proj.weight[0, 0] = value
    assert compare(model, PROMPT, truth, truth).kind == "invalid"
    assert check(model, mix(truth, 4, 97)).verdict.kind == "invalid"


def test_nothing_compared_is_not_identical(llama: Any, truth: list[int]) -> None:
    assert compare(llama, PROMPT, [], []).kind == "invalid"
    assert check(llama, mix(truth, 4, 97), tokens=0).verdict.kind == "invalid"


def test_a_drafter_that_failed_is_told(llama: Any, truth: list[int]) -> None:
    drafter = mix([*truth[:4], 1000, 1000], 4, 5000)
    checked = check(llama, drafter)
    assert checked.verdict.kind == "identical"
    assert "outside the model's 97" in checked.alarms[0]


@pytest.mark.parametrize("mode", ["ar", "forced"])
def test_a_mode_without_drafts_is_refused(mode: str, llama: Any) -> None:
    with pytest.raises(DecodeError, match=f"mode {mode} drafts nothing"):
        Checker(Loaded(llama, None, "tiny", "in memory"), DecodeConfig(mode=mode))


def test_a_model_that_cannot_roll_back_is_refused() -> None:
    with pytest.raises(DecodeError, match="recurrent state"):
        check(tiny("mamba"), None, 4)
