"""The decode steps that rows of a view belong to, and what kind of word a token is."""

from __future__ import annotations

import numpy as np
import pandas as pd

from sotscope.analysis.view import View
from sotscope.store.tokens import Pieces

CLASSES = ("word start", "continuation", "number", "punctuation", "whitespace", "special")


def steps_of(view: View) -> pd.DataFrame:
    """The steps of the run that have a row in the view, as ``run.steps`` (times in nanoseconds) with ``first``, the
    index of the step's first row in the run."""
    steps: pd.DataFrame = view.run.steps
    rows = steps.rows.to_numpy(np.int64)
    ends = np.minimum(np.cumsum(rows), len(view.run))
    firsts = np.minimum(np.cumsum(rows) - rows, len(view.run))
    seen = np.zeros(len(view.run) + 1, np.int64)
    seen[1 + view.rows] = 1
    before = np.cumsum(seen)
    steps["first"] = firsts
    found: pd.DataFrame = steps[before[ends] > before[firsts]]
    return found.reset_index(drop=True)


def word_class(pieces: Pieces, token: int, before: int = -1) -> str:
    """One of ``CLASSES``. ``before`` is the token in front: after a line end or a special token a word starts without
    a space. A token that is part of a character continues one."""
    if token in pieces.special:
        return "special"
    data = pieces.data.get(token, b"")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return "continuation"
    bare = text.strip()
    if not bare:
        return "whitespace"
    if not any(char.isalnum() for char in bare):
        return "punctuation"
    if not any(char.isalpha() for char in bare):
        return "number"
    front = pieces.data.get(before, b"")
    fresh = before in pieces.special or front[-1:].isspace()
    return "word start" if text[0].isspace() or fresh else "continuation"
