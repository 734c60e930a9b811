"""Untrained predictors for tiny models: drafters of `sot` and `dmtd` that are almost always wrong, in no time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from sotscope.capture.plan import anatomy
from sotscope.decode.predictors.bundle import Bundle, make_predictor
from sotscope.decode.predictors.contracts import PredictorConfig
from sotscope.models.load import fingerprint


def tiny_config(model: Any, kind: str, slots: int = 4) -> PredictorConfig:
    """Shapes of a small predictor that fits ``model``; it looks at four rows where it looks back at all."""
    sizes = anatomy(model).geometry
    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", 4)
    return PredictorConfig(
        kind=kind,
        dim=sizes.hidden,
        layers=tuple(range(1, min(3, sizes.layers))),
        slots=slots,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", heads),
        head_dim=getattr(config, "head_dim", None) or sizes.hidden // heads,
        inner=2 * sizes.hidden,
        context_rows=4,
    )


def tiny_bundle(
    model: Any, kind: str = "attention", *, slots: int = 4, vocabulary: Iterable[int] | None = None, seed: int = 0
) -> Bundle:
    """An untrained predictor of ``kind`` for ``model``, with a card that names the base and its fingerprint.

    ``vocabulary``: the ids it can draft besides those of the context; all by default. Every weight is random, also
    those that an architecture sets to zero before training.
    """
    words = range(anatomy(model).geometry.vocab) if vocabulary is None else vocabulary
    with torch.random.fork_rng(devices=[]):  # the first weights are drawn from the global generator
        torch.manual_seed(seed)
        predictor = make_predictor(tiny_config(model, kind, slots)).eval().requires_grad_(False)
        for weight in predictor.parameters():
            weight.add_(0.2 * torch.randn(weight.shape))
    base = {"name": type(model).__name__, "fingerprint": fingerprint(model)}
    return Bundle(predictor, torch.tensor(sorted(set(words))), {"mode": "sot", "base": base})
