"""The finished parts of a bench, one JSON file each, so that it goes on where it was stopped."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sotscope.errors import HealthError
from sotscope.plain import plain

_ABOUT = "about.json"


class Parts:
    """Parts in ``folder``, all of the same bench: ``about`` says which.

    Raises HealthError for a folder that holds the parts of another one, or a file that is no part.
    """

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HealthError(f"cannot make {folder}: {error.strerror}.") from error
        if self.get(_ABOUT, lambda: about) != plain(about):
            raise HealthError(
                f"{folder} holds the parts of a bench with another model, other prompts or another length; give "
                "another folder to --resume."
            )

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        """The part called ``name``: from its file, or made now and written there."""
        path = self._folder / name
        if path.is_file():
            try:
                return json.loads(path.read_text())
            except (ValueError, OSError) as error:
                raise HealthError(f"{path} is no part of a bench ({error}); delete it, and it is made anew.") from error
        made = plain(make())
        written = path.with_suffix(".tmp")
        written.write_text(json.dumps(made))
        written.replace(path)
        return made
