"""From the options of ``record`` and its --config file to one RunConfig; a given option overrides the file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sotscope.catalog import DRAFTERS
from sotscope.cli.options import parse_bytes
from sotscope.config import RunConfig
from sotscope.errors import ConfigError, PromptError, StoreError

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
    "out": "out",
    "max_bytes": "max_bytes",
}
"""Parameter of the command to its place in the settings. Every setting has one; a test sees to it."""

SAMPLING = ("temperature", "top_p", "top_k")
PROMPTS = ("prompt", "prompt_file", "messages")


def run_config(options: Mapping[str, Any], file: Path | None) -> RunConfig:
    """The settings of ``options`` (parameter names to values; None: not given) on top of those of ``file``.

    Raises ConfigError or PromptError with one line.
    """
    data = RunConfig.from_yaml(file).model_dump(exclude_unset=True) if file else {}
    given = {name: value for name, value in _parsed(options).items() if value is not None}
    _contradictions(given, data)
    for name, value in given.items():
        if name in PLACES:
            section, _, key = PLACES[name].rpartition(".")
            (data.setdefault(section, {}) if section else data)[key] = value
    return RunConfig.build(data, "settings")


def _parsed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Values of options that are given as text: lists, pairs, sizes, a file of messages."""
    out = {name: value for name, value in options.items() if value not in (None, [])}
    if out.get("prompt_argument") is not None:
        if out.get("prompt") is not None:
            raise PromptError("the prompt is given twice, as an argument and with --prompt.")
        out["prompt"] = out.pop("prompt_argument")
    if "sites" in out:
        out["sites"] = [name.strip() for part in out["sites"] for name in part.split(",") if name.strip()]
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
        names = " and ".join(f"--{name.replace('_', '-')}" for name in prompts)
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
            names = ", ".join(f"--{name.replace('_', '-')}" for name in sampling)
            raise ConfigError(f"--greedy takes the likeliest token, so {names} would do nothing; leave one out.")
        decode.update(dict.fromkeys(SAMPLING), do_sample=False)


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
    given = settings.input
    if given.prompt is None and given.prompt_file is None and given.messages is None:
        raise PromptError('no prompt given; try: sotscope record "Why is the sky blue?"')
    if given.prompt is not None and not given.prompt.strip():
        raise PromptError("the prompt is empty; give some text.")
    DRAFTERS.get(settings.decode.mode)
    if settings.out is not None and settings.out.exists():
        raise StoreError(f"{settings.out} exists already; choose another --out.")


def check_sites(names: Sequence[str]) -> None:
    """Refuse an unknown site before a model is loaded; the sites' names need torch to be known."""
    from sotscope.capture.plan import site_names

    site_names(names)
