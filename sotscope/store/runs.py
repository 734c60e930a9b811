"""Where runs go and which there are."""

from __future__ import annotations

import re
import time
from pathlib import Path

from sotscope.store import layout

DEFAULT_FOLDER = Path("runs")


def default_path(mode: str, text: str, folder: Path = DEFAULT_FOLDER) -> Path:
    """``runs/<time>-<mode>-<slug>.sot``; a number is added when that name is taken."""
    words = re.sub(r"<[^>]*>", " ", text)
    words = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
    slug = words if len(words) <= 32 else words[:33].rpartition("-")[0] or words[:32]
    slug = slug or "prompt"
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{mode}-{slug}"
    path = folder / f"{stem}{layout.SUFFIX}"
    number = 2
    while path.exists():
        path = folder / f"{stem}-{number}{layout.SUFFIX}"
        number += 1
    return path


def find_runs(folder: Path = DEFAULT_FOLDER) -> list[Path]:
    """Folders below ``folder`` that hold a journal, oldest name first."""
    return sorted(path.parent for path in folder.glob(f"*/{layout.JOURNAL}"))
