"""Layouts: the rows of a matrix as points in the plane or in space, showing no structure that is not there.

Pure functions of arrays, for a process of its own as well: they know no run and no view. UMAP must not run in two
threads of one process at a time.

Sources: t-SNE, van der Maaten and Hinton 2008; UMAP, McInnes et al. 2018 (arXiv 1802.03426); alignment, Schönemann
1966.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import orthogonal_procrustes
from sklearn.decomposition import PCA

from sotscope.analysis.embeddings import Embedding
from sotscope.errors import AnalysisError

Method = Literal["pca", "tsne", "umap"]
NAMES: dict[Method, str] = {"pca": "PCA", "tsne": "t-SNE", "umap": "UMAP"}

SAME = 1e-6
"""Rows are equal that differ by less than this part of the largest number of each dimension (some float32 steps)."""
FLOOR = 1e-9
"""... or of the largest number of all."""
BLOCK = 512
"""Rows compared at a time."""


@dataclass(frozen=True)
class Layout:
    """Where the rows are. Equal rows have equal coordinates; dropped ones (NaN, infinity) keep their place as NaN."""

    coordinates: NDArray[np.float64]
    """[row, components]"""
    method: Method
    """What made it: ``pca`` also where there are too few distinct rows for another method."""
    dropped: NDArray[np.int64]
    distinct: int = 0
    degenerate: bool = False
    """Too few distinct rows to say anything by their places: one a component and one more, or fewer."""
    variance: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """[components] share of the variance, for ``pca``; 0 where there is none."""
    spread: float = float("nan")
    """Standard deviation of a dimension, as a part of its root mean square: the median over dimensions."""
    used: dict[str, Any] = field(default_factory=dict)
    """Parameters that took effect."""
    notes: list[str] = field(default_factory=list)
    """Where they are not those that were asked for, and why."""

    @property
    def verdict(self) -> str:
        """Empty, or what is wrong with the rows."""
        if not self.distinct:
            return "no finite rows"
        return f"degenerate, {self.distinct} distinct row{'s'[: self.distinct > 1]}" if self.degenerate else ""


def layout(
    matrix: ArrayLike,
    method: Method = "pca",
    *,
    components: int = 2,
    seed: int = 0,
    previous: ArrayLike | None = None,
    perplexity: float = 30.0,
    neighbors: int = 15,
    min_dist: float = 0.1,
) -> Layout:
    """Lay out ``matrix [row, dim]``; it is not changed. The same input gives the same coordinates.

    ``previous [row, components]`` are coordinates of an earlier layout of the first rows, by the same method (NaN:
    unknown): t-SNE and UMAP start there, and the result is turned and moved, not stretched, so that known points stay
    where they were.
    ``perplexity`` (t-SNE) and ``neighbors`` (UMAP) are lowered to what the distinct rows allow.

    Raises AnalysisError where UMAP is asked for and not installed, or where ``previous`` has another shape.
    """
    values = np.asarray(matrix)
    values = values.astype(np.promote_types(values.dtype, np.float32), copy=False)
    finite = np.isfinite(values).all(1)
    rows = _scaled(values[finite])
    places = np.full((len(values), components), np.nan)
    if not len(rows):
        return Layout(places, method, np.flatnonzero(~finite), used={"method": method})
    first, group = distinct(rows)
    few = len(first) <= components + 1
    way: Method = "pca" if few else method
    known = _known(previous, finite, components)
    used: dict[str, Any] = {"method": way, "components": components, "seed": seed, "rows": len(rows)}
    notes = [f"{NAMES[method]} needs more than {components + 1} distinct rows; drawn by PCA"] if way != method else []
    variance = np.zeros(0)
    if way == "pca":
        found, variance = _pca(rows if len(first) > 1 else rows[:1], components, seed)
        found = found[first]
    else:
        made = Embedding(way, components, seed, perplexity, neighbors, min_dist)
        found = made.make(rows[first], None if known is None else known[first])
        used |= made.used
        notes += made.notes
    if len(first) < len(rows):
        notes.append(f"{len(rows)} rows are {len(first)} distinct ones; equal rows have one place")
    places[finite] = align(found[group], known, used)
    return Layout(
        places, way, np.flatnonzero(~finite), len(first), len(first) == 1 or (few and len(first) < len(rows)),
        variance, _spread(rows), used, notes,
    )  # fmt: skip


def distinct(rows: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First row of every kind, and [row] which kind each is of; rows as equal as float32 can tell are one kind."""
    largest = np.abs(rows).max(0).astype(np.float64)
    step = SAME * largest + FLOOR * largest.max()
    step[step == 0] = 1
    kinds: dict[bytes, int] = {}
    first: list[int] = []
    group = np.empty(len(rows), np.int64)
    for begin in range(0, len(rows), BLOCK):
        steps = np.rint((rows[begin : begin + BLOCK].astype(np.float64) - rows[0]) / step).astype(np.int32)
        for i, row in enumerate(steps, begin):
            group[i] = kinds.setdefault(blake2b(row.data, digest_size=16).digest(), len(kinds))
            if len(kinds) > len(first):
                first.append(i)
    return np.array(first), group


def align(places: NDArray[Any], known: NDArray[np.float64] | None, used: dict[str, Any]) -> NDArray[np.float64]:
    """``places [row, components]`` turned (or mirrored) and moved to lie best on the ``known`` ones."""
    places = places.astype(np.float64)
    if known is None:
        return places
    both = np.isfinite(known).all(1)
    used["aligned_to"] = int(both.sum())
    centre, wanted = places[both].mean(0), known[both].mean(0)
    turn, _ = orthogonal_procrustes(places[both] - centre, known[both] - wanted)
    moved: NDArray[np.float64] = (places - centre) @ turn + wanted
    return moved


def _scaled(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows whose squares neither overflow nor vanish; divided, where they would, by a power of two (no rounding)."""
    largest = float(np.abs(rows).max(initial=0))
    if largest == 0 or 1e-12 < largest < 1e12:
        return rows
    return np.asarray(np.ldexp(rows, -int(np.frexp(largest)[1])), rows.dtype)


def _spread(rows: NDArray[Any]) -> float:
    square = np.einsum("td,td->d", rows, rows, dtype=np.float64) / len(rows)
    used = square > 0
    if not used.any():
        return 0.0
    return float(np.median(np.sqrt(rows.var(0, dtype=np.float64)[used] / square[used])))


def _pca(rows: NDArray[Any], components: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Coordinates on the principal axes, and shares of variance; zeros for axes that there are not."""
    count = min(components, *rows.shape)
    places, share = np.zeros((len(rows), components)), np.zeros(components)
    exact = rows.astype(np.float64)
    if (exact != exact[0]).any():  # else there is no variance to divide by
        # both are exact; arpack works out no more components than are asked for
        model = PCA(count, svd_solver="arpack" if count < min(rows.shape) else "full", random_state=seed)
        places[:, :count] = model.fit_transform(exact)
        share[:count] = model.explained_variance_ratio_
    return places, share


def _known(previous: ArrayLike | None, finite: NDArray[np.bool_], components: int) -> NDArray[np.float64] | None:
    """[finite row, components] coordinates of before, NaN where unknown; None where nothing can be made of them."""
    if previous is None:
        return None
    before = np.asarray(previous, np.float64)
    if before.ndim != 2 or before.shape[1] != components:
        raise AnalysisError(f"previous: coordinates [row, {components}] are needed (got shape {before.shape}).")
    known = np.full((len(finite), components), np.nan)
    known[: len(before)] = before[: len(finite)]
    known = known[finite]
    return known if np.isfinite(known).all(1).sum() > components else None
