"""t-SNE and UMAP of distinct rows, from nothing or from where the rows were before.

From nothing they are what scikit-learn and umap-learn make of the same rows. From an earlier layout both start at its
scale and move gently, so that what has been seen stays where it was: t-SNE without early exaggeration, UMAP with a
fiftieth of its learning rate, and both in fewer iterations.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.manifold import TSNE
from sklearn.neighbors import NearestNeighbors

from sotscope.errors import AnalysisError

GENTLE = 0.02
"""UMAP's learning rate from an earlier layout."""
EPOCHS = 100
"""... and how often it goes over its edges then."""
ITERATIONS = 250
"""t-SNE's iterations from an earlier layout (1000 from nothing)."""
NEGATIVES = 5
"""Rows that UMAP pushes away for one that it draws nearer (its default)."""


@dataclass
class Embedding:
    """One embedding to make; ``used`` and ``notes`` tell what took effect."""

    method: Literal["tsne", "umap"]
    components: int
    seed: int
    perplexity: float
    neighbors: int
    min_dist: float
    used: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def make(self, rows: NDArray[Any], known: NDArray[np.float64] | None) -> NDArray[Any]:
        """Coordinates of ``rows [row, dim]``; ``known [row, components]`` are those of before, NaN where unknown.

        Raises AnalysisError where UMAP is not installed.
        """
        start = None if known is None else _start(rows, known, self.seed)
        self.used["init"] = "previous"
        if start is None:
            self.used["init"] = "random" if rows.shape[1] < self.components else "pca"
        return (self._tsne if self.method == "tsne" else self._umap)(rows, start)

    def _limit(self, name: str, wanted: float, allowed: float, rows: int) -> Any:
        self.used[name] = min(wanted, allowed)
        if allowed < wanted:
            self.notes.append(f"{name} lowered from {wanted:g} to {allowed:.3g}, all that {rows} distinct rows allow")
        return self.used[name]

    def _tsne(self, rows: NDArray[Any], start: NDArray[np.float32] | None) -> NDArray[Any]:
        perplexity = self._limit("perplexity", self.perplexity, (len(rows) - 1) / 3, len(rows))
        options: dict[str, Any] = {"init": self.used["init"]}
        if start is not None:  # the usual learning rate is derived from the usual exaggeration
            options = {"early_exaggeration": 1.0, "learning_rate": max(50.0, len(rows) / 48), "max_iter": ITERATIONS}
            self.used |= options
            options["init"] = start
        model = TSNE(self.components, perplexity=perplexity, random_state=self.seed, **options)
        return np.asarray(model.fit_transform(rows))

    def _umap(self, rows: NDArray[Any], start: NDArray[np.float32] | None) -> NDArray[Any]:
        neighbors = self._limit("neighbors", self.neighbors, len(rows) - 1, len(rows))
        self.used["min_dist"] = self.min_dist
        if self.used["init"] == "pca" and len(rows) > 2 * self.components + 2:  # with fewer rows it cannot be found
            self.used["init"] = "spectral"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # parts that are not installed; one thread where more could be had
            try:
                from umap import UMAP
            except ImportError:
                raise AnalysisError("method umap needs: pip install 'sotscope[umap]'.") from None
            model = UMAP(
                n_components=self.components, n_neighbors=neighbors, min_dist=self.min_dist, random_state=self.seed,
                n_jobs=1, negative_sample_rate=NEGATIVES, transform_mode="embedding" if start is None else "graph",
                init="random" if start is not None else self.used["init"],
            )  # fmt: skip
            made = model.fit_transform(rows)
            return np.asarray(made) if start is None else self._move(made, start)

    def _move(self, graph: Any, start: NDArray[np.float32]) -> NDArray[Any]:
        """UMAP's optimisation of its ``graph`` from ``start`` as it is; the class would stretch each axis to 0-10."""
        from umap.layouts import optimize_layout_euclidean
        from umap.umap_ import find_ab_params, make_epochs_per_sample

        self.used |= {"learning_rate": GENTLE, "epochs": EPOCHS}
        edges = graph.tocoo()
        edges.data[edges.data < edges.data.max() / EPOCHS] = 0
        edges.eliminate_zeros()
        a, b = find_ab_params(1.0, self.min_dist)
        state = np.random.default_rng(self.seed).integers(-(2**31) + 1, 2**31 - 1, 3)
        places = np.ascontiguousarray(start)
        moved = optimize_layout_euclidean(
            places, places, edges.row, edges.col, EPOCHS, len(places), make_epochs_per_sample(edges.data, EPOCHS), a, b,
            state, initial_alpha=GENTLE, negative_sample_rate=NEGATIVES, move_other=True,
        )  # fmt: skip
        return np.asarray(moved)


def _start(rows: NDArray[Any], known: NDArray[np.float64], seed: int) -> NDArray[np.float32] | None:
    """Where the optimisation starts: known rows where they were, new ones beside the known row most like them."""
    old = np.isfinite(known).all(1)
    if not old.any() or not (size := float(known[old].std(0).max())):
        return None
    places = known.copy()
    if not old.all():
        near = NearestNeighbors(n_neighbors=1).fit(rows[old]).kneighbors(rows[~old], return_distance=False)[:, 0]
        places[~old] = known[old][near]
    # no two in one place: nothing would part them
    places += np.where(old, 1e-4, 1e-2)[:, None] * size * np.random.default_rng(seed).standard_normal(places.shape)
    centred: NDArray[np.float32] = (places - places.mean(0)).astype(np.float32)
    return centred
