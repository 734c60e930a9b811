"""`lookup`, `combine` and `draft`: drafters that need no training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from decode_helpers import PROMPT, UNCLOCKED, trained, words
from hypothesis import given
from hypothesis import strategies as st
from transformers import DynamicCache

from sotscope.config import DecodeConfig
from sotscope.decode.contracts import Context, Proposal, Setup
from sotscope.decode.drafters import combine, draft
from sotscope.decode.drafters.combine import Combine
from sotscope.decode.drafters.draft import DraftModel
from sotscope.decode.drafters.lookup import Lookup
from sotscope.errors import DecodeError
from sotscope.testing.bundles import tiny_bundle
from sotscope.testing.drafters import Scripted, greedy, mix, oracle
from sotscope.testing.oracle import check_run
from sotscope.testing.tiny import tiny
from sotscope.testing.tokenizers import byte_tokenizer, metaspace_tokenizer


def context(ids: list[int]) -> Context:
    return Context(ids, 1, 100, 1 << 30)


def brute(ids: list[int], window: int, longest: int, shortest: int) -> list[int]:
    """What followed the longest n-gram at the end where it stood last before."""
    for n in range(min(longest, len(ids) - 1), shortest - 1, -1):
        for end in range(len(ids) - 1, n - 1, -1):
            if ids[end - n : end] == ids[-n:]:
                return ids[end : end + window]
    return []


TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=30)


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9), min_size=1, max_size=6), TEXTS,
       st.integers(0, 5), st.integers(1, 5), st.integers(1, 3))  # fmt: skip
def test_lookup_finds_what_a_search_of_the_whole_text_finds(
    growth: list[list[int]], other: list[int], window: int, longest: int, shortest: int
) -> None:
    longest = max(longest, shortest)
    lookup = Lookup(window=10, longest=longest, shortest=shortest)
    text = context([])
    for piece in growth:  # the text grows, as it does while decoding
        text.ids.extend(piece)
        assert list(lookup.propose(text, window).ids) == (brute(text.ids, window, longest, shortest) if window else [])
    again = context(other)  # and another one begins
    assert list(lookup.propose(again, window).ids) == (brute(other, window, longest, shortest) if window else [])


def test_lookup_trusts_long_matches_more_and_learns(llama: Any, go: Any) -> None:
    lookup = Lookup()
    long, short = ([7, 8, 9, 1, 2, 3, 4, 7, 8, 9, 1, 2], [3, 4, 9, 3, 4])
    certain = lookup.propose(context(long), 2).probabilities[0]
    assert certain > lookup.propose(context(short), 2).probabilities[0]
    prompt = [5, 17, 5, 17, 5, 17]
    truth = greedy(llama, prompt, 16)
    run = go(llama, words(prompt), mode="lookup", lookup={"shortest": 1}, max_new_tokens=16, **UNCLOCKED)
    assert run.tokens.all_ids == [*prompt, *truth]
    assert set(run.tokens.modes[5:]) == {"lookup"}
    said = run.drafts["probability"].tolist()
    matches = lookup.propose(context([*range(1, 7), 9, *range(1, 3)]), 4).probabilities
    assert list(matches) == sorted(matches), "a match grows with every draft that is right"
    assert matches[0] < matches[-1]
    assert len(set(said)) > 1
    assert all(0 < p < 1 for p in said)


@pytest.mark.parametrize("given", [{"window": 0}, {"longest": 1}, {"shortest": 0}])
def test_lengths_out_of_order_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(DecodeError, match="lookup needs"):
        Lookup(**{"window": 4, "longest": 3, "shortest": 2, **given})


# -- combine -----------------------------------------------------------------------------------------------------


class Says(Scripted):
    """One token with a probability, or nothing."""

    def __init__(self, mode: str, token: int | None, probability: float) -> None:
        super().__init__([], 4, lambda position, token: token, mode)
        self.said = Proposal() if token is None else Proposal([token], [probability])
        self.seen = 0

    def propose(self, context: Context, window: int) -> Proposal:
        return self.said

    def observe(self, context: Context, step: Any, truth: Any) -> None:
        self.seen += 1


@pytest.mark.parametrize(
    ("first", "second", "mode", "ids"),
    [
        ((5, 0.9), (6, 0.1), "lookup", [5]),
        ((5, 0.3), (6, 0.1), "sot", [6]),  # too unsure while another one can be asked
        ((None, 0.0), (6, 0.1), "sot", [6]),
        ((5, 0.3), (None, 0.0), "", []),
    ],
)
def test_combine_asks_in_order_until_one_is_sure(first: Any, second: Any, mode: str, ids: list[int]) -> None:
    drafters = [Says("lookup", *first), Says("sot", *second)]
    combined = Combine(drafters)
    proposal = combined.propose(context([1, 2]), 4)
    assert (proposal.mode, list(proposal.ids)) == (mode, ids)
    combined.observe(context([1, 2]), None, None)  # type: ignore[arg-type]
    assert [drafter.seen for drafter in drafters] == [int(drafter.mode == mode) for drafter in drafters]


def test_combine_writes_the_mode_of_whoever_proposed(llama: Any, go: Any) -> None:
    truth = greedy(llama, PROMPT, 16)

    class Early(Scripted):
        def propose(self, context: Context, window: int) -> Proposal:
            return super().propose(context, window) if context.new_tokens < 8 else Proposal()

    drafters = [Early(truth, 3, lambda position, token: token, "lookup"), mix(truth, 2, 97, "sot")]
    run = go(llama, max_new_tokens=16, drafter=Combine(drafters))
    assert run.tokens.all_ids == [*PROMPT, *truth]
    assert run.tokens.modes[4:12] == ["lookup"] * 8
    assert set(run.tokens.modes[12:]) <= {"sot", "combine"}
    assert "sot" in run.tokens.modes


def test_combine_of_lookup_and_a_trained_drafter(llama: Any, go: Any, tmp_path: Any) -> None:
    tiny_bundle(llama).save(tmp_path / "d")
    prompt = [5, 17, 5, 17, 5, 17]
    config = trained(tmp_path / "d", "combine", max_new_tokens=16)
    run = go(llama, words(prompt), config=config)
    assert run.tokens.all_ids == [*prompt, *greedy(llama, prompt, 16)]
    assert "sot" in run.tokens.modes
    check_run(llama, run)


@pytest.mark.parametrize("order", [["combine"], ["forced"]])
def test_combine_refuses_what_cannot_be_combined(order: list[str]) -> None:
    with pytest.raises(DecodeError, match="combine takes"):
        combine.make(Setup(None, None, DecodeConfig(combine=order)))
    with pytest.raises(DecodeError, match="at least one"):
        Combine([])


# -- a draft model -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral-sliding"])
def test_a_model_that_drafts_for_itself_is_always_right(name: str, go: Any) -> None:
    model = tiny(name)
    run = go(model, max_new_tokens=24, drafter=DraftModel(tiny(name), 3))
    assert run.tokens.all_ids == [*PROMPT, *greedy(model, PROMPT, 24)]
    assert run.drafts["accepted"].all()
    assert run.info()["outcome"]["tokens_per_forward"] == 4
    assert set(run.tokens.modes[4:]) == {"draft"}


def test_a_draft_models_cache_is_rolled_back_to_what_was_committed(llama: Any, go: Any) -> None:
    other = tiny("llama", seed=1)
    drafter = DraftModel(other, 3)
    run = go(llama, max_new_tokens=12, drafter=drafter)
    assert run.tokens.all_ids == [*PROMPT, *greedy(llama, PROMPT, 12)]
    assert (run.drafts["reason"] == "first_slot_miss").any()
    for made in run.drafts[run.drafts["slot"] == 0].itertuples():  # each is what that model says after the true text
        assert made.token == greedy(other, run.tokens.all_ids[: made.target], 1)[0]
    with torch.inference_mode():
        drafter.propose(context(run.tokens.all_ids), 1)
        fresh = DynamicCache(config=other.config)
        other(torch.tensor([run.tokens.all_ids]), cache=fresh, use_cache=True)
    for ours, theirs in zip(drafter._cached.cache.layers, fresh.layers, strict=True):
        assert torch.allclose(ours.keys, theirs.keys, atol=1e-5)
        assert torch.allclose(ours.values, theirs.values, atol=1e-5)


@pytest.mark.parametrize("fault", ["no name", "another tokenizer", "no tokenizer, another size", "recurrent"])
def test_a_model_that_cannot_draft_is_refused(fault: str, llama: Any, go: Any) -> None:
    ours = None if fault.startswith("no tokenizer") else byte_tokenizer()
    theirs = {"another tokenizer": metaspace_tokenizer(), "recurrent": ours}.get(fault)
    smaller = tiny("mamba") if fault == "recurrent" else tiny("llama", vocab_size=48)
    settings = DecodeConfig(drafter=None if fault == "no name" else "small")
    setup = Setup(llama, ours, settings, "llama", load=lambda name: (smaller, theirs))
    says = {"no name": "--drafter MODEL", "recurrent": "cannot be rolled back"}.get(
        fault, "does not share the tokenizer"
    )
    with pytest.raises(DecodeError, match=says):
        _draft_twice(setup)


@torch.inference_mode()
def _draft_twice(setup: Setup) -> None:
    drafter = draft.make(setup)
    drafter.propose(context([5, 17, 3]), 2)
    drafter.propose(context([5, 18, 3]), 2)


def test_an_oracle_behind_lookup_is_still_an_oracle(llama: Any, go: Any) -> None:
    truth = greedy(llama, PROMPT, 12)
    run = go(llama, max_new_tokens=12, drafter=Combine([Lookup(), oracle(truth, 4, "sot")]))
    assert run.tokens.all_ids == [*PROMPT, *truth]
    assert run.drafts["accepted"].all()
