"""What became of every drafted token, and why."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sotscope.decode.contracts import Drafter, Proposal
from sotscope.events import Draft

TIE = 8
"""How many units of the logits' resolution apart two tokens may be to count as a near-tie."""


@dataclass
class Verdicts:
    """What the accept rule made of a block: tokens to commit, how many of them are drafts, the slots where a lossy
    policy believed a draft, why the first refused one was refused, and what the tokens say."""

    tokens: list[int] = field(default_factory=list)
    accepted: int = 0
    believed: list[int] = field(default_factory=list)
    refused: str = ""
    text: str = ""


def drafts(
    proposal: Proposal,
    tokens: Sequence[int],
    accepted: int,
    first: int,
    believed: frozenset[int] = frozenset(),
    refused: str = "",
    truth: Tensor | None = None,
) -> Iterator[Draft]:
    """One Draft a slot of ``proposal``. ``first`` is the position the first token was drafted for.

    ``tokens`` were committed, ``accepted`` of them drafts; ``believed`` are slots where `ar` would have chosen another
    token, ``refused`` is why the first refused one was, ``truth [row, dim]`` the true states of committed rows.
    """
    cosine, error = _errors(proposal.states, truth)
    for slot, token in enumerate(proposal.ids):
        if slot < accepted:
            reason = "believed" if slot in believed else "accepted"
        elif slot >= len(tokens):
            # nobody looked at it: an earlier slot missed, or the sequence ended on an accepted token
            reason = "after_miss" if len(tokens) > accepted else "after_end"
        else:
            reason = refused or ("first_slot_miss" if slot == 0 else "later_slot_miss")
        yield Draft(
            slot=slot,
            target=first + slot,
            token=int(token),
            probability=float(proposal.probabilities[slot]) if len(proposal.probabilities) else math.nan,
            entropy=float(proposal.entropies[slot]) if len(proposal.entropies) else math.nan,
            reason=reason,
            cosine=cosine[slot] if slot < len(cosine) else math.nan,
            relative_error=error[slot] if slot < len(error) else math.nan,
        )


def why_refused(drafter: Drafter, draft: int, chosen: int, logits: Tensor, scores: Tensor) -> str:
    """Why ``draft`` was refused for ``chosen``, or "" where it was just a wrong guess.

    ``logits [vocab]`` are the model's own, ``scores [vocab]`` what the processors made of them.
    """
    if not drafter.knows(chosen):
        return "outside_vocabulary"
    if scores is not logits and int(logits.argmax()) == draft:
        return "processor"
    gap = float(scores[chosen] - scores[draft])
    resolution = torch.finfo(logits.dtype).eps * max(1.0, float(logits.abs().max()))
    return "near_tie" if 0 <= gap <= TIE * resolution else ""


def _errors(predicted: Tensor | None, truth: Tensor | None) -> tuple[list[float], list[float]]:
    """Cosine and relative error [slot] of the predicted states whose rows were committed."""
    if predicted is None or truth is None:
        return [], []
    count = min(len(predicted), len(truth))
    guess, true = predicted[:count].float(), truth[:count].float()
    cosine = torch.nn.functional.cosine_similarity(guess, true, dim=-1)
    error = (guess - true).norm(dim=-1) / true.norm(dim=-1).clamp(min=1e-12)
    return cosine.tolist(), error.tolist()
