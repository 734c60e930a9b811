"""A head of given weights for a run of given arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from safetensors.numpy import save_file

from sotscope.analysis.head import FILE, FORMAT
from sotscope.store.reader import Run

MODEL = {"model": {"name": "given", "dtype": "float32", "fingerprint": "0123456789abcdef"}}
"""Attributes of a run whose model has a head."""


def give_head(run: Run, weight: np.ndarray, *, layers: int = 3, norm: str = "none", **tensors: np.ndarray) -> None:
    """Put a head with ``weight [vocab, dim]`` into the folder of ``run`` (written with ``attributes=MODEL``)."""
    facts: dict[str, Any] = {"norm": norm, "layers": layers, "eps": 1e-5, "softcap": 0.0, "scale": 1.0}
    metadata = {"format": FORMAT, "fingerprint": MODEL["model"]["fingerprint"], **{k: str(v) for k, v in facts.items()}}
    save_file({"weight": weight, **tensors}, run.path / FILE, metadata)
