"""What the tests of decoding share: settings for a recording with drafts, and a trained drafter's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sotscope.config import RunConfig
from sotscope.testing.bundles import tiny_bundle
from sotscope.testing.drafters import greedy

PROMPT = [5, 17, 3, 88, 41]
UNCLOCKED: dict[str, Any] = {"controller": "none", "guard": False}
"""Gates that go by the clock would make tests depend on the machine."""
FLOAT = {"dtype": "float32", "floor": 0.0}


def words(ids: list[int]) -> str:
    return " ".join(map(str, ids))


def settings(
    out: Path | None = None, *, prompt: str = "5 17 3 88 41", sites: tuple[str, ...] = ("resid",), **decode: Any
) -> RunConfig:
    data = {"input": {"prompt": prompt}, "capture": {"sites": list(sites)}, "out": out}
    return RunConfig.model_validate({**data, "decode": {**UNCLOCKED, "draft": FLOAT, **decode}})


def bundle_folder(model: Any, folder: Path, *, kind: str = "attention", prompt: list[int] = PROMPT) -> Path:
    """An untrained drafter in ``folder``. It knows only the tokens of the text, so that it is right at times."""
    tiny_bundle(model, kind, vocabulary=greedy(model, prompt, 40)).save(folder)
    return folder


def trained(folder: Path, mode: str = "sot", **decode: Any) -> RunConfig:
    """Settings of a recording that drafts with what is in ``folder``: ``go(model, None, config=trained(...))``."""
    return settings(mode=mode, drafter=str(folder), **decode)
