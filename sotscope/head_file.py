"""Saves the final norm and the lm_head of a model, once a model, for analyses that run without torch.

What is kept was held against the model: a norm is of that kind whose formula (the reader's own, ``analysis.head``)
gives what the module gives, so an architecture nobody described is either right or "unknown", never nearly right.
Weights keep the model's own type: they are exact.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sotscope.analysis.head import FORMAT, NORMS, Head, apply_norm
from sotscope.capture.plan import Plan
from sotscope.capture.selfcheck import final_norm
from sotscope.errors import AnalysisError, SiteError
from sotscope.events import Piece

KEPT = (torch.float32, torch.bfloat16, torch.float16)
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 3e-3}
"""Largest relative difference between a module's output and the formula's, by the type the module computes in."""


def head_bytes(plan: Plan) -> int:
    """Bytes that the head takes on disk, about."""
    weight = getattr(plan.anatomy.model.get_output_embeddings(), "weight", None)
    return weight.numel() * weight.element_size() if isinstance(weight, Tensor) else 0


@torch.inference_mode()
def save_head(plan: Plan, path: Path, fingerprint: str, piece_of: Callable[[int], Piece] | None = None) -> str:
    """Save the head at ``path`` unless it is there; written beside its place and renamed. ``piece_of`` gives the words.

    Returns why it could not be kept, or "". Raises nothing: a recording does not need it.
    """
    if _is_there(path, fingerprint, words=piece_of is not None):
        return ""
    beside = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        tensors, facts = _parts(plan)
        if piece_of is not None:
            tensors["pieces"] = _pieces(piece_of, len(tensors["weight"]))
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, beside, {"format": FORMAT, "fingerprint": fingerprint, **facts})
        os.replace(beside, path)
    except Exception as error:  # noqa: BLE001  whatever a model of any kind may do
        return f"the head (final norm and lm_head) was not kept for the lens: {' '.join(str(error).split())[:200]}"
    finally:
        with suppress(OSError):
            beside.unlink()
    return ""


def _is_there(path: Path, fingerprint: str, *, words: bool) -> bool:
    try:
        found = Head(path) if path.is_file() else None
    except AnalysisError:  # half a file, or an older format
        return False
    return found is not None and found.fingerprint == fingerprint and (found.has_words or not words)


def _parts(plan: Plan) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and facts of the file. Raises SiteError for a head that is not plain matrix and bias."""
    body = plan.anatomy
    head = body.model.get_output_embeddings()
    weight, bias = getattr(head, "weight", None), getattr(head, "bias", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2 or weight.dtype not in KEPT or weight.is_meta:
        raise SiteError("this model's lm_head is not a plain matrix of float32, bfloat16 or float16.")
    probe = torch.randn(2, weight.shape[1], generator=torch.Generator().manual_seed(0)).to(weight)
    if not _close(head(probe), nn.functional.linear(probe, weight, bias)):
        raise SiteError("this model's lm_head is more than a matrix and a bias.")
    config = body.config
    scale = float(getattr(config, "logit_scale", None) or 1) / float(getattr(config, "logits_scaling", None) or 1)
    softcap = float(getattr(config, "final_logit_softcapping", None) or 0)
    norm, norm_tensors, eps = _norm(plan)
    tensors = {"weight": weight, **norm_tensors} | ({"bias": bias.float()} if isinstance(bias, Tensor) else {})
    project = getattr(body.decoder, "project_out", None)
    if project is not None:
        tensors["project"] = project.weight.float()
    layers = str(body.geometry.layers)
    facts = {"norm": norm, "layers": layers, "eps": repr(eps), "softcap": repr(softcap), "scale": repr(scale)}
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, facts


def _norm(plan: Plan) -> tuple[str, dict[str, Tensor], float]:
    """Kind, tensors and eps of the final norm."""
    module = final_norm(plan) or _norm_by_shape(plan)
    if isinstance(module, nn.Identity):
        return "none", {}, 0.0
    if module is not None:
        weights = {f"norm_{name}": value.detach().float().cpu() for name, value in module.named_parameters()}
        if set(weights) <= {"norm_weight", "norm_bias"}:
            for eps in _eps(module, plan.anatomy.config):
                for kind in NORMS[:3]:
                    if _same(module, kind, eps, weights, plan.anatomy.geometry.hidden):
                        return kind, weights, eps
    return "unknown", {}, 0.0


def _norm_by_shape(plan: Plan) -> nn.Module | None:
    """For architectures nobody described: the last child of the decoder that has a vector of the hidden size."""
    hidden = (plan.anatomy.geometry.hidden,)
    found = None
    for module in plan.anatomy.decoder.children():
        shapes = {tuple(parameter.shape) for parameter in module.parameters()}
        found = module if shapes == {hidden} else found
    return found


def _eps(module: nn.Module, config: Any) -> Iterator[float]:
    names = ("variance_epsilon", "eps", "epsilon", "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")
    found = [getattr(place, name, None) for place in (module, config) for name in names]
    yield from dict.fromkeys(float(value) for value in found if isinstance(value, float))


def _same(module: nn.Module, kind: str, eps: float, weights: dict[str, Tensor], hidden: int) -> bool:
    """Does the formula give what the module gives, for large states and for ones so small that eps counts?"""
    kept = next(module.parameters(), torch.zeros(()))
    scales = torch.tensor([[1.0], [1.0], [30.0], [2 * eps**0.5]])
    probe = (torch.randn(4, hidden, generator=torch.Generator().manual_seed(0)) * scales + 0.3 * scales).to(kept)
    truth = module(probe)
    vectors = {name: value.numpy() for name, value in weights.items()}
    made = apply_norm(probe.float().cpu().numpy(), kind, eps, vectors.get("norm_weight"), vectors.get("norm_bias"))
    return _close(truth, torch.from_numpy(made))


def _close(truth: Tensor, made: Tensor) -> bool:
    """Largest difference relative to the largest number of each row."""
    wanted = truth.float().cpu()
    limit = TOLERANCE[truth.dtype] * wanted.abs().amax(-1, keepdim=True)
    return bool(((made.float().cpu() - wanted).abs() <= limit).all())


def _pieces(piece_of: Callable[[int], Piece], vocab: int) -> Tensor:
    """[byte] the words of the vocabulary as JSON: [raw piece, bytes in hex, special] each."""
    found = (piece_of(token) for token in range(vocab))
    text = json.dumps([[piece.raw, piece.data.hex(), piece.special] for piece in found], separators=(",", ":"))
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
