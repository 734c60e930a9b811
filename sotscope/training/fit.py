"""Fitting a predictor to cached features, and how many tokens a forward it would make."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sotscope.decode.predictors.contracts import Predictor
from sotscope.training.batches import Batch, batches_per_epoch, epoch, load_batch
from sotscope.training.features import Features
from sotscope.training.loss import HeadLoss


@dataclass(frozen=True)
class FitSettings:
    """How a predictor is fitted. ``minutes`` bounds the fit (0: ``epochs`` alone); both shape the learning rate.

    ``distill`` is the share of the model's own distribution in the target, ``dropout`` of what goes in, ``decay`` the
    weight decay: all three against learning the text by heart. ``slot_weight`` is what a slot counts against the one
    before, ``slot_share`` on how many of its rows it is trained, ``state_weight`` what the distance of the predicted
    state counts beside the word.
    """

    epochs: float = 6.0
    minutes: float = 0.0
    rows: int = 1024
    lr: float = 1e-3
    warmup: float = 0.03
    decay: float = 0.05
    dropout: float = 0.1
    slot_weight: float = 0.9
    slot_share: float = 0.7
    distill: float = 0.6
    state_weight: float = 0.1
    seed: int = 0


@dataclass
class Basis:
    """What predictor and base share: embeddings [vocab, dim], the head's rows [reduced, dim], and the map to them."""

    embed: Tensor
    head: Tensor
    vocabulary: Tensor
    index: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.index = torch.full((len(self.embed),), -1, dtype=torch.long)
        self.index[self.vocabulary] = torch.arange(len(self.vocabulary))


@dataclass(frozen=True)
class Report:
    """One epoch: mean loss, and on held-out samples tokens a forward by group and acceptance by slot."""

    epoch: float
    seconds: float
    loss: float
    tokens_per_forward: dict[str, float]
    acceptance: tuple[float, ...]


def fit(
    predictor: Predictor,
    features: Features,
    basis: Basis,
    settings: FitSettings,
    *,
    start_step: int = 0,
    optimizer_state: dict[str, Any] | None = None,
    on_step: Callable[[int, int, float], None] = lambda step, steps, loss: None,
    on_epoch: Callable[[int, torch.optim.Optimizer], None] = lambda step, optimizer: None,
) -> Iterator[Report]:
    """Fit on the train split; yields a report an epoch. Deterministic with ``settings.seed`` (without ``minutes``).

    ``on_step`` is told (step, expected steps, loss); ``on_epoch`` is where a caller saves a checkpoint.
    """
    train = np.flatnonzero(~features.test)
    optimizer = torch.optim.AdamW(
        predictor.parameters(), lr=settings.lr, betas=(0.9, 0.95), weight_decay=settings.decay
    )
    if optimizer_state:
        optimizer.load_state_dict(optimizer_state)
    per_epoch = batches_per_epoch(features, train, settings.rows, alone=predictor.alone)
    steps = max(1, round(per_epoch * settings.epochs))
    began = time.perf_counter()
    step = start_step
    number, slots = step // per_epoch, predictor.config.slots
    while step < steps:
        losses = []
        for batch in epoch(features, train, settings.rows, slots, settings.seed + number, alone=predictor.alone):
            spent = (time.perf_counter() - began) / 60
            done = max(step / steps, spent / settings.minutes if settings.minutes else 0.0)
            if done >= 1:
                break
            for group in optimizer.param_groups:
                group["lr"] = settings.lr * _rate(done, settings.warmup)
            chance = torch.Generator().manual_seed(settings.seed * 1_000_003 + step)
            torch.manual_seed(settings.seed * 1_000_003 + step)  # for dropout: a resumed fit goes on as it would have
            loss = train_step(predictor, batch, basis, settings, chance)
            torch.nn.utils.clip_grad_norm_(predictor.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss)
            step += 1
            on_step(step, steps, loss)
        number += 1
        if not losses:
            return
        on_epoch(step, optimizer)
        yield evaluate(
            predictor, features, basis, step / per_epoch, time.perf_counter() - began, float(np.mean(losses))
        )


def _rate(done: float, warmup: float) -> float:
    """Linear warm-up, then a cosine to a twentieth."""
    if done < warmup:
        return (done + 1e-3) / warmup
    return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (done - warmup) / (1 - warmup)))


def predict(
    predictor: Predictor, batch: Batch, basis: Basis, rows: Sequence[Tensor], dropout: float = 0.0
) -> list[Tensor]:
    """The predicted states [sample, n, dim] of the wanted rows of each slot. ``dropout`` blurs what goes in."""
    states, embeds = (torch.nn.functional.dropout(x, dropout) for x in (batch.states, basis.embed[batch.fed]))
    with torch.autocast("cpu", torch.bfloat16):
        return predictor.unroll(states, embeds, rows)


