"""`dims`: what the single dimensions of a site do: size, spread, shape, steadiness, outliers, and weight in the answer.

Sources: outlier dimensions, Kovaleva et al. 2021 (arXiv 2105.06990) and Dettmers et al. 2022 (arXiv 2208.07339);
steadiness as slowness, Wiskott and Sejnowski 2002 (Neural Computation 14, 715) by way of von Neumann's ratio (1941).
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray
from pydantic import Field

from sotscope.analysis.agreement import head_for
from sotscope.analysis.contracts import Analyzer, Params, Pool
from sotscope.analysis.dim_stats import DimStats, dim_stats
from sotscope.analysis.dims_say import draw, say
from sotscope.analysis.facts import OUTLIER, percentile
from sotscope.analysis.moments import Subject, follows, subject
from sotscope.analysis.report import Report
from sotscope.analysis.survival import survival
from sotscope.analysis.view import View
from sotscope.analysis.wording import NOTHING_LEFT

SAMPLE = 1024
"""Rows that medians, ranges and histograms are made of, at most."""


class DimsParams(Params):
    site: str | None = None
    """Which states (default: ``resid``, or the first site there is)."""
    all_rows: bool = False
    """Count sinks in as well."""
    bins: int = Field(32, ge=2, le=1024)
    """Bins of the histograms, between the 0.5th and the 99.5th percentile of a dimension."""
    top: int = Field(10, ge=1)
    """Dimensions that the ranking lists of each layer."""


class Dims(Analyzer):
    """Tables: ``by_dim`` [layer, dim]; ``by_layer``; ``ranking``; ``logits`` and ``survival`` (see ``survival.py``).

    variance: over the rows (population). share: of the layer's variance. entropy: of a histogram, in nats, at most
    log(bins); numbers beyond the range count in the outermost bins. stability: correlation of successive tokens, 1 for
    a dimension that stays, 0 for unrelated tokens. median_size: of the numbers without sign. outlier: 20 times the
    median dimension's, or where a sink has its largest number (then ``sink_only``, if no other row shows it).
    """

    name: ClassVar[str] = "dims"
    title: ClassVar[str] = "Dimensions one by one"
    Params: ClassVar[type[Params]] = DimsParams

    def analyze(self, view: View, params: DimsParams, pool: Pool) -> Report:
        chosen = subject(view, params.site, params.all_rows, pool)
        report = Report(self.name, f"{self.title} ({chosen.site})", left_out=chosen.all_left_out(view))
        found = measured(view, chosen, params.bins, pool)
        by_dim = _by_dim(found, chosen)
        table = _by_layer(found, by_dim, params.bins)
        ranking = [_ranked(by_dim, by, params.top) for by in ("variance", "entropy")]
        report.tables = {"by_layer": table, "by_dim": by_dim}
        if chosen.keep.any():
            say(report, table, by_dim, chosen.site)
        else:
            report.find(NOTHING_LEFT, "warning", rows=len(view))
        draw(report, table, by_dim, chosen.site)
        logits = _answer(report, view, chosen, found[0], params, pool)
        if logits is not None:
            effect = xr.Dataset({"effect": (("layer", "dim"), logits.effect.to_numpy()[None])}, {"layer": ["final"]})
            ranking.append(_ranked(effect, "effect", params.top))
        report.tables["ranking"] = pd.concat(ranking, ignore_index=True)
        return report


def measured(view: View, chosen: Subject, bins: int, pool: Pool) -> list[DimStats]:
    """The statistics of every layer."""
    layers, sampled = chosen.own_layers(view), chosen.own_layers(view, SAMPLE)
    tasks = [
        (layer, follows(view, layer.at), np.isin(layer.at, part.at))
        for layer, part in zip(layers, sampled, strict=True)
    ]
    return list(pool.map(partial(dim_stats, bins=bins), tasks, f"dimensions of {chosen.site}"))


def _by_dim(found: list[DimStats], chosen: Subject) -> xr.Dataset:
    data: dict[str, NDArray[Any]] = {key: np.stack([getattr(one, key) for one in found]) for key in DimStats.COLUMNS}
    total = data["variance"].sum(1, keepdims=True)
    data["share"] = data["variance"] / np.where(total > 0, total, 1.0)
    size, usual = data["median_size"], np.median(data["median_size"], 1)
    large = (size > OUTLIER * usual[:, None]) & (usual > 0)[:, None]
    massive = _massive(chosen, usual)
    data |= {"outlier": large | massive, "sink_only": massive & ~large}
    return xr.Dataset(
        {key: (("layer", "dim"), value) for key, value in data.items()},
        coords={"layer": chosen.names, "dim": np.arange(size.shape[1])},
    )


def _massive(chosen: Subject, usual: NDArray[np.float64]) -> NDArray[np.bool_]:
    """[layer, dim] True where a sink has its largest number, far above the layer's ``usual`` one."""
    facts = chosen.found
    flags = np.zeros((len(usual), facts.width), bool)
    for row in np.flatnonzero(facts.sink & ~facts.bad):
        layers = np.flatnonzero((facts.max_abs[row] > OUTLIER * usual) & (usual > 0))
        flags[layers, facts.dim[row, layers]] = True
    return flags


