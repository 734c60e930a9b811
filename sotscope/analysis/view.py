"""A run, or the part of it that is looked at, as analyzers see it: rows in order, layers, and chunks to read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from sotscope.errors import AnalysisError
from sotscope.plain import ranges
from sotscope.store.reader import Run
from sotscope.store.tokens import Tokens

CHUNK_BYTES = 16 << 20
"""States that a task reads at a time, as float32."""
WRITTEN = frozenset({"generated", "think", "tool"})
"""Segments of tokens that the model wrote."""


class Selection(BaseModel):
    """Which part of a run: ``layers``, ``tokens`` (start, stop) among the rows of the part, one sequence's lineage,
    the prompt or what the model wrote. None and "all": everything.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    layers: tuple[int, ...] | None = None
    tokens: tuple[int | None, int | None] | None = None
    seq: int | None = None
    part: Literal["all", "prompt", "generated"] = "all"


@dataclass(frozen=True)
class Chunk:
    """Some rows of one site (of one layer, if given), read where the work is done."""

    run: Run
    site: str
    layers: tuple[int, ...] | None
    layer: int | None
    rows: NDArray[np.int64]
    start: int
    """Where the first row is among the rows of the view (or of those that were asked for)."""

    def read(self) -> NDArray[np.float32]:
        """[token, dim] of one layer (or a site without layers), else [token, layer, dim]; heads keep their axis."""
        return self.run.take(self.site, self.rows, layer=self.layer, layers=self.layers)


class View:
    """The selected rows and layers of a run. ``rows`` are indices into the run, in order."""

    def __init__(self, run: Run, selection: Selection | None = None) -> None:
        self.run = run
        self.selection = selection or Selection()
        self.rows: NDArray[np.int64] = self._select()
        self.layers = self._layers()
        self.memo: dict[Any, Any] = {}
        """What several analyzers need is worked out once (``facts``)."""

    def __len__(self) -> int:
        return len(self.rows)

    def _select(self) -> NDArray[np.int64]:
        chosen = self.selection
        rows = self.run.rows(chosen.seq)
        if chosen.part != "all":
            written = np.array([s in WRITTEN for s in self.run.tokens.segments], bool)[rows]
            rows = rows[written if chosen.part == "generated" else ~written]
        if chosen.tokens is not None:
            rows = rows[slice(*chosen.tokens)]
        if not len(rows):
            raise AnalysisError(f"{self.run.path.name}: nothing is left of its {len(self.run)} rows; select more.")
        return rows

    def _layers(self) -> tuple[int, ...]:
        recorded = tuple(self.run.layers)
        wanted = recorded if self.selection.layers is None else self.selection.layers
        count = 1 + max(recorded, default=-1)
        found = tuple(dict.fromkeys(layer + count if layer < 0 else layer for layer in wanted))
        missing = [layer for layer in found if layer not in recorded]
        if missing:
            raise AnalysisError(
                f"{self.run.path.name}: layer {missing[0]} was not recorded; there are {ranges(recorded)}."
            )
        return found

    @cached_property
    def tokens(self) -> Tokens:
        """The tokens of the rows, in order."""
        return self.run.tokens.take(self.rows)

    @cached_property
    def labels(self) -> list[str]:
        """[token] each row's input token, spaces made visible."""
        return self.tokens.labels

    def scalar(self, name: str) -> NDArray[Any]:
        """An always-on scalar of the rows: [token] or [token, layer] (the view's layers)."""
        found = self.run.scalars_at(name, self.rows)
        spec = next(scalar for scalar in self.run.spec.scalars if scalar.name == name)
        if len(spec.dims) > 1 and spec.dims[1] == "layer":
            found = found[:, [self.run.layers.index(layer) for layer in self.layers]]
        return found

    def need(self, *sites: str) -> None:
        """Raises AnalysisError, with the flag that records it, for a site the run lacks."""
        for site in sites:
            if site not in self.run.sites:
                raise AnalysisError(
                    f"{self.run.path.name} has no {site}; record it with --sites {','.join([*self.run.sites, site])}."
                )

    def first(self, *sites: str) -> str:
        """The first of ``sites`` that was recorded. Raises AnalysisError where none was."""
        for site in sites:
            if site in self.run.sites:
                return site
        self.need(sites[0])
        raise AssertionError

    def layers_of(self, site: str) -> tuple[int, ...] | None:
        """The view's layers that ``site`` has; None for a site without layers."""
        recorded = self.run.spec.site(site).layers
        return None if recorded is None else tuple(layer for layer in self.layers if layer in recorded)

    def width(self, site: str) -> int:
        """Numbers of one state (all heads together)."""
        spec = self.run.spec.site(site)
        return int(np.prod(spec.row if spec.layers is None else spec.row[1:]))

    def chunks(self, site: str, layer: int | None = None, among: NDArray[np.int64] | None = None) -> list[Chunk]:
        """Pieces of about 16 MB, in order: of one ``layer``, or of all layers of the view together.

        ``among`` are positions in the view (default: all of it).
        """
        rows = self.rows if among is None else self.rows[among]
        layers = None if layer is not None else self.layers_of(site)
        step = max(1, CHUNK_BYTES // (4 * self.width(site) * max(1, len(layers or ()))))
        return [
            Chunk(self.run, site, layers, layer, rows[start : start + step], start)
            for start in range(0, len(rows), step)
        ]

    def states(self, site: str, layer: int | None = None, among: NDArray[np.int64] | None = None) -> NDArray[Any]:
        """All of it at once, [token, dim] or [token, layer, dim]: for few rows (``sample``)."""
        rows = self.rows if among is None else self.rows[among]
        return self.run.take(site, rows, layer=layer, layers=None if layer is not None else self.layers_of(site))

    def sample(self, count: int, keep: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """At most ``count`` positions of the view, evenly spread over it (over those to ``keep``); always the same."""
        among = np.arange(len(self)) if keep is None else np.flatnonzero(keep)
        if len(among) <= count:
            return among
        return among[np.linspace(0, len(among) - 1, count).round().astype(np.int64)]
