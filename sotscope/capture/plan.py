"""From names to modules: which family a model belongs to, where its sites are, and which of them to tap."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from sotscope.capture.contracts import Family, Geometry, Read, Site
from sotscope.capture.layers import parse_layers
from sotscope.catalog import FAMILIES, SITES
from sotscope.errors import SiteError
from sotscope.registry import unknown

GENERIC_SITES = ("embed", "resid", "final")


@dataclass(frozen=True)
class Anatomy:
    """A model taken apart: its decoder stack, its blocks, its family (None: found by shape) and its sizes."""

    model: Any
    decoder: Any
    blocks: nn.ModuleList
    geometry: Geometry
    family: Family | None
    config: Any

    @property
    def first_block_state(self) -> int:
        """Index of block 0's output in transformers' ``hidden_states``."""
        return self.family.hidden_states_of_block_0 if self.family else 1

    @property
    def context_length(self) -> int | None:
        """How many tokens the model can hold; None: no limit (a recurrent model)."""
        values = (getattr(self.config, name, None) for name in ("max_position_embeddings", "n_positions", "seq_length"))
        return next((value for value in values if isinstance(value, int) and value > 0), None)

    @property
    def family_name(self) -> str:
        return self.family.name if self.family else f"generic ({self.config.model_type})"


@dataclass(frozen=True)
class Point:
    """One module to tap: ``slot`` is its place on the layer axis of its site."""

    site: Site
    slot: int
    layer: int
    module: nn.Module
    read: Read | None = None


@dataclass(frozen=True)
class Plan:
    """What will be tapped. ``layers`` are the layers of all per-layer sites but ``attn``, which has ``attn_layers``."""

    anatomy: Anatomy
    sites: tuple[Site, ...]
    layers: tuple[int, ...]
    attn_layers: tuple[int, ...]
    points: tuple[Point, ...]
    attn_entropy: bool = False
    head_norms: bool = False

    def layers_of(self, site: Site) -> tuple[int, ...] | None:
        if not site.per_layer:
            return None
        return self.attn_layers if site.name == "attn" else self.layers

    def stored(self, name: str) -> bool:
        return any(site.name == name for site in self.sites)


def anatomy(model: Any) -> Anatomy:
    """Find the decoder, the blocks and the family of a causal language model.

    Raises SiteError for encoder-decoder models and for models in which no block list can be found.
    """
    model = getattr(model, "_orig_mod", model)
    if getattr(model.config, "is_encoder_decoder", False):
        raise SiteError(f"{model.config.model_type} is an encoder-decoder model; sotscope records decoder-only models.")
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
    config = decoder.config.get_text_config() if hasattr(decoder.config, "get_text_config") else decoder.config
    family = _family(config.model_type)
    count = config.num_hidden_layers
    path = family.roles["blocks"] if family else _find_blocks(decoder, config.model_type, count)
    blocks = _module(decoder, path)
    if not isinstance(blocks, nn.ModuleList) or len(blocks) != count:
        raise SiteError(
            f"the {config.model_type} model has {_length(blocks)} blocks at {path!r}, its config says {count}."
        )
    if len({id(block) for block in blocks}) != len(blocks):
        raise SiteError(f"blocks of this {config.model_type} model share modules; rows could not be told apart.")
    heads = getattr(config, "num_attention_heads", None) or 1
    geometry = Geometry(
        hidden=config.hidden_size,
        layers=count,
        heads=heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocab=config.vocab_size,
    )
    return Anatomy(model, decoder, blocks, geometry, family, config)


def _family(model_type: str) -> Family | None:
    for name in FAMILIES:
        family: Family = FAMILIES.get(name)
        if model_type in family.model_types:
            return family
    return None


def _find_blocks(decoder: nn.Module, model_type: str, count: int) -> str:
    """The ModuleList as long as the config's layer count, for architectures that nobody described."""
    lists: list[tuple[str, nn.ModuleList]] = [
        (path, module) for path, module in decoder.named_modules() if isinstance(module, nn.ModuleList)
    ]
    fitting = [path for path, module in lists if len(module) == count]
    if len(fitting) == 1:
        return fitting[0]
    seen = ", ".join(f"{path} ({len(module)})" for path, module in lists) or "none"
    raise SiteError(
        f"cannot tell where the {count} blocks of {model_type!r} are; module lists seen: {seen}. "
        "Describe the architecture in a Family (docs/how-to.md, 'Add a family')."
    )


def site_names(requested: Sequence[str]) -> list[str]:
    """Our names for the sites asked for under any name that is in use; ``all`` and ``none`` are understood.

    ``hidden_states`` stands for embed, resid and final, ``resid_pre`` for embed and resid; names with a layer in them
    (``blocks.3.hook_resid_post``, ``hidden_states[4]``) name the site only. Raises SiteError for an unknown name.
    """
    aliases = {other: name for name in SITES.names() for other in (name, *SITES.get(name).also)}
    found: list[str] = []
    for name in requested:
        plain: str = re.sub(
            r"^(blocks|model\.layers|layers|transformer\.h|h)\.\d+\.|\[-?\w*\]$|^hook_", "", name.strip()
        )
        if plain in ("none", ""):
            continue
        if plain == "all":
            found.append("all")
        elif plain == "hidden_states":
            found += ["embed", "resid", "final"]
        elif plain in ("resid_pre", "hook_resid_pre"):  # what enters a block: embed, then the block before's output
            found += ["embed", "resid"]
        elif plain in aliases or f"hook_{plain}" in aliases:
            found.append(aliases.get(plain) or aliases[f"hook_{plain}"])
        else:
            raise SiteError(unknown("site", name, sorted(aliases)))
    return list(dict.fromkeys(found))


