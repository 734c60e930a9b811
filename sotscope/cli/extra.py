"""The optional half: torch and transformers, imported late and quietly."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from sotscope.errors import SotscopeError

PACKAGES = ("torch", "transformers", "accelerate", "gguf", "filelock", "psutil", "safetensors", "tokenizers")


@contextmanager
def capture_extra(command: str) -> Iterator[None]:
    """Around the imports of a command that runs a model: one line instead of an ImportError."""
    hush()
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in PACKAGES:
            raise
        raise SotscopeError(f"{command} needs torch and transformers: pip install 'sotscope[capture]'") from None


def hush() -> None:
    """Keep what libraries write to stderr out of the way; a level that the user set stays."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    warnings.filterwarnings("ignore", module=r"(torch|transformers|huggingface_hub|accelerate|gguf)(\.|$)")
