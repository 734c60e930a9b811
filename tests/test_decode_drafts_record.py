"""The drafts/ group: what was drafted, what became of it and why, and how far predicted states were from the truth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
import zarr
from decode_helpers import FLOAT, PROMPT, UNCLOCKED, bundle_folder, settings
from torch import nn
from transformers import DynamicCache

from sotscope.decode.contracts import Context, Drafter, Proposal
from sotscope.errors import StoreError
from sotscope.recorder import record, recording
from sotscope.store.reader import Run, open_run
from sotscope.testing.drafters import anti, greedy, oracle
from sotscope.testing.oracle import check_run
from sotscope.testing.tiny import tiny

COUNT = 24


class Script(Drafter):
    """Proposes blocks of tokens one after the other, with probabilities and entropies of its own."""

    mode = "sot"
    window = 8

    def __init__(self, blocks: Sequence[Sequence[int]]) -> None:
        self._blocks = iter(blocks)

    def propose(self, context: Context, window: int) -> Proposal:
        ids = list(next(self._blocks, ()))[:window]
        slots = range(len(ids))
        return Proposal(ids, [0.9 - 0.1 * i for i in slots], [0.5 + i for i in slots])


def test_every_field_of_a_draft(llama: Any, go: Any) -> None:
    truth = greedy(llama, PROMPT, 8)
    off = [(token + 1) % 97 for token in truth]
    run = go(llama, max_new_tokens=8, drafter=Script([[truth[0], off[1], truth[2]], [off[2]], [], truth[4:6]]))
    assert run.tokens.all_ids == [*PROMPT, *truth]
    columns = ["step", "slot", "target", "token", "accepted", "reason"]
    assert run.drafts[columns].values.tolist() == [
        [1, 0, 5, truth[0], True, "accepted"],
        [1, 1, 6, off[1], False, "later_slot_miss"],
        [1, 2, 7, truth[2], False, "after_miss"],
        [2, 0, 7, off[2], False, "first_slot_miss"],
        [4, 0, 9, truth[4], True, "accepted"],
        [4, 1, 10, truth[5], True, "accepted"],
    ]
    assert run.drafts["probability"].tolist() == pytest.approx([0.9, 0.8, 0.7, 0.9, 0.9, 0.8])
    assert run.drafts["entropy"].tolist() == pytest.approx([0.5, 1.5, 2.5, 0.5, 0.5, 1.5])
    assert run.drafts["cosine"].isna().all(), "nothing was predicted but tokens"
    with pytest.raises(StoreError, match="no predicted states"):
        _ = run.predicted


def test_a_near_tie_is_called_one(go: Any) -> None:
    model = tiny("llama", vocab_size=48)
    head = model.lm_head.weight.data[:24]
    model.lm_head.weight = nn.Parameter(torch.cat([head, head]))  # token i and token i + 24 tie, always
    truth = greedy(model, PROMPT[:3], 6)
    twins = [(token + 24) % 48 for token in truth]
    run = go(model, "5 17 3", max_new_tokens=6, drafter=oracle(twins, 2))
    assert run.tokens.all_ids[3:] == truth
    first = run.drafts[run.drafts["slot"] == 0]
    assert len(first)
    assert set(first["reason"]) == {"near_tie"}


class Ban:
    """A processor that forbids one token."""

    def __init__(self, token: int) -> None:
        self.token = token

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[0, self.token] = -float("inf")
        return scores


def test_a_draft_that_only_a_processor_forbids(llama: Any, go: Any) -> None:
    truth = greedy(llama, PROMPT, 1)
    run = go(llama, max_new_tokens=4, drafter=Script([truth]), processors=[Ban(truth[0])])
    assert run.tokens.all_ids[5] != truth[0]
    assert run.drafts["reason"].tolist() == ["processor"]


def test_drafts_behind_the_end_of_the_text(llama: Any, go: Any) -> None:
    truth = greedy(llama, PROMPT, 8)
    end = next(i for i in range(2, 8) if truth[i] not in truth[:i])
    run = go(llama, max_new_tokens=8, drafter=Script([truth]), eos_token_id=[truth[end]])
    assert run.drafts["reason"].tolist() == ["accepted"] * (end + 1) + ["after_end"] * (7 - end - 1)


def test_what_a_lossy_policy_believed(llama: Any, go: Any) -> None:
    truth = greedy(llama, PROMPT, 1)
    run = go(llama, max_new_tokens=3, drafter=Script([[truth[0], 0]]), policy="none")
    assert run.tokens.all_ids[5:7] == [truth[0], 0]
    assert run.drafts["reason"].tolist() == ["accepted", "believed"]
    assert run.drafts["accepted"].all()


# -- predicted states ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_folder(tiny("llama"), tmp_path_factory.mktemp("drafter"))


@pytest.fixture(scope="module")
def predicted(llama: Any, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """`sot` with a predictor that knows nothing, and its states recorded."""
    draft = {**FLOAT, "record_states": True}
    out = tmp_path_factory.mktemp("run") / "a.sot"
    given = settings(out, sites=("resid", "final"), mode="sot", max_new_tokens=COUNT, drafter=str(folder), draft=draft)
    return record(llama, config=given)


def test_errors_of_predicted_states_are_those_that_numpy_finds(predicted: Run) -> None:
    drafts, states, true = predicted.drafts, predicted.predicted, predicted.states("final")
    rows = predicted.steps.set_index("step")["rows"]
    assert states.shape == (len(drafts), 32)
    compared = 0
    for number, draft in enumerate(drafts.itertuples()):
        guess = states[number]
        assert np.isfinite(guess).all()
        if draft.slot >= rows[draft.step]:  # its row was not committed: there is no truth to compare with
            assert np.isnan(draft.cosine)
            assert np.isnan(draft.relative_error)
            continue
        truth = true[draft.target - 1]  # the row that chose the token at the target position
        cosine = guess @ truth / np.linalg.norm(guess) / np.linalg.norm(truth)
        assert draft.cosine == pytest.approx(cosine, abs=1e-5)
        assert draft.relative_error == pytest.approx(np.linalg.norm(guess - truth) / np.linalg.norm(truth), rel=1e-4)
        assert draft.relative_error > 0.01, "a predictor that knows nothing cannot be right"
        compared += 1
    assert 0 < compared < len(drafts)


def test_predicted_tokens_are_read_from_the_predicted_states(predicted: Run, llama: Any, folder: Path) -> None:
    drafts, states = predicted.drafts, predicted.predicted
    logits = states @ llama.lm_head.weight.detach().numpy().T
    words = set(greedy(llama, PROMPT, 40))
    for number, draft in enumerate(drafts.itertuples()):
        said = set(predicted.tokens.all_ids[: draft.target - draft.slot])
        known = sorted(said | words)
        assert draft.token == known[int(logits[number, known].argmax())]


def test_plain_zarr_and_xarray_open_the_predicted_states(predicted: Run) -> None:
    store = predicted.path / "states.zarr"
    group: Any = zarr.open_group(str(store), mode="r")
    assert np.array_equal(group["drafts/state"][:], predicted.predicted, equal_nan=True)
    opened = xr.open_zarr(str(store), group="drafts", consolidated=False)
    assert np.array_equal(opened["state"].values, predicted.predicted, equal_nan=True)
    assert opened["token"].values.tolist() == predicted.drafts["token"].tolist()
    assert opened["target"].dims == (opened["state"].dims[0],)


def test_noise_that_is_predicted_is_neither_text_nor_row_nor_cache(
    predicted: Run, llama: Any, folder: Path, tmp_path: Path
) -> None:
    truth = greedy(llama, PROMPT, COUNT)
    assert predicted.tokens.all_ids == [*PROMPT, *truth]
    assert {"accepted", "first_slot_miss"} <= set(predicted.drafts["reason"])
    check_run(llama, predicted, tolerance=1e-5)
    given = settings(tmp_path / "b.sot", mode="sot", max_new_tokens=COUNT, drafter=str(folder))
    with recording(given, model=llama) as recorded:
        list(recorded.steps())
        cache = recorded.decoder.cached.cache
    again = open_run(recorded.path)
    assert again.drafts["token"].tolist() == predicted.drafts["token"].tolist(), "it must not depend on the record"
    fresh = DynamicCache(config=llama.config)
    with torch.inference_mode():
        llama(torch.tensor([[*PROMPT, *truth[:-1]]]), cache=fresh, use_cache=True)
    for ours, theirs in zip(cache.layers, fresh.layers, strict=True):
        assert torch.allclose(ours.keys, theirs.keys, atol=1e-5)
        assert torch.allclose(ours.values, theirs.values, atol=1e-5)


def test_a_word_the_drafter_cannot_say(llama: Any, folder: Path, tmp_path: Path) -> None:
    """Its vocabulary is the text of another prompt; of this one it knows only what has been said."""
    prompt = [7, 60, 22, 9]
    truth = greedy(llama, prompt, COUNT)
    words = set(greedy(llama, PROMPT, 40))
    given = settings(tmp_path / "a.sot", prompt="7 60 22 9", mode="sot", max_new_tokens=COUNT, drafter=str(folder))
    run = record(llama, config=given)
    assert run.tokens.all_ids == [*prompt, *truth]
    judged = run.drafts[~run.drafts["reason"].isin(["after_miss", "after_end", "accepted"])]
    unknown = [
        truth[draft.target - 4] not in words | set(prompt + truth[: draft.target - 4 - draft.slot])
        for draft in judged.itertuples()
    ]
    assert any(unknown)
    assert not all(unknown)
    assert [draft.reason == "outside_vocabulary" for draft in judged.itertuples()] == unknown


def test_a_run_that_drafts_nothing_has_no_predicted_states(llama: Any, go: Any) -> None:
    run = go(llama, max_new_tokens=8, drafter=anti(greedy(llama, PROMPT, 8), 3, 97), draft={"record_states": True},
             **UNCLOCKED)  # fmt: skip
    assert run.predicted.shape == (len(run.drafts), 32)
    assert np.isnan(run.predicted).all()
