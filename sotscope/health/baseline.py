"""What is normal for a model: robust statistics of its states while it decodes healthy text, per layer."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from platformdirs import user_data_path
from pydantic import BaseModel, ConfigDict, ValidationError

from sotscope.errors import HealthError
from sotscope.plain import first_error


class Baseline(BaseModel):
    """Medians and spreads (median absolute deviation times 1.4826) of healthy rows; lists have one entry a layer.

    ``log_norm``: natural logarithm of the L2 norm. ``cosine``: to the row before. ``head_log_norm`` [layer][head] is
    empty where head outputs were not looked at; the spread of a head is how far its outermost hundredths lie over
    2.326, because one that copies is quiet most of the time. ``entropy`` and ``surprise`` (the negative log-probability
    of the chosen token) are quantiles in nats at ``QUANTILES``. ``fingerprint`` (and ``also``, others of the same
    weights) say whose baseline it is.
    """

    model_config = ConfigDict(extra="forbid")

    model: str
    fingerprint: str
    also: list[str] = []
    rows: int
    prompts: int
    layers: list[int]
    log_norm: list[float]
    log_norm_spread: list[float]
    cosine: list[float]
    cosine_spread: list[float]
    head_log_norm: list[list[float]] = []
    head_log_norm_spread: list[list[float]] = []
    entropy: list[float]
    surprise: list[float]

    def of(self, name: str, layers: tuple[int, ...]) -> NDArray[np.float64]:
        """The statistic called ``name`` of these layers, [layer]; NaN for layers it does not know."""
        known = dict(zip(self.layers, getattr(self, name), strict=True))
        return np.array([known.get(layer, np.nan) for layer in layers], np.float64)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.model_dump(), indent=1) + "\n")


QUANTILES = (0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)


def load_baseline(path: Path) -> Baseline:
    """Raises HealthError in one line for a file that cannot be read or is no baseline."""
    try:
        return Baseline.model_validate_json(path.read_text())
    except OSError as error:
        raise HealthError(f"cannot read {path}: {error.strerror}.") from error
    except (ValidationError, UnicodeDecodeError) as error:
        why = first_error(error) if isinstance(error, ValidationError) else "it is no text"
        raise HealthError(f"{path} is not a baseline ({why}); make one with sotscope baseline.") from error


def health_folders(fingerprint: str) -> list[Path]:
    """Where what is known of the health of the model with this fingerprint may lie: made here first, then shipped."""
    shipped = Path(str(files("sotscope.health") / "weights"))
    return [user_data_path("sotscope") / "health" / fingerprint, *sorted(shipped.glob("*"))]


def find_baseline(fingerprint: str) -> Baseline | None:
    """The baseline made here for this model, or the one that ships; None where there is none."""
    for folder in health_folders(fingerprint):
        path = folder / "baseline.json"
        if path.is_file():
            found = load_baseline(path)
            if fingerprint in (found.fingerprint, *found.also):
                return found
    return None
