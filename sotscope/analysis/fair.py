"""Rows that stand out in some layers only.

They are no sinks by ``facts``, which asks for many layers, and yet what every mean, component and similarity of those
layers would be about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sotscope.analysis.facts import sinks
from sotscope.analysis.moments import Subject
from sotscope.analysis.view import View
from sotscope.analysis.wording import called

SHOWN = 8
"""Rows that are named."""


def fair_in(view: View, chosen: Subject, layers: Sequence[int] | None = None) -> Subject:
    """``chosen`` without the rows whose norm is far above the others' in any of its layers (in ``layers``, if given);
    what that leaves out is one line more.
    """
    columns = [k for k, name in enumerate(chosen.names) if layers is None or name in layers or len(chosen.names) == 1]
    far = np.array([sinks(chosen.found.norm[:, [k]]) for k in columns])
    far &= chosen.keep
    apart = far.any(0)
    if not apart.any():
        return chosen
    at = np.flatnonzero(apart)
    where = called([chosen.names[k] for k, rows in zip(columns, far, strict=True) if rows.any()])
    named = ", ".join(f"{i} {view.labels[i]!r}" for i in at[:SHOWN])
    more = f" and {len(at) - SHOWN} more" if len(at) > SHOWN else ""
    line = f"{len(at)} of {len(view)} rows (norm far above the others' in {where}): token {named}{more}"
    return replace(chosen, keep=chosen.keep & ~apart, left_out=[*chosen.left_out, line])
