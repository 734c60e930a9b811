"""What waits for the disk, bounded in bytes: the decode loop puts, one writer thread takes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Ring(Generic[T]):
    """A queue of at most ``limit`` bytes (one item always fits). ``put`` waits when it is full: ``stalled_ms``.

    Once it is given up, nobody waits any more and what is put is dropped.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.stalled_ms = 0.0
        self._waiting: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._closed = False
        self._given_up = False

    def put(self, item: T, size: int) -> bool:
        """Add an item; False when the ring is closed."""
        with self._changed:
            if self._given_up:
                return True
            if self._closed:
                return False
            if not self._fits(size):
                start = time.perf_counter()
                self._changed.wait_for(lambda: self._fits(size) or self._given_up)
                self.stalled_ms += (time.perf_counter() - start) * 1e3
            self._waiting.append((item, size))
            self._bytes += size
            self._changed.notify_all()
        return True

    @property
    def idle(self) -> bool:
        """Nothing waits, nothing is being worked on, and there is still something to work for."""
        return not (self._waiting or self._closed or self._given_up)

    def _fits(self, size: int) -> bool:
        return not self._waiting or self._bytes + size <= self.limit

    def items(self) -> Iterator[T]:
        """What is put, one after the other; each counts until the next is asked for. Ends when closed and empty."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                item, size = self._waiting[0]
            yield item
            with self._changed:
                self._waiting.popleft()
                self._bytes -= size
                self._changed.notify_all()

    def flush(self) -> None:
        """Wait until nothing waits, or the ring is given up."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting or self._given_up)

    def close(self) -> None:
        """Take nothing more; what waits is still handed out."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def give_up(self) -> None:
        """Nobody waits any more."""
        with self._changed:
            self._given_up = True
            self._changed.notify_all()
