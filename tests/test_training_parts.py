"""The parts of training, each against a slow and simple way of saying the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sotscope.decode.predictors.contracts import PredictorConfig
from sotscope.decode.predictors.gru import Gru
from sotscope.errors import TrainingError
from sotscope.models.load import Loaded
from sotscope.testing.oracle import uncached
from sotscope.testing.tiny import tiny
from sotscope.training.batches import batches_per_epoch, epoch, load_batch
from sotscope.training.corpus import Sample, own_text, read_corpus, write_corpus
from sotscope.training.features import collect, open_features
from sotscope.training.fit import Basis, FitSettings, evaluate, fit
from sotscope.training.generate import continue_batch
from sotscope.training.loss import HeadLoss


@pytest.fixture(scope="module")
def base() -> Loaded:
    return Loaded(tiny("llama"), None, "tiny", "in memory")


@pytest.fixture(scope="module")
def samples(base: Loaded) -> list[Sample]:
    chance = np.random.default_rng(0)
    prompts = [chance.integers(3, 97, size=chance.integers(3, 9)).tolist() for _ in range(24)]
    answers = continue_batch(base.model, prompts, 16, frozenset())
    return [
        Sample("chat", p, a, "test" if i % 6 == 0 else "train")
        for i, (p, a) in enumerate(zip(prompts, answers, strict=True))
    ]


def test_batched_text_equals_what_each_prompt_gives_alone(base: Loaded) -> None:
    prompts = [[5, 17, 3], [88, 41, 7, 9, 60, 2], [4]]
    together = continue_batch(base.model, prompts, 12, frozenset())
    assert together == [continue_batch(base.model, [p], 12, frozenset())[0] for p in prompts]


@pytest.mark.parametrize("seed", range(12))
def test_text_of_its_own_has_something_greedy_however_little_it_is(base: Loaded, seed: int) -> None:
    """Only greedy samples are held out: a seed whose every batch was drawn could not be trained on."""
    assert any(sample.greedy for sample in own_text(base, 4, seed=seed, new_tokens=4))


def test_a_row_that_ended_leaves_the_others_as_they_are(base: Loaded) -> None:
    prompts = [[5, 17, 3], [88, 41, 7, 9, 60, 2], [4]]
    plain = continue_batch(base.model, prompts, 12, frozenset())
    stop = plain[1][3]
    ended = continue_batch(base.model, prompts, 12, frozenset([stop]))
    assert ended == [answer[: answer.index(stop) + 1] if stop in answer else answer for answer in plain]


def test_features_are_the_states_of_an_uncached_forward(base: Loaded, samples: list[Sample], tmp_path: Path) -> None:
    features = collect(base, samples, [1, 2], tmp_path)
    for i in (0, 7, 23):
        truth = uncached(base.model, samples[i].ids, ["resid", "final"])
        rows = features.states[features.rows(i)].float().numpy()
        for slot, layer in enumerate((1, 2)):
            assert rows[:, slot] == pytest.approx(truth["resid"][:, layer], rel=0.01, abs=0.02)
        assert rows[:, -1] == pytest.approx(truth["final"], rel=0.01, abs=0.02)
        assert features.ids[features.rows(i)].tolist() == samples[i].ids


def test_half_written_features_are_not_opened(base: Loaded, samples: list[Sample], tmp_path: Path) -> None:
    collect(base, samples, [1], tmp_path)
    (tmp_path / "features.json").unlink()
    with pytest.raises(TrainingError, match="no complete features"):
        open_features(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_loss_in_pieces_has_the_gradient_of_the_plain_one(monkeypatch: pytest.MonkeyPatch, share: float) -> None:
    monkeypatch.setattr("sotscope.training.loss.PIECE", 5)
    torch.manual_seed(0)
    head, truth = torch.randn(40, 8), torch.randn(13, 8)
    target = torch.randint(0, 40, (13,))
    target[3] = -1
    weight = torch.rand(13)
    ours = torch.randn(13, 8, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    HeadLoss.apply(ours, truth, target, weight, head, share).backward()
    log_p = torch.log_softmax(theirs @ head.T, -1)
    goal = torch.softmax(truth @ head.T, -1)
    known = target >= 0
    mixed = torch.where(known[:, None], share * goal, goal if share else 0 * goal)
    mixed[known.nonzero()[:, 0], target[known]] += 1 - share
    (-(mixed * log_p).sum(-1) * weight).sum().backward()
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-5)  # type: ignore[arg-type]


def test_an_epoch_has_every_sample_once(base: Loaded, samples: list[Sample], tmp_path: Path) -> None:
    features = collect(base, samples, [1], tmp_path)
    chosen = np.flatnonzero(~features.test)
    whole = list(epoch(features, chosen, 60, 3, seed=1, alone=False))
    # of a sample, the rows that are wanted of the first slot say how long its answer is
    answers = [int(n) for batch in whole for n in batch.wanted[:, :, 0].sum(1)]
    assert sorted(answers) == sorted(len(samples[i].new_ids) for i in chosen)
    assert len(whole) == batches_per_epoch(features, chosen, 60, alone=False)


def test_loose_rows_have_the_targets_that_whole_samples_have(
    base: Loaded, samples: list[Sample], tmp_path: Path
) -> None:
    features = collect(base, samples, [1], tmp_path)
    chosen = np.flatnonzero(~features.test)

    def facts(alone: bool) -> set[tuple[object, ...]]:
        out = set()
        for batch in epoch(features, chosen, 50, 3, seed=2, alone=alone):
            for sample, row in batch.wanted.any(2).nonzero().tolist():
                n = int(batch.wanted[sample, row].sum())
                state = tuple(batch.states[sample, row].float().flatten().tolist())
                truth = tuple(batch.truth[sample, row, :n].float().flatten().tolist())
                fed, target = batch.fed[sample, row, :n].tolist(), batch.target[sample, row, :n].tolist()
                out.add((state, truth, *fed, *target))
        return out

    assert facts(alone=True) == facts(alone=False)


def _basis(base: Loaded, words: list[int]) -> Basis:
    weight = base.model.get_output_embeddings().weight.detach()
    vocabulary = torch.tensor(words)
    return Basis(base.model.get_input_embeddings().weight.detach().float(), weight[vocabulary], vocabulary)


def _predictor() -> Gru:
    torch.manual_seed(1)
    return Gru(PredictorConfig("gru", 32, (1, 2), slots=3, inner=24))


def test_targets_are_the_rows_that_chose_the_answer(base: Loaded, samples: list[Sample], tmp_path: Path) -> None:
    features = collect(base, samples, [1], tmp_path)
    wanted = load_batch(features, [2, 3], 3).wanted[0]
    prompt, length = len(samples[2].prompt_ids), len(samples[2].ids)
    seen = {(row + 1 + slot) for row, slot in wanted.nonzero().tolist()}
    assert min(seen) == prompt - 1
    assert max(seen) == length - 2  # the row that chose the last token


def test_fitting_learns_repeats_exactly_and_can_be_resumed(base: Loaded, samples: list[Sample], tmp_path: Path) -> None:
    features = collect(base, samples, [1, 2], tmp_path)
    basis = _basis(base, list(range(97)))
    settings = FitSettings(epochs=12, rows=120, lr=5e-3)
    saved: list[tuple[int, Any, Any]] = []

    def keep(step: int, optimizer: torch.optim.Optimizer) -> None:
        weights = {k: v.clone() for k, v in predictor.state_dict().items()}
        saved.append((step, weights, _copy(optimizer.state_dict())))

    predictor = _predictor()
    reports = list(fit(predictor, features, basis, settings, on_epoch=keep))
    assert reports[-1].loss < 0.7 * reports[0].loss
    again = _predictor()
    list(fit(again, features, basis, settings))
    resumed = _predictor()
    step, weights, optimizer = saved[5]
    resumed.load_state_dict(weights)
    list(fit(resumed, features, basis, settings, start_step=step, optimizer_state=optimizer))
    for name, value in predictor.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
        assert torch.allclose(value, resumed.state_dict()[name], atol=1e-6)


def _copy(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return state.clone()
    if isinstance(state, dict):
        return {key: _copy(value) for key, value in state.items()}
    return [_copy(value) for value in state] if isinstance(state, list) else state


def test_tokens_a_forward_are_those_of_jumping_through_the_samples(
    base: Loaded, samples: list[Sample], tmp_path: Path
) -> None:
    features = collect(base, samples, [1, 2], tmp_path)
    basis = _basis(base, list(range(2, 97)))
    predictor = _predictor()
    list(fit(predictor, features, basis, FitSettings(epochs=10, rows=200, lr=5e-3)))
    report = evaluate(predictor, features, basis, 0.0, 0.0, 0.0)
    tokens = steps = 0
    for i in np.flatnonzero(features.test):
        ids, rows = samples[i].ids, features.states[features.rows(i)]
        at = len(samples[i].prompt_ids)  # the first token of the answer is there; what follows is drafted
        while at < len(ids) - 1:
            right = 0
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                state, carry = predictor.first(predictor.absorb(None, rows[at - 1 : at], basis.embed[ids[at : at + 1]]))
                while right < 3 and at + 1 + right < len(ids):
                    word = int((state.to(basis.head.dtype) @ basis.head.T).argmax())
                    if int(basis.vocabulary[word]) != ids[at + 1 + right]:
                        break
                    right += 1
                    if right < 3:
                        state, carry = predictor.then(carry, basis.embed[ids[at + right]])
            tokens += right + 1
            steps += 1
            at += right + 1
    assert report.tokens_per_forward["all"] == pytest.approx(tokens / steps, rel=0.03)  # the sums are in bfloat16


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"kind": "chat"', "line 2"),
        ('{"kind": "chat", "prompt_ids": ["a"], "new_ids": [1]}', "lists of token ids"),
        ('{"kind": "chat", "prompt_ids": [], "new_ids": [1]}', "not empty"),
        ('{"kind": "chat", "new_ids": [1]}', "prompt_ids"),
    ],
)
def test_a_wrong_line_of_a_corpus_is_named(tmp_path: Path, line: str, why: str) -> None:
    file = tmp_path / "c.jsonl"
    write_corpus(file, [Sample("chat", [1], [2])])
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(TrainingError, match=why):
        read_corpus(file)
