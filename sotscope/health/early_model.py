"""The file of an early-warning score: a few logistic regressions, whose they are, and what they are worth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from sotscope.errors import HealthError
from sotscope.health.baseline import health_folders
from sotscope.plain import first_error

FILE = "early.json"


TOKEN_NAMES = (
    "said2_32", "said4_32", "said8_32", "said2_128", "said4_128", "streak2", "streak4",
    "distinct_32", "distinct_64", "period_16", "period_32",
)  # fmt: skip
DOUBT_NAMES = ("entropy_16", "surprise_16", "entropy_64", "surprise_64", "sure_16")
_STATE_NAMES = ("back", "back_mean", "back_steady", "rank")


def feature_names(watched: int) -> list[str]:
    """All features for so many watched layers, in order.

    ``said4_32``: the share of the newest 32 tokens that completed an n-gram of 4 which was said before; ``streak4``:
    the logarithm of how many in a row did. ``distinct_64``: the share of different tokens. ``period_32``: the largest
    share of the newest 32 tokens that are what they were some number of tokens (1-128) before. ``entropy_16``: a mean
    over so many tokens, in nats; ``sure_16``: the share of them with an entropy below 0.1.

    Of watched layer 0, 1 ...: ``back0``, the largest cosine between the state and one of 4 to 128 tokens before, both
    without the mean direction of those before them; ``back_mean0``, its running mean; ``back_steady0``, the largest
    of the running means at one and the same distance; ``rank0``, the logarithm of the effective rank (participation
    ratio of the spectrum) of the last 32 states.
    """
    states = [f"{name}{place}" for place in range(watched) for name in _STATE_NAMES]
    return [*TOKEN_NAMES, *DOUBT_NAMES, *states]


class Score(BaseModel):
    """A logistic regression on some features, calibrated: probability = 1 / (1 + exp(-(bias + weights . features)))."""

    model_config = ConfigDict(extra="forbid")

    features: list[str]
    weights: list[float]
    bias: float


class EarlyModel(BaseModel):
    """The scores of one model: ``scores["all"]`` is the one that watches, the others have some of its features.

    ``layers`` are those whose states it reads. At ``threshold_rows`` one in twenty looks at healthy text is above, at
    ``threshold_texts`` one in twenty healthy texts ever is. ``fingerprint`` (and ``also``, others of the same weights)
    say whose it is; ``figures`` what came of it on prompts that it was not fitted to.
    """

    model_config = ConfigDict(extra="forbid")

    model: str
    fingerprint: str
    also: list[str] = []
    layers: list[int]
    scores: dict[str, Score]
    threshold_rows: float
    threshold_texts: float
    figures: dict[str, Any] = {}

    @model_validator(mode="after")
    def _known(self) -> EarlyModel:
        names = set(feature_names(len(self.layers)))
        if "all" not in self.scores:
            raise ValueError("there is no score called all")
        for name, score in self.scores.items():
            if not names.issuperset(score.features) or len(score.weights) != len(score.features):
                raise ValueError(f"score {name} has features that this version does not know, or other weights")
        return self

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.model_dump(), indent=1) + "\n")


def load_early(path: Path) -> EarlyModel:
    """Raises HealthError in one line for a file that cannot be read or is no early-warning score."""
    try:
        return EarlyModel.model_validate_json(path.read_text())
    except OSError as error:
        raise HealthError(f"cannot read {path}: {error.strerror}.") from error
    except (ValidationError, UnicodeDecodeError) as error:
        why = first_error(error) if isinstance(error, ValidationError) else "it is no text"
        raise HealthError(
            f"{path} is not an early-warning score ({why}); make one with sotscope train health."
        ) from error


def find_early(fingerprint: str) -> EarlyModel | None:
    """The score trained here for this model, or the one that ships; None where there is none."""
    for folder in health_folders(fingerprint):
        path = folder / FILE
        if path.is_file():
            found = load_early(path)
            if fingerprint in (found.fingerprint, *found.also):
                return found
    return None
