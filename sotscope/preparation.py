"""From settings to the parts of a recording: model, prompt, drafter, and the spec of the store.

Nothing here decodes or writes; everything that can be wrong before the first token is found here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from sotscope.capture.measure import EFFECTS
from sotscope.capture.plan import Plan
from sotscope.capture.scalars import LAYER_SCALARS, LOGIT_SCALARS
from sotscope.capture.tap import Tap, dtype_name
from sotscope.config import DecodeConfig, HealthConfig, PromptConfig, RunConfig
from sotscope.decode.contracts import Drafter
from sotscope.errors import ModelError, PromptError
from sotscope.health.baseline import find_baseline, load_baseline
from sotscope.health.contracts import Subject
from sotscope.health.early_model import find_early
from sotscope.health.rows import watched_layers
from sotscope.models.load import Loaded, fingerprint, load
from sotscope.models.prompt import Prompt, build_prompt
from sotscope.sources import read_source
from sotscope.store.dtypes import native
from sotscope.store.layout import RunSpec, ScalarSpec, SiteSpec


def probe_spec(plan: Plan, ids: Sequence[int], settings: RunConfig, max_keys: int) -> RunSpec:
    """The shapes and types of every site, learnt from one small uncached forward with the hooks on."""
    with torch.inference_mode(), Tap(plan, max_keys=max_keys) as tap:
        inputs = torch.tensor([list(ids[:2])], device=plan.anatomy.model.device)
        plan.anatomy.model(inputs, use_cache=False)
        captured = tap.take(inputs.shape[1], (-1,) * inputs.shape[1], logits=False)
    sites = tuple(_site_spec(plan, site, captured.states[site.name], settings.capture.dtype) for site in plan.sites)
    layers, heads = len(plan.layers), plan.anatomy.geometry.heads
    scalars = [
        ScalarSpec(
            name=name,
            row=(layers,),
            dims=("token", "layer"),
            unit=unit,
            dtype="<i4" if name == "nonfinite" else "<f4",
        )
        for name, unit in LAYER_SCALARS.items()
    ]
    scalars += [ScalarSpec(name=name, unit=unit) for name, unit in LOGIT_SCALARS.items()]
    per_head = ("token", "layer", "head")
    if plan.head_norms:
        scalars.append(ScalarSpec(name="head_norm", row=(layers, heads), dims=per_head))
    if plan.attn_entropy:
        scalars.append(ScalarSpec(name="attn_entropy", row=(layers, heads), dims=per_head, unit="nats"))
    scalars.append(ScalarSpec(name="intervened", unit="bits", dtype="<i4"))
    if settings.measure:
        scalars += [ScalarSpec(name=f"effect_{name}", unit=unit) for name, unit in EFFECTS.items()]
    predicted = plan.anatomy.geometry.hidden if settings.decode.draft.record_states else 0
    return RunSpec(
        sites=sites, scalars=tuple(scalars), layers=plan.layers, top_k=settings.capture.top_k, predicted=predicted
    )


def _site_spec(plan: Plan, site: Any, states: NDArray[Any], dtype: str | None) -> SiteSpec:
    source = dtype_name(states)
    native(source)
    hidden = plan.anatomy.geometry.hidden
    if site.shape == "heads":
        dims: tuple[str, ...] = ("token", "layer", "head", "head_dim")
    elif site.shape == "keys":
        dims = ("token", "attn_layer", "head", "key")
    else:
        last = "dim" if states.shape[-1] == hidden else f"{site.name}_dim"
        dims = ("token", "layer", last) if site.per_layer else ("token", last)
    return SiteSpec(
        name=site.name,
        row=states.shape[1:],
        dims=dims,
        dtype=dtype or source,
        source_dtype=source,
        layers=plan.layers_of(site),
    )


def fields_of(plan: Plan) -> frozenset[str]:
    """The optional fields of the rows that monitors see."""
    given = {"states": True, "head_norm": plan.head_norms, "attn_entropy": plan.attn_entropy}
    return frozenset(name for name, there in given.items() if there)


def subject_of(loaded: Loaded, plan: Plan, settings: HealthConfig) -> Subject:
    """What monitors watch, with what is known of the model. Its weights are looked at only where monitors ask."""
    known: dict[str, Any] = {}
    if settings.monitor or settings.monitors or settings.recover:
        mark = fingerprint(loaded.model)
        known = {"baseline": find_baseline(mark), "early": find_early(mark)}
    if settings.baseline is not None:
        known["baseline"] = load_baseline(settings.baseline)
    return Subject(plan.layers, watched_layers(plan.layers), **known)


def check_ids(ids: Sequence[int], plan: Plan) -> None:
    """Raises PromptError for a token id that the model has no embedding for (another model's tokenizer, perhaps)."""
    vocab = int(plan.anatomy.model.get_input_embeddings().weight.shape[0])
    wrong = next((i for i in ids if not 0 <= i < vocab), None)
    if wrong is not None:
        raise PromptError(f"token id {wrong} is not one of the model's {vocab}; is it this model's tokenizer?")


def token_limit(drafter: Drafter, decode: DecodeConfig) -> int:
    ids = getattr(drafter, "ids", None)
    return len(ids) if drafter.mode == "forced" and ids is not None else decode.max_new_tokens


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("sotscope", "torch", "transformers", "zarr", "numpy")}


