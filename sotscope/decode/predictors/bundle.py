"""A trained drafter on disk: a folder with fp16 ``model.safetensors`` and ``card.json``.

The weights hold the predictor and the ids of the draft vocabulary; embeddings and head are the base model's own, so
they are not copied. The card says what it is (shapes, base, its fingerprint), how it was made and what it reached.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from sotscope.catalog import PREDICTORS
from sotscope.decode.predictors.contracts import Predictor, PredictorConfig
from sotscope.errors import DecodeError

WEIGHTS = "model.safetensors"
CARD = "card.json"
_VOCABULARY = "vocabulary"


@dataclass
class Bundle:
    """A predictor with the ids of its draft vocabulary [word], and its card."""

    predictor: Predictor
    vocabulary: Tensor
    card: dict[str, Any] = field(default_factory=dict)

    @property
    def fingerprints(self) -> list[str]:
        """Of the base model it was trained for, in each of the types it may be loaded in."""
        base = self.card.get("base", {})
        return [str(base.get("fingerprint", "")), *map(str, base.get("also", []))]

    def save(self, folder: Path) -> None:
        """Write the folder; the weights in half precision."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: value.detach().to(torch.float16).contiguous() for name, value in _weights(self.predictor)}
        weights[_VOCABULARY] = self.vocabulary.to(torch.int32).contiguous()
        save_file(weights, str(folder / WEIGHTS))
        card = {**self.card, "predictor": self.predictor.config.as_dict()}
        (folder / CARD).write_text(json.dumps(card, indent=1) + "\n")


def _weights(predictor: Predictor) -> list[tuple[str, Tensor]]:
    return list(predictor.state_dict().items())


def make_predictor(config: PredictorConfig) -> Predictor:
    """The architecture of ``config.kind`` from the catalog, with fresh weights."""
    made: Predictor = PREDICTORS.get(config.kind)(config)
    return made


def load_bundle(folder: Path, *, fingerprint: str = "", base: str = "this model") -> Bundle:
    """Read a folder. Raises DecodeError for one that is not there, broken, foreign, or made for another base.

    ``fingerprint`` is that of the base model it is to serve, ``base`` what that is called; "" skips the comparison.
    """
    if not (folder / CARD).is_file() or not (folder / WEIGHTS).is_file():
        raise DecodeError(f"{folder} is not a trained drafter: it has no {CARD} and {WEIGHTS}; see `sotscope train`.")
    try:
        card = json.loads((folder / CARD).read_text())
        weights = load_file(str(folder / WEIGHTS))
        vocabulary = weights.pop(_VOCABULARY).long()
        bundle = Bundle(make_predictor(_config(card["predictor"])), vocabulary, card)
        made_for = card.get("base", {}).get("name", "another model")
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, OSError) as error:
        detail = " ".join(str(error).split())[:200]
        raise DecodeError(f"the drafter in {folder} cannot be read ({detail}); train or copy it again.") from error
    if fingerprint and fingerprint not in bundle.fingerprints:
        raise DecodeError(
            f"the drafter in {folder} was trained for {made_for} (weights {bundle.fingerprints[0]}), not for {base} "
            f"(weights {fingerprint}); train one: sotscope train {card.get('mode', 'sot')} --model {base}"
        )
    try:
        bundle.predictor.load_state_dict({name: value.float() for name, value in weights.items()})
    except RuntimeError as error:
        detail = " ".join(str(error).split())[:200]
        raise DecodeError(f"the weights in {folder} do not fit its card: {detail}") from error
    if not all(bool(value.isfinite().all()) for value in weights.values()):
        raise DecodeError(f"the weights in {folder} are not finite; train or copy the drafter again.")
    bundle.predictor.eval().requires_grad_(False)
    return bundle


def _config(data: Mapping[str, Any]) -> PredictorConfig:
    known = {name: data[name] for name in PredictorConfig.__dataclass_fields__ if name in data}
    return PredictorConfig(**{**known, "layers": tuple(known["layers"])})
