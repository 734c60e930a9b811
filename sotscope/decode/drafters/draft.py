"""`draft`: a smaller model of the user's guesses, the big one decides (Leviathan et al. 2023, arXiv 2211.17192)."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from sotscope.decode.accept import probabilities
from sotscope.decode.cache import CachedModel, refusal
from sotscope.decode.contracts import Context, Drafter, Proposal, Setup
from sotscope.errors import DecodeError


class DraftModel(Drafter):
    """Decodes ahead with a second model over the same vocabulary; its cache is rolled back to what was committed.

    Raises DecodeError for a model whose cache cannot be rolled back.
    """

    mode = "draft"

    def __init__(self, model: Any, window: int = 5) -> None:
        self.window = window
        self._cached = CachedModel(model)
        self._fed: list[int] = []

    def propose(self, context: Context, window: int) -> Proposal:
        if window < 1:
            return Proposal()
        logits = self._catch_up(context.ids)
        ids: list[int] = []
        sure: list[float] = []
        entropies: list[float] = []
        full: list[np.ndarray[Any, Any]] = []
        while True:
            heat = context.temperature if context.draw is not None else 1.0
            p = probabilities(logits.float() / heat)
            token = int(p.argmax())
            if context.draw is not None:
                u = context.draw(len(context.ids) + len(ids))
                token = min(int(np.searchsorted(np.cumsum(p), u, side="right")), int(np.flatnonzero(p)[-1]))
                full.append(p.astype(np.float32))
            ids.append(token)
            sure.append(float(p[token]))
            entropies.append(float(-(p * np.log(np.maximum(p, 1e-30))).sum()))
            if len(ids) >= window:
                return Proposal(ids, sure, entropies, np.stack(full) if full else None)
            logits = self._feed([token])

    def _catch_up(self, ids: list[int]) -> Tensor:
        """Logits [vocab] after ``ids``; only what the cache does not hold already is fed."""
        same = next((i for i, (a, b) in enumerate(zip(self._fed, ids, strict=False)) if a != b), None)
        same = min(len(self._fed), len(ids)) if same is None else same
        same = min(same, len(ids) - 1)  # the logits come from feeding the last one
        if same < len(self._fed):
            if not self._cached.croppable:
                raise DecodeError(refusal(self._cached.model))
            self._cached.keep(len(self._fed) - same)
            self._fed = self._fed[:same]
        return self._feed(ids[same:])

    def _feed(self, ids: list[int]) -> Tensor:
        logits = self._cached.forward(ids, all_logits=False)[-1]
        self._cached.keep(0)
        self._fed += ids
        return logits


def make(setup: Setup) -> DraftModel:
    """Raises DecodeError without --drafter, or for a model that speaks another vocabulary."""
    name = setup.settings.drafter
    if name is None:
        raise DecodeError("mode draft needs a smaller model: --drafter MODEL.")
    model, tokenizer = setup.load(name)
    ours = setup.tokenizer.get_vocab() if setup.tokenizer is not None else None
    theirs = tokenizer.get_vocab() if tokenizer is not None else None
    sizes = [int(m.get_input_embeddings().weight.shape[0]) for m in (setup.model, model)]
    if ours != theirs or (ours is None and sizes[0] != sizes[1]):
        raise DecodeError(
            f"{name} does not share the tokenizer of {setup.name or 'this model'}; it cannot draft for it."
        )
    return DraftModel(model)
