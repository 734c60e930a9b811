"""Drafts change how fast tokens come, never which: rows, tokens and cache equal those of plain decoding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import DynamicCache

from sotscope.config import CaptureConfig, PromptConfig, RunConfig
from sotscope.decode.contracts import Context, Drafter, Proposal
from sotscope.recorder import recording
from sotscope.testing.drafters import anti, greedy, mix, oracle
from sotscope.testing.oracle import check_run
from sotscope.testing.tiny import tiny

PROMPT = [5, 17, 3, 88, 41]


def make(kind: str, truth: list[int], window: int, mode: str = "sot") -> Any:
    return {
        "plain": lambda: None,
        "oracle": lambda: oracle(truth, window, mode),
        "anti": lambda: anti(truth, window, 97, mode),
        "mix": lambda: mix(truth, window, 97, mode),
    }[kind]()


@pytest.mark.parametrize("mode", ["sot", "dmtd"])
@pytest.mark.parametrize("kind", ["oracle", "anti", "mix"])
def test_rejected_drafts_are_no_rows(kind: str, mode: str, llama: Any, go: Any) -> None:
    truth = greedy(llama, PROMPT, 12)
    run = go(llama, sites=["resid", "final"], max_new_tokens=12, drafter=make(kind, truth, 4, mode))
    tokens = run.tokens
    assert len(run) == 16
    assert tokens.all_ids == [*PROMPT, *truth]
    assert list(tokens.ids[1:]) == list(tokens.next_ids[:-1])
    assert list(tokens.pos) == list(range(16))
    assert set(tokens.modes[4:]) == {mode}
    check_run(llama, run, tolerance=1e-5)
    assert (run.top[0][4:, 0] == truth).all()


@pytest.mark.parametrize(
    ("kind", "reasons", "forwards"),
    [
        ("oracle", {"accepted": 9}, 3),
        ("anti", {"first_slot_miss": 11, "after_miss": 27}, 12),
    ],
)
def test_drafts_are_kept_with_their_fate(
    kind: str, reasons: dict[str, int], forwards: int, llama: Any, go: Any
) -> None:
    truth = greedy(llama, PROMPT, 12)
    run = go(llama, max_new_tokens=12, drafter=make(kind, truth, 4))
    assert run.drafts["reason"].value_counts().to_dict() == reasons
    steps = run.steps[run.steps["reason"] != "prefill"]
    assert len(steps) == forwards
    assert steps["rows"].sum() == 12
    assert steps["accepted"].sum() == reasons.get("accepted", 0)
    assert run.info()["outcome"]["tokens_per_forward"] == pytest.approx(12 / forwards, abs=1e-3)
    for draft in run.drafts.itertuples():
        right = truth[draft.target - 5]
        assert draft.token == (right if kind == "oracle" else (right + 1) % 97)


def test_a_miss_in_the_middle_ends_the_step_there(llama: Any, go: Any) -> None:
    truth = greedy(llama, PROMPT, 12)
    run = go(llama, max_new_tokens=12, drafter=make("mix", truth, 4))
    # of tokens 0-11 every third is drafted wrong: two accepted, one refused, one not looked at, and so on
    assert run.drafts["reason"].tolist()[:4] == ["accepted", "accepted", "later_slot_miss", "after_miss"]
    assert run.steps["rows"].tolist()[1:] == [3, 3, 3, 3]


@pytest.mark.parametrize("kind", ["plain", "oracle", "anti", "mix"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral-sliding"])
def test_no_rejected_draft_stays_in_the_cache(name: str, kind: str, tmp_path: Any) -> None:
    model = tiny(name)
    truth = greedy(model, PROMPT, 12)
    settings = RunConfig(
        input=PromptConfig(prompt="5 17 3 88 41"), decode={"max_new_tokens": 12}, out=tmp_path / "a.sot"
    )
    with recording(settings, model=model, drafter=make(kind, truth, 4)) as recorded:
        list(recorded.steps())
        cache = recorded.decoder.cached.cache
        assert recorded.decoder.cached.length == 16
    fresh = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(torch.tensor([[*PROMPT, *truth[:-1]]]), cache=fresh, use_cache=True)
    assert cache.get_seq_length() == 16
    for ours, theirs in zip(cache.layers, fresh.layers, strict=True):
        assert ours.keys.shape == theirs.keys.shape
        assert torch.allclose(ours.keys, theirs.keys, atol=1e-5)
        assert torch.allclose(ours.values, theirs.values, atol=1e-5)


class Turns(Drafter):
    """Another drafter every ten tokens, and another number of drafts every step."""

    window = 4

    def __init__(self, truth: list[int]) -> None:
        self.parts = [make("mix", truth, 4, "sot"), make("anti", truth, 4, "dmtd"), make("oracle", truth, 4, "lookup")]
        self.mode = "ar"
        self.asked = 0

    def propose(self, context: Context, window: int) -> Proposal:
        self.asked += 1
        turn = context.new_tokens // 10
        if turn == 0:
            return Proposal()
        self.mode = self.parts[turn - 1].mode
        return self.parts[turn - 1].propose(context, min(window, self.asked % 5))


def test_drafters_that_take_turns_leave_tokens_and_rows_as_they_are(llama: Any, go: Any) -> None:
    truth = greedy(llama, PROMPT, 40)
    plain = go(llama, sites=["resid", "final"], max_new_tokens=40)
    turns = go(llama, sites=["resid", "final"], max_new_tokens=40, drafter=Turns(truth))
    assert turns.tokens.all_ids == plain.tokens.all_ids == [*PROMPT, *truth]
    for site in ("resid", "final"):
        assert turns.states(site) == pytest.approx(plain.states(site), abs=1e-4)
    assert {"prompt", "ar", "sot", "dmtd", "lookup"} == set(turns.tokens.modes)
    assert turns.tokens.modes[4:14] == ["ar"] * 10
    assert turns.steps["window"].max() == 4


@pytest.mark.parametrize("window", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", ["oracle", "mix"])
def test_every_block_width_gives_the_same_tokens(window: int, kind: str, llama: Any, go: Any) -> None:
    truth = greedy(llama, PROMPT, 24)
    run = go(llama, max_new_tokens=24, drafter=make(kind, truth, window))
    assert run.tokens.all_ids == [*PROMPT, *truth]


@pytest.mark.parametrize("kind", ["plain", "oracle", "mix"])
def test_an_exact_tie_is_decided_the_same_way_in_every_width(kind: str, go: Any) -> None:
    model = tiny("llama", vocab_size=48)
    head = model.lm_head.weight.data[:24]
    model.lm_head.weight = nn.Parameter(torch.cat([head, head]))  # token i and token i + 24 tie, always
    truth = greedy(model, PROMPT[:3], 16)
    run = go(model, "5 17 3", max_new_tokens=16, drafter=make(kind, truth, 4))
    assert run.tokens.all_ids[3:] == truth
    assert run.scalars("margin")[2:] == pytest.approx(0.0, abs=1e-6)
    assert run.info()["outcome"]["self_check"]["passed"]


@pytest.mark.parametrize("count", [1, 2, 7, 9])
@pytest.mark.parametrize("kind", ["plain", "oracle", "anti"])
def test_drafts_never_overshoot_max_new_tokens(count: int, kind: str, llama: Any, go: Any) -> None:
    truth = greedy(llama, PROMPT, 20)
    run = go(llama, max_new_tokens=count, drafter=make(kind, truth, 8))
    assert run.tokens.all_ids == [*PROMPT, *truth[:count]]
    assert len(run) == 5 + count - 1
    assert run.info()["outcome"]["new_tokens"] == count
    assert run.info()["outcome"]["finish_reason"] == "max_new_tokens"


@pytest.mark.parametrize("kind", ["plain", "oracle"])
def test_no_new_token_records_the_prompt(kind: str, llama: Any, go: Any) -> None:
    run = go(llama, max_new_tokens=0, drafter=make(kind, [1] * 8, 8))
    assert run.tokens.all_ids == PROMPT
    assert len(run) == 5
    assert run.info()["outcome"]["new_tokens"] == 0
    assert run.info()["outcome"]["finish_reason"] == "prompt_only"
    assert set(run.tokens.modes) == {"prompt"}
    check_run(llama, run)


def test_one_prompt_token_can_be_followed_by_drafts(llama: Any, go: Any) -> None:
    truth = greedy(llama, [5], 12)
    run = go(llama, "5", max_new_tokens=12, drafter=make("mix", truth, 4))
    assert run.tokens.all_ids == [5, *truth]
    assert len(run.drafts)
    check_run(llama, run)


def test_last_row_is_the_state_of_the_last_token(llama: Any, go: Any) -> None:
    truth = greedy(llama, PROMPT, 12)
    config = RunConfig(capture=CaptureConfig(last_row=True))
    for drafter in (None, make("mix", truth, 4)):
        run = go(llama, max_new_tokens=12, config=config, drafter=drafter)
        assert len(run) == 17
        assert list(run.tokens.ids) == [*PROMPT, *truth]
        assert run.tokens.next_ids[-1] == -1
        assert run.tokens.all_ids == [*PROMPT, *truth]
        assert np.isnan(run.scalars("logprob")[-1])
        check_run(llama, run)
