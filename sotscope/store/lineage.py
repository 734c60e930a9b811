"""Which rows make up a sequence: its ancestors' up to where it left them, then its own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sotscope.errors import StoreError


def lineage_rows(rows: NDArray[Any], sequences: NDArray[Any], seq: int) -> NDArray[np.int64]:
    """Row indices of sequence ``seq`` in the order of positions.

    A branch with ``parent`` and ``parent_pos`` takes the parent's lineage below ``parent_pos``. Of several rows at one
    position of one sequence the last counts. Raises StoreError for an unknown sequence or a lineage that loops.
    """
    known = {int(record["seq_id"]): record for record in sequences}
    if seq not in known:
        raise StoreError(
            f"sequence {seq} is not in this run; there are {', '.join(map(str, sorted(known))) or 'none'}."
        )
    parts: list[NDArray[np.int64]] = []
    limit = np.iinfo(np.int32).max
    current, seen = seq, set[int]()
    while current >= 0:
        if current in seen or current not in known:
            raise StoreError(f"the lineage of sequence {seq} is broken at sequence {current}.")
        seen.add(current)
        own = np.flatnonzero((rows["seq_id"] == current) & (rows["pos"] < limit))
        parts.append(own[np.argsort(rows["pos"][own], kind="stable")])
        limit = min(limit, int(known[current]["parent_pos"])) if known[current]["parent"] >= 0 else limit
        current = int(known[current]["parent"])
    joined = np.concatenate(parts[::-1])
    positions = rows["pos"][joined]
    last_of_position = np.append(positions[1:] != positions[:-1], True) if len(joined) else np.zeros(0, bool)
    found: NDArray[np.int64] = joined[last_of_position]
    return found
