"""Logits processors that hold for some positions only: what a recovery asks of the next tokens.

They go by the length of the true prefix, so a text is the same whatever the width of a step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LogitsProcessor, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper

from sotscope.decode.accept import REMEDY, Draws


class For(LogitsProcessor):
    """``processor`` for the tokens at positions ``start`` to ``stop`` (without it)."""

    def __init__(self, processor: LogitsProcessor, start: int, stop: int) -> None:
        self.processor, self.start, self.stop = processor, start, stop

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.start <= input_ids.shape[1] < self.stop:
            scores = self.processor(input_ids, scores)
        return scores


class BanNgrams(LogitsProcessor):
    """No token may complete one of ``ngrams``. Where that leaves none, nothing is banned."""

    def __init__(self, ngrams: Sequence[Sequence[int]]) -> None:
        self._last: dict[tuple[int, ...], list[int]] = {}
        for ngram in ngrams:
            self._last.setdefault(tuple(ngram[:-1]), []).append(ngram[-1])
        self._sizes = sorted({len(ngram) for ngram in ngrams})

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        banned: list[int] = []
        for size in self._sizes:
            before = tuple(input_ids[0, input_ids.shape[1] - size + 1 :].tolist())
            banned += self._last.get(before, [])
        if not banned:
            return scores
        changed = scores.clone()
        changed[:, banned] = -torch.inf
        return changed if bool(changed.isfinite().any()) else scores


class Noise(LogitsProcessor):
    """Scores over ``temperature`` with Gumbel noise: their likeliest token is a draw from the distribution (Gumbel-max
    trick). The noise is a function of seed, sequence and position."""

    def __init__(self, temperature: float, seed: int, seq: int) -> None:
        self._temperature, self._seq = temperature, seq
        self._draws = Draws(seed)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        at = self._draws.uniform(self._seq, input_ids.shape[1], REMEDY)
        generator = torch.Generator().manual_seed(int(at * 2**53))
        uniform = torch.rand(scores.shape, generator=generator, dtype=torch.float64).clamp_(1e-12, 1 - 1e-12)
        gumbel = -torch.log(-torch.log(uniform))
        return scores / self._temperature + gumbel.to(scores)


def remedies(
    start: int,
    hold: int,
    *,
    ban: Sequence[Sequence[int]] = (),
    penalty: float = 1.0,
    temperature: float = 0.0,
    sampled: bool = False,
    seed: int = 0,
    seq: int = 0,
) -> list[For]:
    """Processors for the ``hold`` tokens from position ``start`` on. ``sampled``: tokens are drawn in any case."""
    found: list[LogitsProcessor] = []
    if penalty != 1.0:
        found.append(RepetitionPenaltyLogitsProcessor(penalty))
    if ban:
        found.append(BanNgrams(ban))
    if temperature > 0:
        found.append(TemperatureLogitsWarper(temperature) if sampled else Noise(temperature, seed, seq))
    return [For(processor, start, start + hold) for processor in found]
