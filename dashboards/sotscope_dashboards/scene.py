"""A run as a panel sees it: the rows of one lineage in a range, and a cursor among them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sotscope.store.reader import Run
from sotscope.store.tokens import Tokens
from sotscope_dashboards import lineage
from sotscope_dashboards.look import Look

POSITIONS = ("position", "pos", "onset")
"""Where an event's data says which position it is about, the first that is there."""


@dataclass(frozen=True)
class Scene:
    """``run`` None: there is none to see, and ``why`` says so in one sentence. Nothing is read before it is asked for.

    Rows are counted along the lineage of ``seq``: ``total`` of them, ``start`` to ``stop`` in view.
    """

    look: Look
    run: Run | None = None
    why: str = "No run yet: press Start."
    memo: dict[Any, Any] = field(default_factory=dict)
    """What a panel keeps of this run between looks (words that were worked out, axes that were fitted); small."""

    @cached_property
    def lineage(self) -> NDArray[np.int64]:
        """[token] indices into the run of all rows of the sequence."""
        if self.run is None:
            return np.zeros(0, np.int64)
        return self.run.rows(self.seq if len(self.sequences) > 1 else None)

    @cached_property
    def seq(self) -> int:
        """The sequence in view: the chosen one; else the first, or what recoveries made of it."""
        return self.look.seq if self.look.seq >= 0 else lineage.final(0, self.heirs)

    @cached_property
    def sequences(self) -> list[dict[str, Any]]:
        """seq_id, parent, parent_pos and finish of each."""
        if self.run is None:
            return []
        table = self.run.sequences[["seq_id", "parent", "parent_pos", "finish"]]
        return [{str(key): value for key, value in one.items()} for one in table.to_dict("records")]

    @cached_property
    def heirs(self) -> dict[int, int]:
        """{sequence: the one that a recovery went on with}."""
        return lineage.heirs(self.sequences, self.events("branch")) if len(self.sequences) > 1 else {}

    @property
    def total(self) -> int:
        return len(self.lineage)

    @cached_property
    def range(self) -> tuple[int, int]:
        """[start, stop) in view, within what there is."""
        if self.look.start is None or self.look.stop is None:
            return max(0, self.total - self.look.span), self.total
        start = min(self.look.start, max(0, self.total - 1))
        return start, max(start, min(self.look.stop, self.total))

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """[token] indices into the run of the rows in view."""
        return self.lineage[slice(*self.range)]

    @property
    def cursor(self) -> int:
        """The row under the cursor, counted along the lineage; the newest by default; -1 where there is no row."""
        last = self.total - 1
        return last if self.look.cursor is None else min(self.look.cursor, last)

    @property
    def layer(self) -> int:
        """The chosen layer's number, or the middle recorded one; -1 where there is none."""
        layers = self.layers
        if not layers:
            return -1
        return self.look.layer if self.look.layer in layers else layers[len(layers) // 2]

    @property
    def layers(self) -> list[int]:
        """All recorded layers."""
        return self.run.layers if self.run is not None else []

    @property
    def site(self) -> str:
        """The site of the heatmap: the chosen one, where it was recorded and has layers; else resid."""
        return self.look.site if self.look.site in self.layered_sites else "resid"

    @property
    def layered_sites(self) -> list[str]:
        """Recorded sites with a state in each layer (attention rows are no states)."""
        sites = self.run.spec.sites if self.run is not None else ()
        return [site.name for site in sites if site.layers is not None and site.dims[1] == "layer"]

    @property
    def shown_layers(self) -> list[int]:
        """The layers of the heatmap."""
        if self.run is not None and self.site != "resid":
            return self._between(list(self.run.spec.site(self.site).layers or ()))
        return self._between(self.layers)

    def _between(self, layers: list[int]) -> list[int]:
        low = self.look.low if self.look.low is not None else -1
        high = self.look.high if self.look.high is not None else 1 << 30
        return [layer for layer in layers if low <= layer <= high] or layers

    @cached_property
    def tokens(self) -> Tokens:
        """The tokens of the rows in view."""
        assert self.run is not None
        return self.run.tokens_at(self.rows)

    @cached_property
    def labels(self) -> list[str]:
        return self.tokens.labels

    def scalar(self, name: str, rows: NDArray[np.int64] | None = None) -> NDArray[Any]:
        """An always-on scalar of the rows in view (or of ``rows``, indices into the run): [token] or [token, layer]."""
        assert self.run is not None
        return self.run.scalars_at(name, self.rows if rows is None else rows)

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Committed events of the run, oldest first; of one ``kind`` on request. Their file is read when it grew."""
        if self.run is None:
            return []
        size, found = self.memo.get("events", (-1, []))
        if size != self.run.events_bytes:
            size, found = self.memo["events"] = self.run.events_bytes, self.run.events()
        return [event for event in found if kind is None or event.get("kind") == kind]


def position_of(event: Mapping[str, Any]) -> int | None:
    """The position that an event is about, where it says so."""
    for at in (event.get(key) for key in POSITIONS):
        if isinstance(at, int | float) and not isinstance(at, bool) and math.isfinite(at):
            return int(at)
    return None
