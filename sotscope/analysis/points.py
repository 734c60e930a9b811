"""What `project` lays out: tokens in a layer, the means of layers, head queries, MLP activations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sotscope.analysis.contracts import Pool
from sotscope.analysis.view import Chunk, View
from sotscope.errors import AnalysisError

What = Literal["tokens", "layers", "queries", "mlp"]
SITES: dict[What, str] = {"tokens": "resid", "layers": "resid", "queries": "query", "mlp": "mlp_act"}


@dataclass(frozen=True)
class Points:
    """``matrix [point, dim]`` holds lines ``at`` of ``table``, which has a line for every point there might be."""

    matrix: NDArray[Any]
    table: pd.DataFrame
    at: NDArray[np.int64]
    name: str
    """What they are, for titles and sentences."""
    tokens: int
    """How many tokens they are made of."""


def site_of(view: View, what: What, site: str | None) -> str:
    """The recorded site that ``what`` is about. Raises AnalysisError, with the flag that records it."""
    if site is None and what == "tokens":
        return view.first("resid", *view.run.sites)
    wanted = site or SITES[what]
    view.need(wanted)
    spec = view.run.spec.site(wanted)
    if what == "layers" and spec.layers is None:
        raise AnalysisError(f"{wanted} has no layers; choose another site.")
    if what == "queries" and len(spec.row) < 3:
        raise AnalysisError(f"{wanted} has no heads; choose query or head_out.")
    return wanted


def layer_of(view: View, site: str, layer: int | None) -> int | None:
    """``layer``, or the middle one of the view; None for a site without layers. Raises AnalysisError for another."""
    layers = view.layers_of(site)
    if layers is None:
        return None
    if layer is None:
        return layers[len(layers) // 2]
    if layer < 0 and -layer <= len(layers):
        return layers[layer]
    if layer not in layers:
        raise AnalysisError(f"layer {layer} is not among those of {site} in this view, {layers}.")
    return layer


def gather(
    view: View,
    what: What,
    site: str,
    layer: int | None,
    head: int | None,
    keep: NDArray[np.bool_],
    rows: int,
    pool: Pool,
) -> Points:
    """The points, of at most ``rows`` of the tokens to ``keep`` (a mean is over all of those)."""
    if what == "layers":
        return _means(view, site, keep, pool)
    if what == "queries":
        count = 1 if head is not None else view.run.spec.site(site).row[1]
        return _heads(view, site, layer, head, view.sample(max(1, rows // count), keep))
    return _tokens(view, site, layer, view.sample(rows, keep))


def _tokens(view: View, site: str, layer: int | None, at: NDArray[np.int64]) -> Points:
    """A point a token: its state in ``layer``, all heads together."""
    where = site if layer is None else f"{site} in layer {layer}"
    table = pd.DataFrame({"token": np.arange(len(view)), "label": view.labels, "segment": view.tokens.segments})
    return Points(view.states(site, layer, at).reshape(len(at), view.width(site)), table, at, where, len(at))


def _heads(view: View, site: str, layer: int | None, head: int | None, at: NDArray[np.int64]) -> Points:
    """A point a token and head, or of one ``head`` alone. Raises AnalysisError for one there is not."""
    states = view.states(site, layer, at)
    count = states.shape[1]
    one = _tokens(view, site, layer, at)
    if head is None:
        lines = (at[:, None] * count + np.arange(count)).ravel()
        table = one.table.loc[one.table.index.repeat(count)].reset_index(drop=True)
        table["head"] = np.tile(np.arange(count), len(view))
        return Points(states.reshape(len(lines), states.shape[-1]), table, lines, one.name, len(at))
    if not 0 <= head < count:
        raise AnalysisError(f"{site} has heads 0 to {count - 1}; there is no head {head}.")
    return replace(one, matrix=states[:, head], name=f"{site} of head {head} in layer {layer}")


def _means(view: View, site: str, keep: NDArray[np.bool_], pool: Pool) -> Points:
    """A point a layer: the mean state over the tokens to ``keep``, in float64; NaN where there is none."""
    layers = view.layers_of(site) or ()
    parts = pool.map(_sum, view.chunks(site, among=np.flatnonzero(keep)), f"means of {site}")
    total = sum(parts, np.zeros((len(layers), view.width(site))))
    means = total / keep.sum() if keep.any() else np.full_like(total, np.nan)
    table = pd.DataFrame({"layer": layers})
    return Points(means, table, np.arange(len(layers)), f"layer means of {site}", int(keep.sum()))


def _sum(chunk: Chunk) -> NDArray[np.float64]:
    states = chunk.read()
    found: NDArray[np.float64] = states.sum(0, dtype=np.float64).reshape(states.shape[1], -1)
    return found