def _by_layer(found: list[DimStats], by_dim: xr.Dataset, bins: int) -> pd.DataFrame:
    share = by_dim.share.to_numpy()
    falling = np.cumsum(-np.sort(-share, axis=1), axis=1)
    hundredth, tenth = (max(1, round(part * share.shape[1])) - 1 for part in (0.01, 0.1))
    return pd.DataFrame(
        {
            "layer": by_dim.layer.to_numpy().tolist(),
            "variance": by_dim.variance.to_numpy().sum(1),
            "share_top_1pct": falling[:, hundredth],
            "share_top_10pct": falling[:, tenth],
            "top_dim": share.argmax(1),
            "top_dim_share": share.max(1),
            "entropy_median": percentile(by_dim.entropy.to_numpy().T),
            "stability_median": percentile(by_dim.stability.to_numpy().T),
            "rank_agreement": [one.rank_agreement for one in found],
            "rank_reliability": [one.rank_reliability for one in found],
            "outliers": by_dim.outlier.to_numpy().sum(1),
            "constant": (by_dim.variance.to_numpy() == 0).sum(1),
            "rows": [one.rows for one in found],
            "bins": bins,
            "sampled_rows": [one.sampled for one in found],
        }
    )


def _ranked(table: xr.Dataset, by: str, top: int) -> pd.DataFrame:
    """The ``top`` dimensions of every layer by one of their numbers."""
    parts = []
    for name, values in zip(table.layer.to_numpy().tolist(), table[by].to_numpy(), strict=True):
        first = np.argsort(-values, kind="stable")[:top]
        rank = 1 + np.arange(len(first))
        parts.append(pd.DataFrame({"layer": name, "by": by, "rank": rank, "dim": first, "value": values[first]}))
    return pd.concat(parts)


def _answer(
    report: Report, view: View, chosen: Subject, stats: DimStats, params: DimsParams, pool: Pool
) -> pd.DataFrame | None:
    """What the dimensions of ``final`` are to the logits, where the head of the model is here."""
    what = "effect on the logits"
    if "final" not in view.run.sites:
        report.left_out.append(f"{what}: the run has no final; record it with --sites {','.join(view.run.sites)},final")
        return None
    final = chosen if chosen.site == "final" else subject(view, "final", params.all_rows, pool)
    head, why = head_for(view, view.width("final"))
    if head is None or not final.keep.any():
        report.left_out.append(f"{what}: {why or 'no row is left'}")
        return None
    if final is not chosen:
        stats = measured(view, final, params.bins, pool)[0]
    return survival(report, view, final, stats, head, pool)
