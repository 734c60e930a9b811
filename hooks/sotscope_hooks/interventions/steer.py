"""`steer`: a vector is added to rows (activation addition, Turner et al. 2023)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from sotscope.capture.interventions import Place, Rowwise
from sotscope.errors import HealthError


class Steer(Rowwise):
    """Adds ``value`` times a vector: that of ``file`` (.npy or .safetensors, there the tensor ``key``), [value] or
    [layer, value]; without a file the unit vector of ``dim``. With ``relative`` the vector is made as long as
    the row first, so that 0.1 is a tenth of it."""

    name: ClassVar[str] = "steer"

    def __init__(
        self, place: Place, file: str = "", key: str = "", dim: int = -1, value: float = 1.0, relative: bool = False
    ) -> None:
        if bool(file) == (dim >= 0):
            raise HealthError("intervention steer needs a vector: file=V.npy, or dim=N (one of them).")
        if not math.isfinite(value):
            raise HealthError(f"intervention steer: value = {value} is not finite.")
        vector = _of_layer(_read(file, key), place, file) if file else _unit(dim, place)
        if not vector.isfinite().all():
            raise HealthError(f"intervention steer: the vector in {file} is not finite.")
        if relative:
            vector = torch.nn.functional.normalize(vector, dim=0)
        self._vector = vector * value
        self._relative = relative

    def rows(self, states: Tensor, positions: range) -> Tensor:
        vector = self._vector.to(states)
        return states + (vector * states.norm(dim=-1, keepdim=True) if self._relative else vector)


def _unit(dim: int, place: Place) -> Tensor:
    if dim >= place.width:
        raise HealthError(
            f"intervention steer: there is no dim {dim}; {place.site} has {place.width}, 0-{place.width - 1}."
        )
    vector = torch.zeros(place.width)
    vector[dim] = 1
    return vector


def _of_layer(vector: Tensor, place: Place, file: str) -> Tensor:
    if vector.shape == (place.layers, place.width):
        return vector[place.layer]
    if vector.shape != (place.width,):
        raise HealthError(
            f"intervention steer: {file} is {list(vector.shape)}; {place.site} needs [{place.width}] "
            f"or [{place.layers}, {place.width}]."
        )
    return vector


def _read(file: str, key: str) -> Tensor:
    path = Path(file).expanduser()
    try:
        if path.suffix == ".safetensors":
            tensors = load_file(path)
            if not key and len(tensors) == 1:
                key = next(iter(tensors))
            if key not in tensors:
                raise HealthError(
                    f"intervention steer: key={key or '?'} is not in {file}; there are: {', '.join(tensors)}."
                )
            return tensors[key].float()
        if path.suffix == ".npy":
            return torch.from_numpy(np.load(path, allow_pickle=False).astype(np.float32))
    except (OSError, ValueError, SafetensorError) as error:
        raise HealthError(f"intervention steer: {file} cannot be read ({error}).") from error
    raise HealthError(f"intervention steer: {file} is neither .npy nor .safetensors.")
