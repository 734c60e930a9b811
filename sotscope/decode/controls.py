"""Changing how a sequence is decoded while it is being decoded, from any thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from sotscope.events import Command


class Controls:
    """Settings to change at the next step boundary; of several changes in between the last one counts.

    ``check`` raises for a change that cannot be made, in the thread that asks for it. What can be changed is up to
    whoever decodes: ``recording()`` takes mode, window, policy, gates and the drafter's own settings.
    """

    def __init__(self, check: Callable[[Mapping[str, Any]], object] = lambda changes: None) -> None:
        self.check = check
        self._lock = threading.Lock()
        self._pending: dict[str, Any] = {}
        self._asked = 0

    def set(self, **changes: Any) -> int:
        """Ask for ``changes``; returns the number that the run's `command` event will have, or a later one's."""
        self.check(changes)
        with self._lock:
            self._pending.update(changes)
            self._asked += 1
            return self._asked

    def take(self) -> Command | None:
        """What has been asked for since the last call, as one command; None for nothing."""
        if not self._pending:  # a plain look is enough: a change that comes now waits for the next step
            return None
        with self._lock:
            changes, self._pending = self._pending, {}
            return Command(self._asked, changes)
