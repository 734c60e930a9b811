"""The contracts of capture: what a site is, what a family says about an architecture, and how outputs are unwrapped.

This module knows no architecture and no module path; those are in ``sotscope_hooks``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor


@dataclass(frozen=True)
class Geometry:
    """The sizes of a model, from its (text) config."""

    hidden: int
    layers: int
    heads: int
    head_dim: int
    vocab: int


@dataclass(frozen=True)
class Site:
    """A named place in the model (others say hook point): one side of the module that plays ``role``.

    ``shape``: "hidden" is [token, layer, dim]; "heads" is [token, layer, head, head_dim]; "keys" is
    [token, layer, head, key]. Without ``per_layer`` the layer axis is missing. ``also`` are names other tools use.
    """

    name: str
    role: str
    side: Literal["in", "out", "weights"]
    doc: str
    per_layer: bool = True
    shape: Literal["hidden", "heads", "keys"] = "hidden"
    also: tuple[str, ...] = ()


Read = Callable[[Tensor, Geometry], Tensor]


@dataclass(frozen=True)
class Family:
    """How one architecture names its parts.

    ``roles`` maps a role to a module path: below the decoder for ``blocks`` and ``final_norm``, below a block for all
    others. ``unavailable`` maps a site to the reason why it cannot be had. ``read_query`` turns the output of the
    ``query`` module [1, token, ...] into [token, head * head_dim]; by default the leading columns, which is right for
    plain and for fused q-k-v projections.
    """

    name: str
    model_types: tuple[str, ...]
    roles: Mapping[str, str]
    doc: str
    unavailable: Mapping[str, str] = field(default_factory=dict)
    hidden_states_of_block_0: int = 1
    """Where transformers lists the output of block 0 in ``hidden_states``; before it stands the input of block 0."""
    read_query: Read | None = None


def unwrap(value: Any) -> Tensor:
    """The state in a module's output: a Tensor, or the first Tensor of a tuple, list or ModelOutput.

    A Tensor is never indexed: ``output[0]`` of a plain Tensor would drop the batch axis. Raises TypeError when there
    is no Tensor.
    """
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for entry in value:
            if isinstance(entry, Tensor):
                return entry
    raise TypeError(f"no tensor in a {type(value).__name__}")


def attention_weights(value: Any) -> Tensor | None:
    """The attention weights [1, head, query, key] in an attention module's output, or None (not eager attention)."""
    if isinstance(value, tuple):
        for entry in value[1:]:
            if isinstance(entry, Tensor) and entry.dim() == 4:
                return entry
    return None
