"""From the options of ``record`` and its --config file to one RunConfig; a given option overrides the file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sotscope.catalog import DRAFTERS, GATES
from sotscope.cli.options import parse_bytes
from sotscope.config import RunConfig
from sotscope.errors import ConfigError, DecodeError, PromptError, StoreError
from sotscope.registry import unknown

PLACES = {
    "model": "model.name",
    "dtype": "model.dtype",
    "device": "model.device",
    "device_map": "model.device_map",
    "attn_implementation": "model.attn_implementation",
    "prompt": "input.prompt",
    "prompt_file": "input.prompt_file",
    "messages": "input.messages",
    "system": "input.system",
    "raw": "input.raw",
    "source": "input.source",
    "sites": "capture.sites",
    "layers": "capture.layers",
    "store_dtype": "capture.dtype",
    "attn_entropy": "capture.attn_entropy",
    "attn_layers": "capture.attn_layers",
    "prompt_logits": "capture.prompt_logits",
    "last_row": "capture.last_row",
    "top": "capture.top_k",
    "modules": "capture.modules",
    "ring_mb": "capture.ring_mb",
    "durable": "capture.durable",
    "self_check": "capture.self_check",
    "embed_head": "capture.embed_head",
    "mode": "decode.mode",
    "force": "decode.force",
    "window": "decode.window",
    "max_new_tokens": "decode.max_new_tokens",
    "temperature": "decode.temperature",
    "top_p": "decode.top_p",
    "top_k": "decode.top_k",
    "repetition_penalty": "decode.repetition_penalty",
    "no_repeat_ngram_size": "decode.no_repeat_ngram_size",
    "min_new_tokens": "decode.min_new_tokens",
    "seed": "decode.seed",
    "eos": "decode.eos_token_id",
    "stop": "decode.stop",
    "prefill_block": "decode.prefill_block",
    "policy": "decode.policy",
    "typical_epsilon": "decode.typical.epsilon",
    "typical_alpha": "decode.typical.alpha",
    "drafter": "decode.drafter",
    "draft_temperature": "decode.draft.temperature",
    "correction": "decode.draft.correction",
    "draft_floor": "decode.draft.floor",
    "draft_dtype": "decode.draft.dtype",
    "draft_sample": "decode.draft.sample",
    "record_predicted": "decode.draft.record_states",
    "lookup_window": "decode.lookup.window",
    "lookup_longest": "decode.lookup.longest",
    "lookup_shortest": "decode.lookup.shortest",
    "combine": "decode.combine",
    "gates": "decode.gates",
    "controller": "decode.controller",
    "guard": "decode.guard",
    "monitor": "health.monitor",
    "monitors": "health.monitors",
    "baseline": "health.baseline",
    "recover": "health.recover",
    "recover_on": "health.recover_on",
    "attempts": "health.attempts",
    "intervene": "interventions",
    "measure": "measure",
    "out": "out",
    "max_bytes": "max_bytes",
}
"""Parameter of the command to its place in the settings. Every setting has one; a test sees to it."""

SAMPLING = ("temperature", "top_p", "top_k")
PROMPTS = ("prompt", "prompt_file", "messages")
CONTROLLERS = ("cost", "lstm")
NEEDS = {
    "combine": ("mode", "combine"),
    "typical_epsilon": ("policy", "typical"),
    "typical_alpha": ("policy", "typical"),
}
"""Options that do nothing without a certain value of another."""


def run_config(options: Mapping[str, Any], file: Path | None) -> RunConfig:
    """The settings of ``options`` (parameter names to values; None: not given) on top of those of ``file``.

    Raises ConfigError or PromptError with one line.
    """
    data = RunConfig.from_yaml(file).model_dump(exclude_unset=True) if file else {}
    given = {name: value for name, value in _parsed(options).items() if value is not None}
    if "source" in given:
        data = _of_source(given, data)
    _contradictions(given, data)
    for name, value in given.items():
        if name in PLACES:
            _put(data, PLACES[name].split("."), value)
    settings = RunConfig.build(data, "settings")
    for name, (other, wanted) in NEEDS.items():
        if name in given and (found := getattr(settings.decode, other)) != wanted:
            raise ConfigError(f"{_flag(name)} is for --{other} {wanted}, not for {found}; leave one of them out.")
    return settings


def _put(data: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    """Set what is at ``keys``. Of a mapping that is there already, what ``value`` does not name stays."""
    for key in keys[:-1]:
        data = data.setdefault(key, {})
    if isinstance(value, Mapping):
        inner = data.setdefault(keys[-1], {})
        for key, entry in value.items():
            _put(inner, [key], entry)
    else:
        data[keys[-1]] = value


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _parsed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Values of options that are given as text: lists, pairs, sizes, a file of messages."""
    out = {name: value for name, value in options.items() if value not in (None, [])}
    if out.get("prompt_argument") is not None:
        if out.get("prompt") is not None:
            raise PromptError("the prompt is given twice, as an argument and with --prompt.")
        out["prompt"] = out.pop("prompt_argument")
    if "sites" in out:
        out["sites"] = [name for part in out["sites"] for name in _names(part)]
    if "combine" in out:
        out["combine"] = _names(out["combine"])
    for name in ("gates", "monitors", "recover"):
        if name in out:
            out[name] = dict(with_options(name, text) for text in out[name])
    if "recover_on" in out:
        out["recover_on"] = _names(out["recover_on"])
    if "modules" in out:
        out["modules"] = dict(_pair(text) for text in out["modules"])
    if "messages" in out:
        out["messages"] = read_messages(out["messages"])
    if "max_bytes" in out:
        out["max_bytes"] = parse_bytes(out["max_bytes"])
    return out