def available(body: Anatomy, module_names: Mapping[str, str] | None = None) -> dict[str, str]:
    """Every site of the catalog with "" where this model has it, else the reason why not."""
    return {name: _why_not(body, SITES.get(name), module_names or {}) for name in SITES.names()}


def _why_not(body: Anatomy, site: Site, by_hand: Mapping[str, str]) -> str:
    if site.name in by_hand or site.name in GENERIC_SITES:
        return ""
    if body.family is None:
        return f"no family describes {body.config.model_type!r}: name the module by hand, {_hint(body, site)}"
    if site.name in body.family.unavailable:
        return body.family.unavailable[site.name]
    if site.role not in body.family.roles:
        return f"the {body.family.name} family does not say where it is"
    path = body.family.roles[site.role]
    if not any(_has(block, path) for block in body.blocks):
        return f"no block has a module {path!r}"
    if site.side == "weights" and getattr(body.config, "_attn_implementation", "") != "eager":
        used = getattr(body.config, "_attn_implementation", "unknown")
        return f"attention weights need attn_implementation='eager' (this model runs {used!r})"
    return ""


def _hint(body: Anatomy, site: Site) -> str:
    paths = [path for path, _ in body.blocks[0].named_modules() if path]
    return f"--module {site.name}=PATH with one of: {', '.join(paths)}"


def make_plan(
    model: Any,
    sites: Sequence[str],
    layers: str = "all",
    *,
    attn_layers: str = "",
    attn_entropy: bool = False,
    module_names: Mapping[str, str] | None = None,
) -> Plan:
    """Resolve sites and layers for ``model``.

    ``module_names`` gives module paths below a block by hand, for architectures without a family. ``resid`` is always
    tapped (its scalars are always on) even when it is not stored. Raises SiteError, which names what there is.
    """
    body = anatomy(model)
    by_hand = dict(module_names or {})
    reasons = available(body, by_hand)
    names = [name for name in site_names(sites) if name != "attn"]
    if "all" in names:
        names = [name for name, why in reasons.items() if not why and name != "attn"]
    if attn_layers:
        names.append("attn")
    for name in names + (["attn"] if attn_entropy else []):
        if reasons[name]:
            has = ", ".join(other for other, why in reasons.items() if not why)
            raise SiteError(f"site {name!r} is not available: {reasons[name]}. Available: {has}.")
    count = body.geometry.layers
    chosen = parse_layers(layers, count)
    with_attention = parse_layers(attn_layers, count) if attn_layers else ()
    stored = tuple(SITES.get(name) for name in SITES.names() if name in names)
    points: list[Point] = []
    for site in _tapped(stored, attn_entropy):
        wanted = (with_attention if site.name == "attn" else chosen) if site.per_layer else (0,)
        if site.name == "attn" and attn_entropy:
            wanted = tuple(sorted({*with_attention, *chosen}))
        points += [_point(body, site, slot, layer, by_hand) for slot, layer in enumerate(wanted)]
    return Plan(
        anatomy=body,
        sites=stored,
        layers=chosen,
        attn_layers=with_attention,
        points=tuple(points),
        attn_entropy=attn_entropy,
        head_norms="head_out" in names,
    )


def _tapped(stored: tuple[Site, ...], attn_entropy: bool) -> list[Site]:
    extra = ["resid"] + (["attn"] if attn_entropy else [])
    names = {site.name for site in stored}
    return [*stored, *(SITES.get(name) for name in extra if name not in names)]


def _point(body: Anatomy, site: Site, slot: int, layer: int, by_hand: Mapping[str, str]) -> Point:
    if site.role == "decoder":
        return Point(site, slot, layer, body.decoder)
    path = by_hand.get(site.name, "" if site.role == "block" else (body.family.roles[site.role] if body.family else ""))
    block = body.blocks[layer]
    if not _has(block, path):
        with_it = [str(i) for i, other in enumerate(body.blocks) if _has(other, path)]
        raise SiteError(
            f"layer {layer} has no {site.name} (no module {path!r}); layers that do: {', '.join(with_it) or 'none'}."
        )
    module = _module(block, path)
    read = body.family.read_query if body.family and site.name == "query" else None
    return Point(site, slot, layer, module, read)


def _has(module: nn.Module, path: str) -> bool:
    try:
        _module(module, path)
    except AttributeError:
        return False
    return True


def _module(module: nn.Module, path: str) -> nn.Module:
    return module.get_submodule(path) if path else module


def _length(module: nn.Module) -> int:
    return len(module) if isinstance(module, nn.ModuleList) else 0


def hook_counts(model: nn.Module) -> Counter[str]:
    """How many forward hooks and pre-hooks each module of ``model`` has; a tap must leave this as it found it."""
    return Counter(
        {
            path: len(module._forward_hooks) + len(module._forward_pre_hooks)
            for path, module in model.named_modules()
            if module._forward_hooks or module._forward_pre_hooks
        }
    )


@contextmanager
def as_it_was(model: nn.Module) -> Iterator[None]:
    """Take away the hooks that transformers installs for good when ``output_hidden_states`` is first asked for."""
    modules = list(model.modules())
    before = [(set(module._forward_hooks), "_output_capturing_hooks_installed" in vars(module)) for module in modules]
    try:
        yield
    finally:
        for module, (hooks, marked) in zip(modules, before, strict=True):
            for key in set(module._forward_hooks) - hooks:
                del module._forward_hooks[key]
            if not marked:
                vars(module).pop("_output_capturing_hooks_installed", None)
