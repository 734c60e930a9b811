"""What a model allows: its family and sizes, every site with its shape and cost, and whether drafts can be taken back.

Knows nothing of loading: it is given a model. Two small forwards are run, one with the hooks on and one with a cache.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import DynamicCache

from sotscope.capture.contracts import Site
from sotscope.capture.plan import Anatomy, Plan, anatomy, available, make_plan
from sotscope.capture.selfcheck import final_norm
from sotscope.capture.tap import Tap, dtype_name
from sotscope.catalog import SITES
from sotscope.errors import SiteError

PROBE_IDS = (0, 0)
KEYS = 1000
"""Length of the key axis of attention rows, for which their cost is given."""


@dataclass(frozen=True)
class SiteFacts:
    """One site of a model. ``row`` is the shape of a token's entry, all layers; empty where ``reason`` says why not."""

    name: str
    doc: str
    also: tuple[str, ...]
    reason: str = ""
    row: tuple[int, ...] = ()
    dims: tuple[str, ...] = ()
    dtype: str = ""
    disk_per_1000: int = 0
    """Bytes of 1,000 tokens in the model's own type, as they are stored by default."""
    memory_per_1000: int = 0
    """Bytes of 1,000 tokens read back: float32."""

    @property
    def available(self) -> bool:
        return not self.reason


@dataclass(frozen=True)
class Inspection:
    """What a model is, in the words of its config, and what can be recorded of it."""

    model_type: str
    family: str
    family_doc: str
    parameters: int
    dtype: str
    quantisation: str
    layers: int
    hidden: int
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    vocabulary: int
    context: int | None
    """How many tokens the model can hold; None: no limit (a recurrent model)."""
    positions: str
    norm: str
    tied_head: bool | None
    attention: str
    croppable: bool
    """Whether rejected drafts can be rolled back; if not, only modes without drafts are lossless."""
    sites: tuple[SiteFacts, ...]

    def site(self, name: str) -> SiteFacts:
        return next(site for site in self.sites if site.name == name)


def inspect(model: Any, *, quantisation: str = "") -> Inspection:
    """Look at a causal language model. Raises SiteError for one whose blocks cannot be found."""
    body = anatomy(model)
    config, geometry = body.config, body.geometry
    has_heads = bool(getattr(config, "num_attention_heads", None))
    return Inspection(
        model_type=config.model_type,
        family=body.family_name,
        family_doc=body.family.doc if body.family else "found by shape: embed, resid and final only",
        parameters=body.model.num_parameters(),
        dtype=str(body.model.dtype).removeprefix("torch."),
        quantisation=quantisation or "none",
        layers=geometry.layers,
        hidden=geometry.hidden,
        heads=geometry.heads if has_heads else None,
        kv_heads=(getattr(config, "num_key_value_heads", None) or geometry.heads) if has_heads else None,
        head_dim=geometry.head_dim if has_heads else None,
        vocabulary=geometry.vocab,
        context=body.context_length,
        positions=_positions(body),
        norm=_norm(body),
        tied_head=_tied(body.model),
        attention=(getattr(config, "_attn_implementation", None) or "unknown") if has_heads else "none",
        croppable=croppable(body.model),
        sites=_sites(body),
    )


@torch.inference_mode()
def croppable(model: Any) -> bool:
    """Whether the model's cache can forget its last tokens: known only once something was fed."""
    cache: Any = DynamicCache(config=model.config)
    model(torch.tensor([PROBE_IDS], device=model.device), cache=cache, use_cache=True)
    return bool(cache.is_croppable)


def _sites(body: Anatomy) -> tuple[SiteFacts, ...]:
    reasons = available(body)
    for name, why in reasons.items():
        if not why:
            reasons[name] = _refused(body, name)
    wanted = [name for name, why in reasons.items() if not why and name != "attn"]
    plan = make_plan(body.model, wanted, attn_layers="" if reasons["attn"] else "first")
    states = _probe(plan)
    return tuple(_facts(body, SITES.get(name), why, states.get(name)) for name, why in reasons.items())


def _refused(body: Anatomy, name: str) -> str:
    """Why a site cannot be planned for all layers (some layers may lack its module), or empty."""
    try:
        make_plan(body.model, [name])
    except SiteError as error:
        return str(error).rstrip(".")
    return ""


@torch.inference_mode()
def _probe(plan: Plan) -> dict[str, Any]:
    """One row of every site of ``plan``."""
    model = plan.anatomy.model
    with Tap(plan, max_keys=KEYS) as tap:
        model(torch.tensor([PROBE_IDS], device=model.device), use_cache=False)
        return tap.take(len(PROBE_IDS), (-1,) * len(PROBE_IDS), logits=False).states


def _facts(body: Anatomy, site: Site, reason: str, states: Any) -> SiteFacts:
    also = (*_in_hidden_states(body, site, states), *site.also)
    if reason or states is None:
        return SiteFacts(site.name, site.doc, also, reason or "not captured")
    row = tuple(int(size) for size in states.shape[1:])
    values = math.prod(row)
    return SiteFacts(
        site.name,
        site.doc,
        also,
        row=row,
        dims=_dims(site),
        dtype=dtype_name(states),
        disk_per_1000=1000 * values * states.dtype.itemsize,
        memory_per_1000=1000 * values * 4,
    )


def _dims(site: Site) -> tuple[str, ...]:
    inner = {"hidden": ("dim",), "heads": ("head", "head_dim"), "keys": ("head", "key")}[site.shape]
    return (*(("layer",) if site.per_layer else ()), *inner)


def _in_hidden_states(body: Anatomy, site: Site, states: Any) -> tuple[str, ...]:
    """Where transformers' ``output_hidden_states`` has the site: the last block's raw output is not in it."""
    first = body.first_block_state
    if site.name == "embed" and first == 1:
        return ("hidden_states[0]",)
    if site.name == "resid":
        return (f"hidden_states[layer{f' + {first}' if first else ''}] (but the last)",)
    if site.name == "final" and states is not None and states.shape[-1] == body.geometry.hidden:
        return ("hidden_states[-1]",)
    return ()


def _positions(body: Anatomy) -> str:
    """How the model knows where a token stands."""
    config = body.config
    if getattr(config, "rope_parameters", None) or getattr(config, "rope_theta", None):
        skipped = [i for i, used in enumerate(getattr(config, "no_rope_layers", None) or ()) if not used]
        return f"rotary (RoPE), not in layers {', '.join(map(str, skipped))}" if skipped else "rotary (RoPE)"
    if hasattr(body.decoder, "build_alibi_tensor"):
        return "ALiBi"
    given = body.model.get_input_embeddings()
    learned = any(isinstance(part, nn.Embedding) and part is not given for part in body.decoder.modules())
    return "learned" if learned else "none"


def _norm(body: Anatomy) -> str:
    """The class of the norm before the head."""
    try:
        norm = final_norm(make_plan(body.model, ["resid"]))
    except SiteError:
        norm = None
    if norm is None:
        return "unknown"
    return "none" if isinstance(norm, nn.Identity) else type(norm).__name__


def _tied(model: Any) -> bool | None:
    """Whether the head reads the input embedding's weights; None when there is no head."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is None or embedding is None:
        return None
    return bool(head.weight.data_ptr() == embedding.weight.data_ptr())
