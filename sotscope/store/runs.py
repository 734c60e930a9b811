"""Where runs go and which there are."""

from __future__ import annotations

import re
import time
from pathlib import Path

from sotscope.errors import StoreError
from sotscope.store import layout

DEFAULT_FOLDER = Path("runs")


def default_path(mode: str, text: str, folder: Path = DEFAULT_FOLDER) -> Path:
    """``runs/<time>-<mode>-<slug>.sot``; a number is added when that name is taken."""
    words = re.sub(r"<[^>]*>", " ", text)
    words = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")
    slug = words if len(words) <= 24 else words[:25].rpartition("-")[0] or words[:24]
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


def make_run_folder(path: Path) -> None:
    """Make the folder of a run, mode 0700; a runs folder made on the way gets a .gitignore (prompts are private).

    Raises StoreError when it exists already, or cannot be made.
    """
    parent = path.parent
    try:
        if not parent.exists():
            parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # another recording may make it just now
            (parent / ".gitignore").write_text("*\n")
        path.mkdir(mode=0o700)
    except FileExistsError:
        raise StoreError(f"{path} exists already; choose another --out.") from None
    except OSError as error:
        raise StoreError(f"cannot create {path}: {error.strerror}; choose another --out.") from error
