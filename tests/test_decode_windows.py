"""Sliding windows and prefill in blocks: beyond the window, with rejected drafts, rows stay true."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sotscope.config import CaptureConfig, RunConfig
from sotscope.testing.drafters import anti, greedy, mix
from sotscope.testing.oracle import check_run
from sotscope.testing.tiny import tiny

LONG = [(7 * i + 5) % 97 for i in range(21)]
SLIDING = ["mistral-sliding", "gemma2", "gemma3"]


def words(ids: list[int]) -> str:
    return " ".join(map(str, ids))


@pytest.mark.parametrize("kind", ["plain", "anti", "mix"])
@pytest.mark.parametrize("length", [3, 8, 21])
@pytest.mark.parametrize("name", SLIDING)
def test_rows_are_true_beyond_the_window(name: str, length: int, kind: str, go: Any) -> None:
    model = tiny(name)  # a window of 8
    prompt = LONG[:length]
    truth = greedy(model, prompt, 20)
    drafter = {"plain": None, "anti": anti(truth, 5, 97), "mix": mix(truth, 5, 97)}[kind]
    run = go(model, words(prompt), sites=["resid", "final"], max_new_tokens=20, drafter=drafter)
    assert run.tokens.all_ids == [*prompt, *truth]
    check_run(model, run)


@pytest.mark.parametrize("block", [1, 5, 8])
@pytest.mark.parametrize("name", ["llama", "gpt2", *SLIDING])
def test_prefill_in_blocks_gives_the_rows_of_one_block(name: str, block: int, go: Any) -> None:
    model = tiny(name)
    whole = go(model, words(LONG), sites=["resid", "attn_out"], max_new_tokens=6)
    parts = go(model, words(LONG), sites=["resid", "attn_out"], max_new_tokens=6, prefill_block=block)
    assert parts.tokens.all_ids == whole.tokens.all_ids
    assert (parts.steps["reason"] == "prefill").sum() == -(-20 // block)
    for site in ("resid", "attn_out"):
        assert parts.states(site) == pytest.approx(whole.states(site), abs=1e-5)
    check_run(model, parts)


def test_a_small_ring_makes_smaller_blocks(go: Any) -> None:
    model = tiny("llama", max_position_embeddings=8192, intermediate_size=4096)
    config = RunConfig(capture=CaptureConfig(sites=["mlp_act"], ring_mb=8))
    run = go(model, words([i % 97 for i in range(300)]), config=config, max_new_tokens=1)
    rows = run.steps.loc[run.steps["reason"] == "prefill", "rows"]
    assert rows.sum() == 299
    assert rows.max() * 4 * 4096 * 4 <= 8 << 20
    check_run(model, run)


def test_prompt_logits_do_not_change_rows(llama: Any, go: Any) -> None:
    plain = go(llama, words(LONG), max_new_tokens=6)
    asked = go(llama, words(LONG), max_new_tokens=6, config=RunConfig(capture=CaptureConfig(prompt_logits=True)))
    assert np.array_equal(plain.states("resid"), asked.states("resid"))
    assert plain.tokens.all_ids == asked.tokens.all_ids
