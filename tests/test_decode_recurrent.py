"""A recurrent cache cannot be rolled back: plain and forced decoding work, drafts that may be refused do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sotscope.capture.plan import hook_counts
from sotscope.errors import DecodeError
from sotscope.testing.drafters import anti, greedy, oracle
from sotscope.testing.oracle import check_run
from sotscope.testing.tiny import tiny

PROMPT = [5, 17, 3, 88, 41]


@pytest.mark.parametrize("prompt", [[5], PROMPT, [(7 * i + 5) % 97 for i in range(21)]])
@pytest.mark.parametrize("name", ["mamba", "mamba2", "bamba"])  # bamba: attention as well, which counts positions
def test_plain_decoding_equals_generate_also_after_a_prompt_in_blocks(name: str, prompt: list[int], go: Any) -> None:
    model = tiny(name)
    run = go(model, " ".join(map(str, prompt)), sites=["all"], max_new_tokens=16, prefill_block=3)
    with torch.inference_mode():
        ids = torch.tensor([prompt])
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False)
    assert run.tokens.all_ids == expected[0].tolist()
    assert run.sites == ["embed", "resid", "final"]
    check_run(model, run)


@pytest.mark.parametrize("prompt", ["5", "5 17 3 88 41"])
@pytest.mark.parametrize("kind", [oracle, anti])
def test_drafts_that_may_be_refused_are_refused_by_name(kind: Any, prompt: str, go: Any) -> None:
    model = tiny("mamba")
    truth = greedy(model, [int(word) for word in prompt.split()], 8)
    drafter = oracle(truth, 4) if kind is oracle else anti(truth, 4, 97)
    with pytest.raises(DecodeError, match=r"mamba keeps a recurrent state that cannot be rolled back.*--mode ar"):
        go(model, prompt, max_new_tokens=8, drafter=drafter)
    assert not hook_counts(model)
