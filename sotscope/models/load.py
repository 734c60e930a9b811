"""Load a causal language model with its tokenizer: ``smollm2``, a local folder, a GGUF file or a hub id."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from sotscope.errors import ModelError
from sotscope.models import embedded

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Loaded:
    """A model ready to decode, its tokenizer, and where it came from."""

    model: Any
    tokenizer: Any
    name: str
    source: str
    origin: str = ""
    quantisation: str = ""

    def describe(self) -> dict[str, Any]:
        """Plain values that go into every run: name, source, type, sizes, dtype, fingerprint of the weights."""
        config = self.model.config
        return {
            "name": self.name,
            "source": self.source,
            "origin": self.origin,
            "quantisation": self.quantisation or "none",
            "model_type": config.model_type,
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "parameters": self.model.num_parameters(),
            "attention": getattr(config, "_attn_implementation", "") or "none",
            "fingerprint": fingerprint(self.model),
        }


def fingerprint(model: Any) -> str:
    """A short hash of a model's config sizes and of a sample of every weight: tells one base from another."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        flat = weight.detach().flatten()
        stride = max(1, flat.numel() // 64)
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        digest.update(flat[::stride][:64].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def load(
    name: str = embedded.NAME,
    *,
    dtype: str | None = None,
    device: str | None = None,
    device_map: str | dict[str, Any] | None = None,
    attn_implementation: str | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> Loaded:
    """Load ``name``: "smollm2" (embedded), a folder, a ``.gguf`` file, or a hub id.

    ``dtype``: float32, bfloat16 or float16; by default the type of the weights (float32 for GGUF). ``device``: "cpu",
    "cuda", "cuda:1"; ``device_map`` as transformers takes it. ``report`` is told what takes time.
    Raises ModelError with one line that says what to do.
    """
    if dtype is not None and dtype not in DTYPES:
        raise ModelError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}.")
    if device is not None and device_map is not None:
        raise ModelError("give either device or device_map, not both.")
    folder, options = _resolve(name, report)
    wanted: dict[str, Any] = {"dtype": DTYPES[dtype] if dtype else "auto"}
    if device_map is not None:
        wanted["device_map"] = device_map
    if attn_implementation is not None:
        wanted["attn_implementation"] = attn_implementation
    report(f"loading {name}")
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(folder, **options)
        if getattr(config, "is_encoder_decoder", False):
            raise ModelError(f"{config.model_type} is an encoder-decoder model; sotscope decodes decoder-only models.")
        model: Any = AutoModelForCausalLM.from_pretrained(folder, **options, **wanted)
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
        if device is not None:
            model = model.to(device)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(_explain(name, error)) from error
    finally:
        if bars:
            transformers_logging.enable_progress_bar()
    source = name if name == embedded.NAME else str(folder)  # where the cache is, is nobody's business
    return Loaded(model.eval(), tokenizer, name, source, *_provenance(name, folder, options))


def _resolve(name: str, report: Callable[[str], None]) -> tuple[str, dict[str, Any]]:
    """What from_pretrained is given: a folder or hub id, and ``gguf_file`` for a GGUF."""
    if not name.strip():
        raise ModelError("no model given; try --model smollm2.")
    if name == embedded.NAME:
        return str(embedded.converted_folder(report)), {"local_files_only": True}
    path = Path(name).expanduser()
    if name.endswith(".gguf"):
        if not path.is_file():
            raise ModelError(f"{name} does not exist.")
        report(f"de-quantising {path.name} (transformers reads GGUF into plain weights)")
        return str(path.parent.absolute()), {"gguf_file": path.name, "local_files_only": True}
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{name} has no config.json; it is not a model folder in Hugging Face format.")
        return str(path.absolute()), {"local_files_only": True}
    if path.exists():
        raise ModelError(f"{name} is neither a model folder nor a .gguf file.")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(f"the folder {name} does not exist.")
    return name, {}


def _explain(name: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    local = not Path(name).exists() and name != embedded.NAME and not name.endswith(".gguf")
    if local and _is_hub_failure(error, text):
        return (
            f"cannot get {name!r} from the hub ({type(error).__name__}); with no network give a local folder: "
            f"--model /path/to/folder with config.json, weights and tokenizer (or --model {embedded.NAME})."
        )
    if isinstance(error, PermissionError):
        return f"cannot read {name}: permission denied."
    return f"cannot load {name}: {text[:300]}"


def _is_hub_failure(error: Exception, text: str) -> bool:
    words = ("connect", "offline", "huggingface.co", "not a local folder", "Max retries", "resolve", "cached")
    return isinstance(error, OSError | ConnectionError) or any(word in text for word in words)


def _provenance(name: str, folder: str, options: dict[str, Any]) -> tuple[str, str]:
    note = Path(folder) / embedded.PROVENANCE
    if note.is_file():
        data = json.loads(note.read_text())
        return str(data.get("origin", "")), str(data.get("quantisation", ""))
    if "gguf_file" in options:
        return (
            f"GGUF {options['gguf_file']}",
            f"GGUF (de-quantised by transformers from {options['gguf_file']})",
        )
    config = Path(folder) / "config.json"
    if config.is_file():
        quantised = json.loads(config.read_text()).get("quantization_config") or {}
        return "", str(quantised.get("quant_method", ""))
    return ("hub" if not os.path.isdir(name) else ""), ""
