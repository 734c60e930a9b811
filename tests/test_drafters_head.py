"""The draft head reads tokens of a reduced vocabulary; the history keeps the last rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sotscope.config import DraftConfig
from sotscope.decode.contracts import Context
from sotscope.decode.drafters.states import StateDrafter
from sotscope.decode.history import History
from sotscope.decode.predictors.head import SPARE, DraftHead
from sotscope.testing.bundles import tiny_bundle

WEIGHT = torch.randn(1200, 8, generator=torch.Generator().manual_seed(0))
BIAS = torch.randn(1200, generator=torch.Generator().manual_seed(1))
WORDS = torch.tensor([0, 2, 7, 50])
STATES = torch.randn(3, 8, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("bias", [None, BIAS])
def test_its_logits_are_those_of_the_models_own_head(bias: Any) -> None:
    head = DraftHead(WEIGHT, WORDS, torch.float32, bias)
    head.add([9, 7, 1100, 9])
    full = STATES @ WEIGHT.T + (0 if bias is None else bias)
    assert head.words[: len(head)].tolist() == [0, 2, 7, 50, 9, 1100]
    assert torch.allclose(head.logits(STATES), full[:, head.words[: len(head)]], atol=1e-5)
    assert head.logits(STATES).dtype == torch.float32


def test_words_of_the_context_come_and_go_and_the_fixed_ones_stay() -> None:
    head = DraftHead(WEIGHT, WORDS, torch.float32)
    head.add([5, 2])
    assert all(token in head for token in (0, 2, 5, 7, 50))
    assert 6 not in head
    head.forget()
    assert 5 not in head
    assert all(token in head for token in (0, 2, 7, 50))
    assert len(head) == head.logits(STATES).shape[1] == 4
    head.add([6])
    assert head.words[: len(head)].tolist() == [0, 2, 7, 50, 6]


def test_a_context_of_too_many_words_fills_the_room_there_is() -> None:
    head = DraftHead(WEIGHT, WORDS, torch.float32)
    head.add(range(600))
    head.add(range(1200))
    assert len(head) == 4 + SPARE
    assert head.words.unique().numel() == len(head)
    assert 1199 not in head
    assert torch.allclose(head.logits(STATES), STATES @ WEIGHT[head.words].T, atol=1e-5)


def test_half_precision_keeps_logits_in_float32() -> None:
    head = DraftHead(WEIGHT, WORDS, torch.bfloat16)
    assert head.logits(STATES).dtype == torch.float32
    assert torch.allclose(head.logits(STATES), (STATES @ WEIGHT.T)[:, WORDS], atol=0.1)


@given(st.integers(0, 6), st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=12), st.data())
def test_history_is_a_list_of_the_last_rows(keep: int, blocks: list[tuple[int, bool]], data: Any) -> None:
    history = History(keep)
    kept: list[float] = []  # the model of it: every row since the last gap, by its number
    start = at = number = 0
    for size, gap in blocks:
        if gap:  # rows that do not follow the last ones
            at += 2
            start, kept = at, []
        rows = [float(number + i) for i in range(size)]
        number += size
        history.add(at, torch.tensor(rows)[:, None, None].expand(size, 2, 3))
        history.add(at + size + 9, torch.empty(0, 2, 3))  # nothing: not a gap
        kept += rows
        at += size
        assert history.end == at
        assert history.end - history.start >= min(keep, len(kept)), "it forgot a row that it was to keep"
        assert history.end - history.start < max(1, keep) + 4, "it keeps more than a step too many"
        assert history.start >= start
        pos = data.draw(st.integers(history.start, history.end))
        assert history.since(pos)[:, 0, 0].tolist() == kept[pos - start :]


def test_a_tiny_bundle_is_the_same_for_the_same_seed_whatever_was_drawn_before(llama: Any) -> None:
    first = tiny_bundle(llama, seed=3).predictor.state_dict()
    torch.rand(7)
    again, other = tiny_bundle(llama, seed=3).predictor.state_dict(), tiny_bundle(llama, seed=4).predictor.state_dict()
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert not all(torch.equal(value, other[name]) for name, value in first.items())


@pytest.mark.parametrize("kind", ["gru", "attention", "heads"])
def test_a_state_drafter_says_what_its_predictor_rolls_out_token_by_token(llama: Any, kind: str) -> None:
    ids = [5, 17, 3, 88, 41]
    bundle = tiny_bundle(llama, kind)
    states = torch.randn(4, 3, 32, generator=torch.Generator().manual_seed(5))
    context = Context(list(ids), len(ids), 9, 99, history=History(8, (1, 2)))
    assert context.history is not None
    context.history.add(0, states)
    drafter = StateDrafter("sot", llama, bundle, DraftConfig(dtype="float32", floor=0.0))
    with torch.inference_mode():  # as the decode loop does
        proposal = drafter.propose(context, 4)

    embed, head = llama.get_input_embeddings().weight, llama.get_output_embeddings().weight
    said: list[int] = []
    with torch.no_grad():
        for slot in range(4):  # the training path, anew for each slot, fed with the tokens so far
            fed = embed[torch.tensor([*ids[1:], *said])][None]
            state = bundle.predictor.rollout(states[None], fed, slot + 1)[0, -1, slot]
            said.append(int((head @ state).argmax()))
    assert list(proposal.ids) == said
