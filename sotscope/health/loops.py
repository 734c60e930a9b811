"""What it means that a text loops: the plain definition that scores and monitors are measured against."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

TURNS = 3
TOKENS = 24
LONGEST = 128


def loop_start(ids: Sequence[int]) -> int | None:
    """After how many of the generated tokens ``ids`` the text loops for the first time; None: it never does.

    It loops where its newest tokens are a cycle of 1 to ``LONGEST`` tokens that fills the last ``TURNS`` periods and at
    least ``TOKENS`` tokens. Nothing of the prompt counts.
    """
    tokens = np.asarray(ids, np.int64)
    first = len(tokens) + 1
    for period in range(1, min(LONGEST, len(tokens) // TURNS) + 1):
        needed = max((TURNS - 1) * period, TOKENS - period)
        differs = np.flatnonzero(tokens[period:] != tokens[:-period])
        edges = np.concatenate(([-1], differs, [len(tokens) - period]))
        long = np.flatnonzero(np.diff(edges) > needed)
        if len(long):
            first = min(first, int(edges[long[0]]) + 1 + needed + period)
    return first if first <= len(tokens) else None
