"""One layer at a time: the rows an analyzer looks at, in pieces of float64, their mean and their successors.

A task of the pool is one layer. It goes over its rows twice, first for the mean and then about it, so that sums of
squares lose nothing to a large mean; no more than one piece of it is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sotscope.analysis.contracts import Pool
from sotscope.analysis.facts import RowFacts, facts, left_out, named, sinks
from sotscope.analysis.view import Chunk, View
from sotscope.analysis.wording import called
from sotscope.errors import AnalysisError

PIECE_NUMBERS = 1 << 18
"""Numbers of a piece: 2 MB as float64, which a processor's cache holds."""


@dataclass(frozen=True)
class Layer:
    """The rows of one layer (or of a site without layers) that are looked at."""

    name: Any
    """The layer's number, or the site's name."""
    chunks: tuple[Chunk, ...]
    width: int
    at: NDArray[np.int64]
    """[token] where its rows are among the view's."""

    def __len__(self) -> int:
        return len(self.at)

    def pieces(self) -> Iterator[NDArray[np.float64]]:
        """[token, dim] in order, heads side by side."""
        step = max(1, PIECE_NUMBERS // max(1, self.width))
        for chunk in self.chunks:
            states = chunk.read().reshape(len(chunk.rows), -1)
            for start in range(0, len(states), step):
                yield states[start : start + step].astype(np.float64)

    def all(self) -> NDArray[np.float64]:
        """[token, dim] at once: for few rows."""
        return np.concatenate([np.empty((0, self.width)), *self.pieces()])

    def mean(self) -> NDArray[np.float64]:
        """[dim], NaN without rows. Equal numbers have exactly their own mean: float32 sums are exact in float64."""
        total = np.zeros(self.width)
        for piece in self.pieces():
            total += piece.sum(0)
        return total / len(self) if len(self) else np.full(self.width, np.nan)


@dataclass(frozen=True)
class Subject:
    """What an analyzer looks at: a site, its layers in the view, and the rows that count."""

    site: str
    names: list[Any]
    """The layers' numbers; the site's name alone where it has no layers."""
    found: RowFacts
    keep: NDArray[np.bool_]
    """[token] True for rows that count in statistics."""
    far: NDArray[np.bool_]
    """[token, layer] True for rows that count, but not in this layer: their norm is far above the others' there."""
    left_out: list[str]

    @property
    def kept(self) -> NDArray[np.int64]:
        """Positions in the view of the rows that count."""
        return np.flatnonzero(self.keep)

    def layers(self, view: View, among: NDArray[np.int64] | None = None) -> list[Layer]:
        """One task a layer, over the same rows in each: those that count, or the positions ``among`` the view's."""
        return [self.layer(view, name, self.kept if among is None else among) for name in self.names]

    def own_layers(self, view: View, count: int | None = None) -> list[Layer]:
        """One task a layer, over the rows that count in that layer (over ``count`` of them, evenly spread)."""
        own = [self.keep & ~far for far in self.far.T]
        rows = [np.flatnonzero(keep) if count is None else view.sample(count, keep) for keep in own]
        return [self.layer(view, name, at) for name, at in zip(self.names, rows, strict=True)]

    def layer(self, view: View, name: Any, at: NDArray[np.int64]) -> Layer:
        """The task of one layer over the positions ``at`` of the view's rows."""
        layer = None if view.layers_of(self.site) is None else name
        return Layer(name, tuple(view.chunks(self.site, layer=layer, among=at)), view.width(self.site), at)

    def everywhere(self, view: View, layers: Sequence[int] | None = None) -> Subject:
        """Only with rows that count in every layer (of ``layers``): for what compares one layer with another."""
        chosen = [layers is None or name in layers or len(self.names) == 1 for name in self.names]
        far = self.far & np.array(chosen)
        lines = self._apart(view, far, "norm far above the others' in {}")
        return replace(
            self, keep=self.keep & ~far.any(axis=1), far=np.zeros_like(far), left_out=[*self.left_out, *lines]
        )

    def all_left_out(self, view: View) -> list[str]:
        """``left_out``, and what single layers leave out."""
        return [*self.left_out, *self._apart(view, self.far, "in {}, where their norm is far above the others'")]

    def _apart(self, view: View, far: NDArray[np.bool_], why: str) -> list[str]:
        where = [name for name, column in zip(self.names, far.T, strict=True) if column.any()]
        return [named(view.labels, np.asarray(far.any(axis=1)), why.format(called(where)))] if where else []


def subject(view: View, site: str | None, all_rows: bool, pool: Pool) -> Subject:
    """``site`` (default: ``resid``, or the first there is) and its rows: without sinks, unless ``all_rows``.

    Raises AnalysisError for a site that was not recorded, or not in any layer of the view.
    """
    site = site or view.first("resid", *view.run.sites)
    view.need(site)
    layers = view.layers_of(site)
    if layers == ():
        raise AnalysisError(f"{view.run.path.name} has no {site} of layers {view.layers}; select others.")
    found = facts(view, site, pool)
    keep = ~found.bad if all_rows else found.keep
    far = np.zeros_like(found.nonfinite, bool)
    if not all_rows:
        far = np.stack([sinks(column[:, None]) for column in found.norm.T], axis=1) & keep[:, None]
    lines = left_out(found, view.labels)
    if all_rows:
        lines = lines[-1:] if found.bad.any() else []
    return Subject(site, [site] if layers is None else list(layers), found, keep, far, lines)


def successive(view: View) -> NDArray[np.bool_]:
    """[token] True where the row before it in the view is the token before it in the same sequence (or lineage)."""
    tokens = view.tokens
    next_to = np.diff(tokens.pos) == 1
    if view.selection.seq is None:
        next_to &= np.diff(tokens.seq) == 0
    return np.concatenate([np.zeros(1, bool), next_to])


def follows(view: View, kept: NDArray[np.int64]) -> NDArray[np.bool_]:
    """[kept] True where the kept row before it is its predecessor: ``successive``, with none left out in between."""
    found: NDArray[np.bool_] = successive(view)[kept] & (np.diff(kept, prepend=-2) == 1)
    return found
