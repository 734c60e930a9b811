"""`project`: tokens, layers, head queries or MLP activations in the plane, by PCA, t-SNE or UMAP, and their clusters.

What a layout is, and what it does about equal rows, few rows and updates, is in ``layouts``; clusters are found in the
states, never in the picture (``clusters``).
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from sotscope.analysis import points, scatters
from sotscope.analysis.clusters import Clusters, clusters
from sotscope.analysis.contracts import Analyzer, Params, Pool
from sotscope.analysis.layouts import NAMES, Layout, Method, layout
from sotscope.analysis.moments import subject
from sotscope.analysis.points import Points, What
from sotscope.analysis.report import Report
from sotscope.analysis.view import View
from sotscope.analysis.wording import NOTHING_LEFT
from sotscope.plain import ranges

ALIKE = 0.01
"""Rows that vary by less than this part of their size are nearly one."""
EXAMPLES = 3
"""Commonest tokens of a cluster that are named."""


def _numbers(given: Any) -> Any:
    """Arrays, and JSON's nulls, as lists of numbers."""
    return None if given is None else np.array(given, dtype=np.float64).tolist()


class ProjectParams(Params):
    what: What = "tokens"
    """Points: tokens in a layer, means of layers, tokens and heads (queries), or MLP activations of tokens."""
    method: Method = "pca"
    """t-SNE and UMAP take longer; UMAP needs sotscope[umap]."""
    layer: int | None = None
    """Which layer (default: the middle one of the view; negative: from its end)."""
    site: str | None = None
    """Another site than resid (tokens, layers), query or mlp_act."""
    head: int | None = None
    """Queries of this head only."""
    components: Literal[2, 3] = 2
    """Dimensions of the picture."""
    rows: Annotated[int, Field(ge=1)] = 5000
    """Points at most, evenly spread over the view."""
    seed: Annotated[int, Field(ge=0, lt=2**32 - 100)] = 0
    """The same seed gives the same picture."""
    perplexity: Annotated[float, Field(gt=0)] = 30.0
    """t-SNE: about how many neighbours a point has."""
    neighbors: Annotated[int, Field(ge=2)] = 15
    """UMAP: how many neighbours a point has."""
    min_dist: Annotated[float, Field(ge=0, le=1)] = 0.1
    """UMAP: how close points may lie."""
    previous: Annotated[list[list[float]] | None, BeforeValidator(_numbers)] = Field(default=None, exclude=True)
    """Coordinates [line, component] of an earlier report's table, over the first lines of this one: stay near them."""
    all_rows: bool = False
    """Lay out sinks as well."""


class Project(Analyzer):
    name: ClassVar[str] = "project"
    title: ClassVar[str] = "States in the plane"
    Params: ClassVar[type[Params]] = ProjectParams

    def analyze(self, view: View, params: ProjectParams, pool: Pool) -> Report:
        site = points.site_of(view, params.what, params.site)
        layer = None if params.what == "layers" else points.layer_of(view, site, params.layer)
        rows = subject(view, site, params.all_rows, pool).everywhere(view, None if layer is None else [layer])
        chosen = points.gather(view, params.what, site, layer, params.head, rows.keep, params.rows, pool)
        laid = layout(
            chosen.matrix, params.method, components=params.components, seed=params.seed,
            previous=_earlier(params, chosen), perplexity=params.perplexity, neighbors=params.neighbors,
            min_dist=params.min_dist,
        )  # fmt: skip
        worth = params.what != "layers" and not laid.verdict
        grouped = clusters(chosen.matrix, pool, params.seed) if worth else None
        report = Report(self.name, f"{self.title} ({chosen.name}, {NAMES[laid.method]})")
        report.left_out = list(rows.left_out)
        if chosen.tokens < len(rows.kept):
            report.left_out.append(f"{chosen.tokens} of {len(rows.kept)} tokens are laid out, evenly spread (rows=...)")
        report.tables = {
            "coordinates": _coordinates(chosen, laid, grouped),
            "parameters": _parameters(params, laid),
        }
        if laid.method == "pca":
            share = {"component": np.arange(1, len(laid.variance) + 1), "variance": laid.variance}
            report.tables["variance"] = pd.DataFrame(share)
        _say_rows(report, chosen, laid, np.flatnonzero(rows.found.bad), len(view))
        if params.what == "layers":
            _say_steps(report, chosen)
        if grouped is not None:
            _say_clusters(report, chosen, grouped)
        _draw(report, chosen, laid, params.what)
        return report


def _earlier(params: ProjectParams, chosen: Points) -> NDArray[np.float64] | None:
    """[point, component] the earlier coordinates of the points, NaN for those that are new."""
    if not params.previous:
        return None
    given = np.array(params.previous)
    lines = np.full((len(chosen.table), given.shape[1]), np.nan)
    lines[: len(given)] = given[: len(lines)]
    return lines[chosen.at]


def _coordinates(chosen: Points, laid: Layout, grouped: Clusters | None) -> pd.DataFrame:
    """A line for every point there might be, in order; NaN for those that were left out."""
    table = chosen.table.copy()
    for axis, values in zip(scatters.AXES, laid.coordinates.T, strict=False):
        table[axis] = np.nan
        table.loc[chosen.at, axis] = values
    if grouped is not None:
        table["cluster"] = -1
        table.loc[chosen.at, "cluster"] = grouped.labels
    return table


def _parameters(params: ProjectParams, laid: Layout) -> pd.DataFrame:
    """What was asked for and what took effect."""
    asked = params.model_dump()
    return pd.DataFrame(
        {
            "parameter": [*laid.used, "distinct rows"],
            "asked": [*(str(asked.get(name, "")) for name in laid.used), ""],
            "used": [*map(str, laid.used.values()), str(laid.distinct)],
        }
    )


