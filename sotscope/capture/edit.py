"""State rows in a module's input or output: read, and put back changed with all else as it was."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, cast

import torch
from torch import Tensor

from sotscope.capture.contracts import Geometry, unwrap
from sotscope.capture.plan import Point


def width_of(point: Point, geometry: Geometry, model: Any) -> int:
    """How many values a row of this site has."""
    if point.site.shape == "heads":
        return geometry.heads * geometry.head_dim
    if point.site.name == "mlp_act":
        size = getattr(point.module, "in_features", None)  # GPT-2's Conv1D has its weight [in, out], and no such name
        return int(size if size is not None else cast(Tensor, point.module.weight).shape[0])
    if point.site.name == "final" and (head := model.get_output_embeddings()) is not None:
        return int(head.weight.shape[1])
    return geometry.hidden


def read_rows(tensor: Tensor, point: Point, geometry: Geometry) -> Tensor:
    """The rows [token, value] of ``tensor [1, token, ...]``, or of OPT's [token, value]; of a fused projection those of
    the queries."""
    if point.read is not None:
        return point.read(tensor, geometry)
    rows = tensor if tensor.dim() == 2 else tensor.flatten(2)[0]
    return rows[:, : geometry.heads * geometry.head_dim] if point.site.shape == "heads" else rows


def write_rows(tensor: Tensor, rows: Tensor, point: Point, geometry: Geometry) -> Tensor:
    """``tensor`` with other rows, as a new tensor of its type."""
    rows = rows.to(tensor.dtype)
    if point.read is None and tensor.numel() == rows.numel():
        return rows.view(tensor.shape)
    # whatever way the family reads queries: reading the numbers of the cells says where they stand
    cells = read_rows(torch.arange(tensor.numel(), device=tensor.device).view(tensor.shape), point, geometry)
    return tensor.flatten().scatter(0, cells.flatten(), rows.flatten()).view(tensor.shape)


def with_state(value: Any, state: Tensor) -> Any:
    """A module's output with another state in the place that ``unwrap`` reads; the other entries are kept."""
    if isinstance(value, Tensor):
        return state
    old = unwrap(value)
    if isinstance(value, Mapping):
        changed: Any = copy(value)
        changed[next(key for key, entry in value.items() if entry is old)] = state
        return changed
    place = next(i for i, entry in enumerate(value) if entry is old)
    return type(value)((*value[:place], state, *value[place + 1 :]))


def with_input(args: tuple[Any, ...], kwargs: dict[str, Any], state: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A module's arguments with another state in the place that ``entering`` reads."""
    return ((state, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": state})


def entering(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """The state among a module's arguments: the first one, or ``hidden_states``."""
    state: Tensor = args[0] if args else kwargs["hidden_states"]
    return state
