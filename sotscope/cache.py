"""Where what is made once a model is kept: converted weights, heads, measured widths."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path


def cache_folder() -> Path:
    """``$SOTSCOPE_CACHE``, else the user's cache directory."""
    given = os.environ.get("SOTSCOPE_CACHE")
    return Path(given) if given else user_cache_path("sotscope")
