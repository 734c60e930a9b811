"""Who may steer: one tab at a time; the others watch, until they take over or it is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

SILENCE_S = 8.0
"""A tab that has not looked for so long is gone."""


class Control:
    """Thread-safe. Tabs are known by an id that each makes for itself."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._holder = ""
        self._seen = 0.0

    def look(self, tab: str) -> str:
        """The tab looked: "you", "free", or "other" (somebody else steers)."""
        with self._lock:
            if tab == self._holder:
                self._seen = self._now()
            return "you" if tab == self._holder else "free" if self._free() else "other"

    def take(self, tab: str, *, force: bool = False) -> bool:
        """Whether ``tab`` steers now. ``force`` takes it from another."""
        with self._lock:
            if not (force or tab == self._holder or self._free()):
                return False
            self._holder, self._seen = tab, self._now()
            return True

    def leave(self, tab: str) -> None:
        """``tab`` is closed."""
        with self._lock:
            if tab == self._holder:
                self._holder = ""

    def _free(self) -> bool:
        return not self._holder or self._now() - self._seen > SILENCE_S


class Turns:
    """At most one request of a tab is worked on; one that comes meanwhile is told so at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._busy: set[str] = set()

    def enter(self, tab: str) -> bool:
        with self._lock:
            if tab in self._busy:
                return False
            self._busy.add(tab)
            return True

    def leave(self, tab: str) -> None:
        with self._lock:
            self._busy.discard(tab)