def load_model(model: Any, tokenizer: Any, settings: RunConfig, report: Callable[[str], None]) -> Loaded:
    if model is None or isinstance(model, str):
        chosen = settings.model
        return load(
            model or chosen.name,
            dtype=chosen.dtype,
            device=chosen.device,
            device_map=chosen.device_map,
            attn_implementation=chosen.attn_implementation,
            report=report,
        )
    loaded = model if isinstance(model, Loaded) else Loaded(model, tokenizer, "", "in memory")
    plain = getattr(loaded.model, "_orig_mod", loaded.model)  # what torch.compile was given
    loaded = replace(loaded, model=plain, name=loaded.name or type(plain).__name__)
    if plain.training:
        raise ModelError("the model is in train mode, so dropout would change its states; call model.eval() first.")
    if any(_compiled(module) for module in plain.modules()):
        raise ModelError("the model is compiled in place, so hooks may not run; load it anew to record it.")
    return loaded


def _compiled(module: torch.nn.Module) -> bool:
    return "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None


def title(given: PromptConfig) -> str:
    """What a run is called by default: the user's own words, without those of a chat template."""
    if given.messages:
        return given.messages[-1]["content"]
    if given.source is not None:
        return f"from {Path(given.source.partition('@')[0]).stem}"
    return given.prompt or (given.prompt_file.stem if given.prompt_file else "")


def make_prompt(loaded: Loaded, settings: RunConfig) -> Prompt:
    given = settings.input
    if given.source is not None:
        return _prompt_of_run(given.source, loaded)
    text = given.prompt
    if given.prompt_file is not None:
        if text is not None:
            raise PromptError("give either a prompt or a prompt file, not both.")
        try:
            text = given.prompt_file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise PromptError(f"cannot read {given.prompt_file}: {getattr(error, 'strerror', error)}.") from error
    if loaded.tokenizer is None:
        return _prompt_of_ids(text)
    return build_prompt(loaded.tokenizer, text, messages=given.messages, system=given.system, raw=given.raw)


def _prompt_of_run(source: str, loaded: Loaded) -> Prompt:
    found = read_source(source)
    theirs, ours = found.model.get("fingerprint"), fingerprint(loaded.model)
    other = f"{source} was recorded with other weights ({found.model.get('name', 'unknown')})"
    return Prompt(found.ids, found.segments, "", (other,) if theirs not in (None, ours) else (), found.written)


def _prompt_of_ids(text: str | None) -> Prompt:
    """Without a tokenizer a prompt is token ids with spaces between."""
    try:
        ids = [int(word) for word in (text or "").split()]
    except ValueError:
        raise PromptError("this model came without a tokenizer: give token ids ('5 17 3'), or tokenizer=.") from None
    if not ids:
        raise PromptError("the prompt is empty; give token ids ('5 17 3'), or tokenizer=.")
    return Prompt(ids, ["raw"] * len(ids), text or "")


def merge_settings(
    config: RunConfig | None,
    prompt: str | None,
    messages: Sequence[Mapping[str, Any]] | None,
    system: str | None,
    raw: bool,
    out: str | Path | None,
    sites: Sequence[str] | None,
    layers: str | None,
    max_new_tokens: int | None,
    decode: dict[str, Any],
) -> RunConfig:
    """The config with the keyword shortcuts put in; every value is validated again."""
    data = (config or RunConfig()).model_dump()
    given: dict[str, dict[str, Any]] = {
        "input": {"prompt": prompt, "messages": messages, "system": system, "raw": raw or None},
        "capture": {"sites": None if sites is None else list(sites), "layers": layers},
        "decode": {"max_new_tokens": max_new_tokens, **decode},
    }
    for part, values in given.items():
        data[part].update({name: value for name, value in values.items() if value is not None})
    if out is not None:
        data["out"] = Path(out)
    return RunConfig.build(data, "record()")