def some_rows(batch: Batch, slots: int, share: float, generator: torch.Generator) -> list[Tensor]:
    """Rows to train each slot on: all that have targets for the first, ``share`` of the slot before for each later one.

    Late slots are seldom reached, and cost as much as early ones.
    """
    rows = batch.wanted[:, :, 0].any(0).nonzero()[:, 0]
    out = [rows]
    for _ in range(1, slots):
        count = max(1, round(share * len(rows)))
        rows = rows[torch.randperm(len(rows), generator=generator)[:count].sort().values]
        out.append(rows)
    return out


def train_step(
    predictor: Predictor, batch: Batch, basis: Basis, settings: FitSettings, generator: torch.Generator
) -> float:
    """One backward pass; returns the mean loss a target."""
    rows = some_rows(batch, predictor.config.slots, settings.slot_share, generator)
    states, truths, targets, weights = [], [], [], []
    predicted = predict(predictor, batch, basis, rows, settings.dropout)
    for slot, (found, at) in enumerate(zip(predicted, rows, strict=True)):
        sample, row = batch.wanted[:, at, slot].nonzero(as_tuple=True)
        states.append(found[sample, row])
        truths.append(batch.truth[sample, at[row], slot])
        targets.append(basis.index[batch.target[sample, at[row], slot]])
        weights.append(torch.full((len(row),), settings.slot_weight**slot))
    state, truth, target, weight = torch.cat(states), torch.cat(truths), torch.cat(targets), torch.cat(weights)
    total = HeadLoss.apply(  # type: ignore[no-untyped-call]
        state, truth, target, weight, basis.head, settings.distill
    )
    if settings.state_weight:
        scale = truth.float().pow(2).mean(-1)
        error = (state.float() - truth.float()).pow(2).mean(-1) / scale
        total = total + settings.state_weight * (error * weight).sum()
    loss = total / weight.sum()
    loss.backward()
    return float(loss.detach())


@torch.no_grad()
def evaluate(
    predictor: Predictor, features: Features, basis: Basis, number: float, seconds: float, loss: float
) -> Report:
    """Tokens a forward on held-out greedy samples, by jumping through each as the decode loop would.

    With the true tokens fed back this is exact: up to the first miss they are the drafted ones.
    """
    slots = predictor.config.slots
    chosen = np.flatnonzero(features.test & features.greedy)
    made: dict[str, list[int]] = {}
    taken = np.zeros(slots)
    steps = 0
    for batch, samples in _test_batches(features, chosen, slots):
        right = _right(predictor, batch, basis, slots)
        for i, sample in enumerate(samples):
            span = features.rows(sample)
            lengths = _jump(right[i].numpy(), int(features.prompt[sample]), span.stop - span.start)
            group = made.setdefault(str(features.group[sample]), [0, 0])
            group[0] += sum(lengths) + len(lengths)
            group[1] += len(lengths)
            steps += len(lengths)
            for n in lengths:
                taken[:n] += 1
    groups = {name: round(a / b, 3) for name, (a, b) in sorted(made.items()) if b}
    both = [sum(v[0] for v in made.values()), sum(v[1] for v in made.values())]
    groups["all"] = round(both[0] / max(1, both[1]), 3)
    return Report(number, seconds, loss, groups, tuple(round(float(x), 3) for x in taken / max(1, steps)))


def _test_batches(features: Features, chosen: NDArray[np.int64], slots: int) -> Iterator[tuple[Batch, list[int]]]:
    for begin in range(0, len(chosen), 8):
        samples = [int(i) for i in chosen[begin : begin + 8]]
        yield load_batch(features, samples, slots), samples


def _right(predictor: Predictor, batch: Batch, basis: Basis, slots: int) -> Tensor:
    """[sample, row, slot]: whether the slot's likeliest word is the token that came."""
    count, rows = batch.states.shape[:2]
    predicted = predict(predictor, batch, basis, [torch.arange(rows)] * slots)
    right = torch.zeros(count, rows, slots, dtype=torch.bool)
    for slot in range(slots):
        best = (predicted[slot].to(basis.head.dtype) @ basis.head.T).argmax(-1)
        right[:, :, slot] = basis.vocabulary[best] == batch.target[:, :, slot]
    return right


def _jump(right: NDArray[np.bool_], prompt: int, length: int) -> list[int]:
    """How many drafts each step takes: from the row that chose the first token to the end of the sample."""
    row, out = prompt - 1, []
    while row < length - 2:
        miss = np.flatnonzero(~right[row])
        accepted = min(int(miss[0]) if len(miss) else right.shape[1], length - 2 - row)
        out.append(accepted)
        row += accepted + 1
    return out
