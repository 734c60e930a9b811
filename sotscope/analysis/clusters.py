"""Clusters of rows, and an honest "none": HDBSCAN finds some in nearly any noise, so noise of the same shape is asked.

Sources: HDBSCAN, Campello et al. 2013; silhouettes, Rousseeuw 1987 (below 0.25: no substantial structure, Kaufman and
Rousseeuw 1990); Monte Carlo test, Hope 1968, against one normal cloud as in SigClust, Liu et al. 2008.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import HDBSCAN
from sklearn.decomposition import PCA
from sklearn.metrics import pairwise_distances, silhouette_samples

from sotscope.analysis.contracts import Pool

COMPONENTS = 20
"""Principal components that rows are reduced to: distances in hundreds of dimensions hardly differ."""
WEAK = 0.25
"""Mean silhouette below which a cluster is none."""
DRAWS = 19
"""Normal clouds that must all score lower (so that 1 in 20 clouds without clusters passes)."""
ROWS = 1000
"""Rows of such a cloud at most."""


@dataclass(frozen=True)
class Clusters:
    """``labels [row]`` from 0, largest cluster first, -1 for rows in none; ``medoids`` are the rows in their middles.

    ``score`` is the mean silhouette over all rows, 0 for those in no cluster; ``chance`` the best score of a normal
    cloud with the same variances. All labels are -1 unless the score is higher.
    """

    labels: NDArray[np.int64]
    medoids: NDArray[np.int64]
    silhouette: NDArray[np.float64]
    """[cluster] mean."""
    score: float
    chance: float
    components: int
    size: int
    """Rows that make a cluster, at least."""

    def __len__(self) -> int:
        return len(self.medoids)


def smallest(rows: int) -> int:
    """Rows that make a cluster, at least: 2 % of all, and no fewer than 5."""
    return max(5, rows // 50)


def clusters(matrix: NDArray[Any], pool: Pool, seed: int = 0) -> Clusters:
    """Clusters of ``matrix [row, dim]``, finite, reduced to its first principal components."""
    count, size = min(COMPONENTS, len(matrix) - 1, matrix.shape[1]), smallest(len(matrix))
    none = np.full(len(matrix), -1)
    if len(matrix) < 2 * size:
        return Clusters(none, np.zeros(0, np.int64), np.zeros(0), 0.0, 0.0, max(count, 0), size)
    reduced = PCA(count, random_state=seed).fit_transform(np.asarray(matrix, np.float64))
    labels, silhouette = _clusters(reduced)
    score, chance = float(silhouette.mean()), 0.0
    if score > 0:
        cloud = partial(_cloud, deviations=reduced.std(0), rows=min(len(reduced), ROWS))
        chance = max(pool.map(cloud, range(seed, seed + DRAWS), "clusters by chance"))
    if score <= chance:
        return Clusters(none, np.zeros(0, np.int64), np.zeros(0), score, chance, count, size)
    members = [np.flatnonzero(labels == k) for k in range(labels.max() + 1)]
    medoids = np.array([at[pairwise_distances(reduced[at]).sum(0).argmin()] for at in members])
    means = np.array([silhouette[at].mean() for at in members])
    return Clusters(labels, medoids, means, score, chance, count, size)


def _clusters(rows: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Labels of the clusters that are not weak, largest first, and [row] silhouettes, 0 in none."""
    found = HDBSCAN(min_cluster_size=smallest(len(rows)), copy=True).fit(rows).labels_
    labels, silhouette = np.full(len(rows), -1), np.zeros(len(rows))
    inside = found >= 0
    if found.max() < 1:  # a silhouette compares two
        return labels, silhouette
    silhouette[inside] = silhouette_samples(rows[inside], found[inside])
    strong = [k for k in range(found.max() + 1) if silhouette[found == k].mean() >= WEAK]
    for new, k in enumerate(sorted(strong, key=lambda k: -int((found == k).sum()))):
        labels[found == k] = new
    silhouette[labels < 0] = 0
    return labels, silhouette


def _cloud(seed: int, deviations: NDArray[np.float64], rows: int) -> float:
    """The score of one normal cloud."""
    cloud = np.random.default_rng(seed).standard_normal((rows, len(deviations))) * deviations
    return float(_clusters(cloud)[1].mean())
