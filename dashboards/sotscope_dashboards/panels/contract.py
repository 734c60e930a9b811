"""The contract of a panel: one view of a scene, a pure function of it, testable without a browser."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import pandas as pd

from sotscope_dashboards.scene import Scene

Kind = Literal["figure", "grid", "list"]


class Panel(ABC):
    """One file each, one line in ``catalog.py``. It holds no state and never raises for odd data: a scene without a
    run, without rows, with one row, or with nothing finite is drawn as a sentence.

    ``kind`` says what ``draw`` returns: a ``figure`` ({"data", "layout"} for plotly, arrays as ``style.typed``), a
    ``grid`` ({"columns", "rows"} for AG Grid), or a ``list`` (what ``assets/<name>.js`` draws). All of it is strict
    JSON (``plain``). ``shows``, ``look_for`` and ``not_meant`` are the texts behind its `?`, one sentence each.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    kind: ClassVar[Kind] = "figure"
    shows: ClassVar[str]
    look_for: ClassVar[str]
    not_meant: ClassVar[str]
    by_cursor: ClassVar[bool] = False
    """Whether the picture depends on the cursor; others are not drawn anew when it moves."""
    rest_ms: ClassVar[int] = 1000
    """How long a picture that only grew rests while tokens come; 0 for what costs next to nothing."""

    @abstractmethod
    def draw(self, scene: Scene) -> dict[str, Any]:
        """What the page shows, in its strict-JSON form."""

    @abstractmethod
    def table(self, scene: Scene) -> pd.DataFrame:
        """The numbers behind the picture, for CSV: one line a point, tokens by position and label."""
