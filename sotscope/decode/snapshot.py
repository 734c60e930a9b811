"""A decoder between two steps, to be kept, saved, restored, and branched from.

Random draws are functions of seed, sequence and position, so tokens, cache and settings are all there is to it: what
is restored goes on as if it had never been interrupted.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import DynamicCache

from sotscope.decode.cache import CachedModel
from sotscope.decode.history import History
from sotscope.decode.loop import Decoder
from sotscope.errors import DecodeError

_FORMAT = "sotscope snapshot 1"


@dataclass
class Snapshot:
    """Tokens of a sequence, the cache that holds the first ``length`` of them, and what it was decoded with.

    ``ids`` are all tokens, the first ``prompt_length`` of them the prompt's. ``history`` are the states of the last
    rows where the drafter looks back. ``settings`` are those of DecodeConfig, ``fingerprint`` is the model's.
    """

    ids: list[int]
    prompt_length: int
    cache: Any
    length: int
    fingerprint: str
    settings: dict[str, Any] = field(default_factory=dict)
    history: History | None = None

    @classmethod
    def of(cls, decoder: Decoder, fingerprint: str, settings: Mapping[str, Any] | None = None) -> Snapshot:
        """A copy of where ``decoder`` is; call it between two steps. What it does afterwards changes nothing here."""
        context = decoder.context
        return cls(
            list(context.ids), context.prompt_length, copy.deepcopy(decoder.cached.cache), decoder.cached.length,
            fingerprint, dict(settings or {}), copy.deepcopy(context.history),
        )  # fmt: skip

    def restore(self, model: Any, fingerprint: str) -> CachedModel:
        """A cache for ``Decoder(cached=...)`` of the same model; the snapshot stays as it is, for other branches.

        Raises DecodeError for another model.
        """
        if fingerprint != self.fingerprint:
            raise DecodeError(
                f"the snapshot is of another model (weights {self.fingerprint[:12]}, here {fingerprint[:12]}); "
                "load the model it was made with."
            )
        return CachedModel.holding(model, copy.deepcopy(self.cache), self.length)

    def begin(self, model: Any, fingerprint: str, ids: Sequence[int]) -> CachedModel:
        """A cache for decoding after ``ids``, which begin with what is in the cache here: that is not computed again.

        Raises DecodeError for another model, and for ids that begin otherwise.
        """
        known = min(self.length, len(ids) - 1)  # the last token is fed by the first step
        if list(ids[:known]) != self.ids[:known]:
            raise DecodeError(f"the prompt does not begin with the {self.length} tokens of the prefix.")
        cached = self.restore(model, fingerprint)
        cached.rewind(known)
        return cached

    # -- on disk -----------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write it as one safetensors file; the parts that are no tensors stand in its header, as JSON."""
        tensors: dict[str, Tensor] = {}
        layers = [_packed(layer, f"cache.{i}", tensors) for i, layer in enumerate(self.cache.layers)]
        about = {
            "format": _FORMAT, "ids": self.ids, "prompt_length": self.prompt_length, "length": self.length,
            "fingerprint": self.fingerprint, "settings": self.settings, "layers": layers,
        }  # fmt: skip
        if self.history is not None and self.history.end > self.history.start:
            tensors["history"] = self.history.since(self.history.start).contiguous()
            about["history"] = [self.history.keep, list(self.history.layers), self.history.start]
        save_file(tensors, str(path), metadata={"sotscope": json.dumps(about)})

    @classmethod
    def load(cls, path: str | Path, model: Any) -> Snapshot:
        """Read it for ``model``, onto whose device it goes. Raises DecodeError in one line for a file that cannot be
        read, is no snapshot, or has another number of layers."""
        try:
            with safe_open(str(path), "pt", device=str(model.device)) as file:
                about = json.loads((file.metadata() or {}).get("sotscope", "{}"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        except (OSError, SafetensorError, ValueError) as error:
            raise DecodeError(f"cannot read {path} as a snapshot: {str(error).splitlines()[0]}.") from error
        if about.get("format") != _FORMAT:
            raise DecodeError(f"{path} is not a snapshot of sotscope.")
        cache: Any = DynamicCache(config=model.config)
        if len(cache.layers) != len(about["layers"]):
            raise DecodeError(
                f"{path} is of a model with {len(about['layers'])} layers; this one has {len(cache.layers)}."
            )
        for layer, packed in zip(cache.layers, about["layers"], strict=True):
            _unpack(layer, packed, tensors, path)
        history = None
        if "history" in about:
            keep, layers, start = about["history"]
            history = History(keep, tuple(layers))
            history.add(start, tensors["history"])
        return cls(
            about["ids"], about["prompt_length"], cache, about["length"], about["fingerprint"], about["settings"],
            history,
        )  # fmt: skip


def _packed(layer: Any, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """A cache layer's attributes as JSON; tensors are put into ``tensors`` and named."""
    return {"class": type(layer).__name__, **{key: _pack(value, f"{prefix}.{key}", tensors)
            for key, value in vars(layer).items()}}  # fmt: skip


def _pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    match value:
        case Tensor():
            tensors[name] = value.detach().contiguous().clone()
            return {"tensor": name}
        case torch.dtype():
            return {"dtype": str(value).removeprefix("torch.")}
        case torch.device():
            return {"device": True}
        case dict():
            return {"dict": [[key, _pack(entry, f"{name}.{key}", tensors)] for key, entry in value.items()]}
        case list() | tuple():
            return {"list": [_pack(entry, f"{name}.{i}", tensors) for i, entry in enumerate(value)]}
        case None | bool() | int() | float() | str():
            return {"value": value}
    raise DecodeError(f"this model's cache keeps a {type(value).__name__}, which a snapshot cannot hold.")


def _unpack(layer: Any, packed: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Any) -> None:
    if type(layer).__name__ != packed["class"]:
        raise DecodeError(f"{path} is of a model with another kind of cache ({packed['class']}).")
    for key, entry in packed.items():
        if key != "class":
            setattr(layer, key, _value(entry, tensors))


def _value(entry: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
    ((kind, value),) = entry.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "dtype":
        return getattr(torch, value)
    if kind == "device":
        return next(iter(tensors.values())).device
    if kind == "dict":
        return {key: _value(inner, tensors) for key, inner in value}
    if kind == "list":
        return [_value(inner, tensors) for inner in value]
    return value
