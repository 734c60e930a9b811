"""The states of the last committed rows, for drafters that look back."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor


class History:
    """Rows [state, dim] of positions ``start`` to ``end``, the newest ``keep`` of them (a step's more, at most)."""

    def __init__(self, keep: int, layers: tuple[int, ...] = ()) -> None:
        self.keep = max(1, keep)
        self.layers = layers
        """The blocks whose states the rows hold, the lm_head's input after them."""
        self._parts: deque[Tensor] = deque()
        self.start = 0
        self.end = 0

    def add(self, pos: int, rows: Tensor) -> None:
        """Rows from position ``pos`` on. Where they do not follow the last ones, those are forgotten."""
        if not len(rows):
            return
        if pos != self.end:
            self._parts.clear()
            self.start = pos
        self._parts.append(rows)
        self.end = pos + len(rows)
        while self.end - self.start - len(self._parts[0]) >= self.keep:
            self.start += len(self._parts.popleft())

    def since(self, pos: int) -> Tensor:
        """Rows from ``pos`` (not before ``start``) to the end, [row, state, dim]."""
        wanted, at = [], self.end
        for part in reversed(self._parts):
            at -= len(part)
            wanted.append(part[max(0, pos - at) :])
            if at <= pos:
                break
        return wanted[0] if len(wanted) == 1 else torch.cat(wanted[::-1])
