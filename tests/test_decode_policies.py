"""How drafts are judged: exact, typical, none. What is lossy says so; sampling keeps its seed or its distribution."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decode_helpers import FLOAT, PROMPT, UNCLOCKED, bundle_folder, trained
from numpy.typing import NDArray

from sotscope.decode.contracts import Context, Drafter, Proposal
from sotscope.decode.drafters.draft import DraftModel
from sotscope.decode.drafters.forced import Forced
from sotscope.decode.loop import Decoder
from sotscope.decode.sampling import Sampler
from sotscope.testing.drafters import anti, greedy, oracle
from sotscope.testing.oracle import check_run
from sotscope.testing.tiny import tiny

COUNT = 24
EPSILON, ALPHA = 0.2, 0.9


@torch.inference_mode()
def distributions(model: Any, ids: list[int]) -> NDArray[np.float64]:
    """softmax [position, vocab] of the token after each position, from one uncached forward."""
    logits: NDArray[np.float64] = model(torch.tensor([ids]), use_cache=False).logits[0].double().numpy()
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(p / p.sum(-1, keepdims=True))


class Ranks(Drafter):
    """Drafts the likeliest token, the fourth, the second, the sixty-first, and so on: some likely enough, some not."""

    mode = "other"
    window = 3
    order = (0, 3, 1, 60, 0, 1)

    def __init__(self, model: Any) -> None:
        self._model = model

    def propose(self, context: Context, window: int) -> Proposal:
        ids: list[int] = []
        for _ in range(window):
            p = distributions(self._model, context.ids + ids)[-1]
            rank = self.order[(len(context.ids) + len(ids)) % len(self.order)]
            ids.append(int(np.argsort(-p)[rank]))
        return Proposal(ids, [0.5] * len(ids), [1.0] * len(ids))


def test_typical_takes_what_the_model_finds_likely_for_its_uncertainty(llama: Any, go: Any) -> None:
    run = go(llama, sites=["resid", "final"], max_new_tokens=COUNT, drafter=Ranks(llama), policy="typical",
             typical={"epsilon": EPSILON, "alpha": ALPHA})  # fmt: skip
    ids = run.tokens.all_ids
    p = distributions(llama, ids)
    seen: set[str] = set()
    for draft in run.drafts.itertuples():
        if draft.reason in ("after_miss", "after_end"):
            continue
        here = p[draft.target - 1]
        entropy = -(here * np.log(here)).sum()
        best = int(here.argmax())
        likely = here[draft.token] > min(EPSILON, ALPHA * math.exp(-entropy))
        assert draft.accepted == (likely or draft.token == best)
        assert ids[draft.target] == (draft.token if draft.accepted else best)
        assert (draft.reason == "believed") == (draft.accepted and draft.token != best)
        seen.add(draft.reason)
    assert {"accepted", "believed"} < seen
    check_run(llama, run, tolerance=1e-5)


@pytest.mark.parametrize("policy", ["typical", "none"])
def test_a_lossy_run_says_so_and_counts_what_ar_would_not_have_chosen(policy: str, llama: Any, go: Any) -> None:
    run = go(llama, max_new_tokens=COUNT, drafter=Ranks(llama), policy=policy)
    config, outcome = run.events("config")[0], run.info()["outcome"]
    assert (config["policy"], config["lossy"]) == (outcome["policy"], outcome["lossy"]) == (policy, True)
    ids = run.tokens.all_ids
    chosen = distributions(llama, ids[:-1]).argmax(-1)[4:]  # what ar would have chosen after the same text
    assert outcome["believed"] == (chosen != ids[5:]).sum() > 0
    assert (run.drafts["reason"] == "believed").sum() == outcome["believed"]


def test_none_believes_every_draft(llama: Any, go: Any) -> None:
    wrong = anti(greedy(llama, PROMPT, 9), 2, 97)
    run = go(llama, max_new_tokens=9, drafter=wrong, policy="none")
    ids = run.tokens.all_ids
    assert run.drafts["accepted"].all()
    assert [ids[draft.target] for draft in run.drafts.itertuples()] == run.drafts["token"].tolist()
    assert run.steps["rows"].tolist()[1:] == [3, 3, 3]  # two believed, one the model's own
    for last in (7, 10, 13):
        assert ids[last] == greedy(llama, ids[:last], 1)[0]


@pytest.mark.parametrize("kind", ["exact", "plain", "forced"])
def test_what_is_not_lossy_does_not_say_so(kind: str, llama: Any, go: Any) -> None:
    truth = greedy(llama, PROMPT, 8)
    asked = {
        "exact": {"drafter": anti(truth, 2, 97)},
        "plain": {"policy": "none"},  # nothing is drafted that could be believed
        "forced": {"drafter": Forced([9, 9, 9]), "policy": "typical"},
    }[kind]
    run = go(llama, max_new_tokens=8, **asked)
    outcome = run.info()["outcome"]
    assert (outcome["lossy"], outcome["believed"]) == (False, 0)
    assert run.events("config")[0]["lossy"] is False
    assert run.tokens.all_ids[5:] == ([9, 9, 9] if kind == "forced" else truth)


# -- sampling ----------------------------------------------------------------------------------------------------

HOT: dict[str, Any] = {"temperature": 1.3, "top_k": 0, "seed": 3, "max_new_tokens": COUNT, **UNCLOCKED}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_folder(tiny("llama"), tmp_path_factory.mktemp("drafter"))


def test_a_seed_says_what_is_drawn_whatever_is_drafted(llama: Any, go: Any, folder: Path) -> None:
    plain = go(llama, **HOT).tokens.all_ids
    assert plain[5:] != greedy(llama, PROMPT, COUNT)
    runs = {
        "sot": go(llama, None, config=trained(folder, **HOT)),
        "lookup": go(llama, mode="lookup", lookup={"shortest": 1}, **HOT),
        "oracle": go(llama, drafter=oracle(plain[5:], 4), **HOT),
        "anti": go(llama, drafter=anti(plain[5:], 4, 97), **HOT),
    }
    for name, run in runs.items():
        assert run.tokens.all_ids == plain, name
        assert len(run.drafts), name
    assert runs["oracle"].info()["outcome"]["tokens_per_forward"] > 4


def test_drawn_drafts_repeat_with_their_seed(llama: Any, go: Any, folder: Path) -> None:
    draft = {**FLOAT, "sample": True}
    first, again, other = (
        go(llama, None, config=trained(folder, **{**HOT, "draft": draft, "seed": seed})) for seed in (3, 3, 4)
    )
    assert first.tokens.all_ids == again.tokens.all_ids != other.tokens.all_ids
    assert first.drafts["token"].tolist() == again.drafts["token"].tolist()
    assert {True, False} == set(first.drafts["accepted"])
    check_run(llama, first)


def test_drawn_drafts_of_the_model_itself_are_all_taken(llama: Any, go: Any) -> None:
    """Where the drafter's distribution is the model's own there is nothing to reject."""
    draft = {**FLOAT, "sample": True}
    run = go(llama, drafter=DraftModel(llama, 3), **{**HOT, "draft": draft})
    assert run.drafts["accepted"].all()
    assert run.info()["outcome"]["tokens_per_forward"] == pytest.approx(4, abs=0.1)


def test_drawn_drafts_of_another_model_leave_the_models_distribution() -> None:
    model, other = (tiny("llama", vocab_size=6, num_hidden_layers=2, seed=seed) for seed in (0, 1))
    first, then = (
        distributions(model, [1, 2, 3])[-1],
        np.stack([distributions(model, [1, 2, 3, t])[-1] for t in range(6)]),
    )
    wrong = distributions(other, [1, 2, 3])[-1]
    assert np.abs(first - wrong).max() > 0.2, "the two hardly differ"
    trials = 400
    found = np.array([_drawn(model, other, seed) for seed in range(trials)])
    for position, expected in enumerate((first, first @ then)):
        frequency = np.bincount(found[:, position], minlength=6) / trials
        spread = np.sqrt(expected * (1 - expected) / trials)
        assert (np.abs(frequency - expected) < 3 * spread + 1e-3).all(), (position, frequency, expected)


class _Silent:
    """A sink that listens to nothing."""

    def on_step(self, step: Any) -> None: ...

    def on_alarm(self, alarm: Any) -> None:
        raise AssertionError(alarm)

    def on_command(self, command: Any) -> None: ...


def _drawn(model: Any, other: Any, seed: int) -> list[int]:
    sampler = Sampler(model, 3, overrides={"do_sample": True, "top_k": 0})
    decoder = Decoder(
        model, DraftModel(other, 1), sampler, sink=_Silent(), seed=seed, max_new_tokens=2, draw_drafts=True
    )
    return [token for step in decoder.run([1, 2, 3]) if step.mode != "prompt" for token in step.next_ids]