def _say_rows(report: Report, chosen: Points, laid: Layout, dropped: NDArray[np.int64], rows: int) -> None:
    count = len(chosen.matrix)
    if len(dropped):
        report.find(
            f"{len(dropped)} of {rows} rows hold NaN or infinity and have no place (token {ranges(dropped.tolist())}).",
            "warning", dropped=dropped,
        )  # fmt: skip
    if not laid.distinct:
        report.find(NOTHING_LEFT, "warning", rows=rows)
    elif laid.degenerate:
        report.find(
            f"{chosen.name[:1].upper()}{chosen.name[1:]}: {laid.verdict} among {count}; equal rows have one place, "
            "and the picture shows nothing else.", "warning", distinct=laid.distinct, rows=count,
        )  # fmt: skip
    elif laid.spread < ALIKE:
        report.find(
            f"The {count} rows are nearly one: a dimension varies by {100 * laid.spread:.2g} % of its size, which the "
            "picture magnifies.", "warning", spread=laid.spread,
        )  # fmt: skip
    if laid.method == "pca" and laid.distinct > 1:
        parts = [f"{100 * share:.3g}" for share in laid.variance]
        report.find(
            f"The picture of {chosen.name} holds {100 * laid.variance.sum():.3g} % of the variance of {count} rows "
            f"({' + '.join(parts)} %).", variance=laid.variance, rows=count,
        )  # fmt: skip
    for note in laid.notes:
        report.find(f"{note[:1].upper()}{note[1:]}.", **laid.used)


def _say_steps(report: Report, chosen: Points) -> None:
    """How far the mean goes from layer to layer, in the states themselves."""
    layers = chosen.table.layer.to_numpy()
    if len(layers) < 2 or not np.isfinite(chosen.matrix).all():
        return
    length = np.linalg.norm(np.diff(chosen.matrix, axis=0), axis=1)
    report.tables["steps"] = pd.DataFrame({"layer": layers[:-1], "next": layers[1:], "distance": length})
    if length.sum() > 0:
        at = int(length.argmax())
        report.find(
            f"The mean state makes its longest step from layer {layers[at]} to {layers[at + 1]}: "
            f"{100 * length[at] / length.sum():.3g} % of its whole way.",
            layer=layers[at], distance=length[at], way=length.sum(),
        )  # fmt: skip


def _say_clusters(report: Report, chosen: Points, grouped: Clusters) -> None:
    lines = chosen.table.iloc[chosen.at]
    labels = lines.label.to_numpy()
    where = f"in the first {grouped.components} principal components, not in the picture"
    chance = f"mean silhouette over all rows {grouped.score:.2g}, normal noise reaches {grouped.chance:.2g}"
    members = [np.flatnonzero(grouped.labels == k) for k in range(len(grouped))]
    common = [", ".join(label for label, _ in Counter(labels[at]).most_common(EXAMPLES)) for at in members]
    report.tables["clusters"] = pd.DataFrame(
        {
            "cluster": np.arange(len(grouped)),
            "name": [f"{len(at)} like {labels[i]}" for at, i in zip(members, grouped.medoids, strict=True)],
            "size": [len(at) for at in members],
            "silhouette": grouped.silhouette,
            "medoid": lines.token.to_numpy()[grouped.medoids],
            "medoid_label": labels[grouped.medoids],
            "commonest": common,
        }
    )
    if len(grouped):
        named = "; ".join(
            f"{len(at)} around token {lines.token.iloc[i]} {labels[i]!r} ({names})"
            for at, i, names in zip(members[:4], grouped.medoids, common, strict=False)
        )
        share = 100 * (grouped.labels >= 0).mean()
        count = f"{len(grouped)} cluster{'s'[: len(grouped) > 1]}"
        report.find(
            f"{count} (HDBSCAN {where}) with {share:.3g} % of the rows: {named}; {chance}.",
            score=grouped.score, chance=grouped.chance, share=share,
        )  # fmt: skip
    else:
        why = f"what HDBSCAN finds {where}, is no better than noise: {chance}"
        if not grouped.score:
            why = f"HDBSCAN finds none of {grouped.size} rows or more {where}"
        report.find(f"No clusters: {why}.", score=grouped.score, chance=grouped.chance)


def _draw(report: Report, chosen: Points, laid: Layout, what: What) -> None:
    table, named = report.tables["coordinates"], report.tables.get("clusters")
    assert isinstance(table, pd.DataFrame)
    count = laid.coordinates.shape[1]
    if laid.method == "pca":
        titles = [f"PC{i + 1} ({100 * share:.3g} % of the variance)" for i, share in enumerate(laid.variance)]
        if "aligned_to" in laid.used:  # turned to lie on the earlier picture, the axes are no components any more
            titles = [f"axis {i + 1} in the space of PC1 to PC{count}" for i in range(count)]
    if laid.method != "pca" or not laid.distinct:
        titles = [f"{NAMES[laid.method]} {i + 1} (no unit: near or far is all it says)" for i in range(count)]
    title = f"{chosen.name}, {NAMES[laid.method]} of {len(chosen.matrix)} rows"
    number = "layer" if what == "layers" else "head" if "head" in chosen.table else "token"
    report.figures["layout"] = partial(scatters.by_number, table, titles, title, number, path=what == "layers")
    if isinstance(named, pd.DataFrame) and len(named):
        title = f"Clusters of {chosen.name}, found in the states, drawn by {NAMES[laid.method]}"
        report.figures["clusters"] = partial(scatters.by_cluster, table, named, titles, title)