def _contradictions(given: Mapping[str, Any], data: dict[str, Any]) -> None:
    """What a given option replaces in the file, and which options cannot be given together."""
    prompts = [name for name in PROMPTS if name in given]
    if len(prompts) > 1:
        names = " and ".join(map(_flag, prompts))
        raise PromptError(f"{names} were given; choose one.")
    if prompts:
        for name in PROMPTS:
            data.setdefault("input", {}).pop(name, None)
    sampling = [name for name in SAMPLING if name in given]
    decode = data.setdefault("decode", {})
    if sampling or given.get("greedy"):
        decode.pop("do_sample", None)
    if given.get("greedy"):
        if sampling:
            names = ", ".join(map(_flag, sampling))
            raise ConfigError(f"--greedy takes the likeliest token, so {names} would do nothing; leave one out.")
        decode.update(dict.fromkeys(SAMPLING), do_sample=False)
    if "controller" in given:
        for name in set(CONTROLLERS) - {given["controller"]}:
            decode.get("gates", {}).pop(name, None)
    if given.get("guard") is False:
        decode.get("gates", {}).pop("guard", None)
    if "combine" in given and "mode" not in given:
        decode.setdefault("mode", "combine")


def _names(text: str) -> list[str]:
    """The entries of a comma list."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _of_source(given: Mapping[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """The settings of the run that is gone on from, with those of the file on top; ``out`` is not taken over."""
    for name in PROMPTS:
        if name in given:
            raise PromptError(f"--from goes on with the text of a run; leave out {_flag(name)}.")
    from sotscope.sources import read_source

    source = read_source(given["source"])
    found = source.settings
    for part, values in data.items():
        found[part] = {**found[part], **values} if isinstance(values, dict) else values
    found["input"], found["out"] = {}, data.get("out")
    if "max_new_tokens" not in given and "max_new_tokens" not in data.get("decode", {}):
        found["decode"]["max_new_tokens"] = max(1, found["decode"]["max_new_tokens"] - source.written)
    return found


_FLAGS = {
    "gates": ("--gate", "periodic:every=48"),
    "monitors": ("--monitors", "repetition:tokens=48"),
    "recover": ("--recover", "rollback:hold=96"),
}


def with_options(kind: str, text: str) -> tuple[str, dict[str, Any]]:
    """``periodic`` or ``entropy:threshold=2.3,rest=8``."""
    flag, example = _FLAGS[kind]
    name, colon, rest = text.partition(":")
    pairs = [part.partition("=") for part in _names(rest)]
    if not name.strip() or (colon and not pairs) or not all(key.strip() and value.strip() for key, _, value in pairs):
        raise ConfigError(f"{flag} {text!r} is not NAME or NAME:PARAM=VALUE,...; for example {example}.")
    return name.strip(), {key.strip(): _number(value.strip()) for key, _, value in pairs}


def _number(text: str) -> int | float | str:
    """A number where it is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _pair(text: str) -> tuple[str, str]:
    site, equals, path = text.partition("=")
    if not (equals and site.strip() and path.strip()):
        raise ConfigError(f"--module {text!r} is not SITE=PATH; for example attn_out=attention.dense.")
    return site.strip(), path.strip()


def read_messages(path: Path) -> list[dict[str, str]]:
    """A conversation from a JSON file: a list of {"role": ..., "content": ...}. Raises PromptError."""
    try:
        found = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"cannot read {path}: {getattr(error, 'strerror', error)}.") from error
    except ValueError as error:
        raise PromptError(f"{path} is not JSON: {error}.") from error
    if not isinstance(found, list) or not found:
        raise PromptError(f'{path} must hold a list of messages: [{{"role": "user", "content": "..."}}].')
    for number, message in enumerate(found):
        if not isinstance(message, dict) or set(message) != {"role", "content"}:
            raise PromptError(f"{path}: message {number} must have role and content, and nothing else.")
        if not all(isinstance(value, str) for value in message.values()):
            raise PromptError(f"{path}: role and content of message {number} must be text.")
    return found


def check_early(settings: RunConfig) -> None:
    """What can be seen without a model is refused before one is loaded. Raises a SotscopeError."""
    from sotscope.monitoring import check_health

    given = settings.input
    if all(value is None for value in (given.prompt, given.prompt_file, given.messages, given.source)):
        raise PromptError('no prompt given; try: sotscope record "Why is the sky blue?"')
    if given.prompt is not None and not given.prompt.strip():
        raise PromptError("the prompt is empty; give some text.")
    decode = settings.decode
    for mode in (decode.mode, *(decode.combine if decode.mode == "combine" else [])):
        if mode not in DRAFTERS:
            raise DecodeError(unknown("mode", mode, DRAFTERS.names()))
    for name in decode.gates:
        if name not in GATES:
            raise DecodeError(unknown("gate", name, GATES.names()))
    check_health(settings.health)
    if settings.out is not None and settings.out.exists():
        raise StoreError(f"{settings.out} exists already; choose another --out.")


def check_sites(names: Sequence[str]) -> None:
    """Refuse an unknown site before a model is loaded; the sites' names need torch to be known."""
    from sotscope.capture.plan import site_names

    site_names(names)


def check_late(settings: RunConfig) -> None:
    """What can be seen without a model, yet not without torch. Raises a SotscopeError."""
    from sotscope.decode.gates.options import check_gates

    check_sites(settings.capture.sites)
    check_gates(settings.decode.gates)
