"""What `dims` says and draws."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sotscope.analysis import figures
from sotscope.analysis.facts import OUTLIER
from sotscope.analysis.report import Report
from sotscope.analysis.wording import called, highest, lowest, span

DRIFT = 0.3
"""Ranks of the dimensions that agree so much less between the halves of the text than chance explains are changing."""
NAMED = 3
"""Outlier dimensions a sentence names."""


def say(report: Report, table: pd.DataFrame, by_dim: xr.Dataset, site: str) -> None:
    """Findings from ``by_layer`` and ``by_dim``."""
    _outliers(report, by_dim, site)
    live = table[table.variance > 0]
    if not len(live):
        rows = int(table.rows.iloc[0])
        report.find(f"Nothing varies: {rows} rows that are all the same." if rows > 1 else "Nothing varies: one row.")
        return
    most = highest(live, "share_top_10pct")
    report.find(
        f"A tenth of the dimensions of {called([most.layer])} holds {most.share_top_10pct:.0%} of its variance, "
        f"dimension {most.top_dim} alone {most.top_dim_share:.0%} (over the layers a tenth holds "
        f"{span(live.share_top_10pct, '.0%')}).",
        share_top_10pct=table.share_top_10pct.tolist(), top_dim=table.top_dim.tolist(),
    )  # fmt: skip
    _stability(report, live)
    fixed = live[live.constant > 0]
    if len(fixed):
        report.find(
            f"{span(fixed.constant, '.0f')} of {by_dim.sizes['dim']} dimensions never change in {called(fixed.layer)}.",
            layers=fixed.layer.tolist(), constant=fixed.constant.tolist(),
        )  # fmt: skip


def _outliers(report: Report, by_dim: xr.Dataset, site: str) -> None:
    flags, sink_only = by_dim.outlier.to_numpy(), by_dim.sink_only.to_numpy()
    if not flags.any():
        return
    names, often = by_dim.layer.to_numpy(), flags.sum(0)
    dims = np.argsort(-often, kind="stable")[: int((often > 0).sum())]
    parts = []
    for dim in dims[:NAMED]:
        in_sinks = " (in sinks only)" if sink_only[flags[:, dim], dim].all() else ""
        parts.append(f"dimension {dim} in {called(names[flags[:, dim]])}{in_sinks}")
    more = f"; {len(dims) - NAMED} more" if len(dims) > NAMED else ""
    report.find(
        f"Outlier dimensions of {site}, over {OUTLIER:.0f} times the usual size: {'; '.join(parts)}{more}.",
        dims=dims, layers={int(dim): names[flags[:, dim]] for dim in dims[:NAMED]},
    )  # fmt: skip


def _stability(report: Report, live: pd.DataFrame) -> None:
    if live.stability_median.notna().any():
        slow, fast = highest(live, "stability_median"), lowest(live, "stability_median")
        where = (
            f" (most in {called([slow.layer])}, least in {called([fast.layer])})" if slow.layer != fast.layer else ""
        )
        report.find(
            f"The median dimension correlates by {span(live.stability_median, 'z.2f')} between successive tokens{where}"
            "; 1 would be a dimension that stays.",
            stability=live.stability_median.tolist(),
        )  # fmt: skip
    drift = live[live.rank_agreement < live.rank_reliability - DRIFT]
    if len(drift):
        most = lowest(drift, "rank_agreement")
        report.find(
            f"Which dimensions vary most changes along the text in {called(drift.layer)}: in {called([most.layer])} "
            f"the ranks of its two halves correlate by {most.rank_agreement:.2f} (of alternate rows: "
            f"{most.rank_reliability:.2f}).",
            layers=drift.layer.tolist(), rank_agreement=drift.rank_agreement.tolist(),
            rank_reliability=drift.rank_reliability.tolist(),
        )  # fmt: skip


def draw(report: Report, table: pd.DataFrame, by_dim: xr.Dataset, site: str) -> None:
    """Figures of ``by_layer`` and ``by_dim``."""
    maps = {
        "variance": ("share", f"Share of the variance of {site}", "share of the layer's variance"),
        "entropy": ("entropy", f"Entropy of {site}", "nats"),
        "stability": ("stability", f"Correlation of successive tokens, {site}", "correlation"),
    }
    for name, (column, title, unit) in maps.items():
        report.figures[name] = partial(_map, by_dim[column], title, unit)
    series = {"largest 1 %": table.share_top_1pct, "largest 10 %": table.share_top_10pct}
    report.figures["by_layer"] = partial(
        figures.lines, series, f"Variance of {site} in its largest dimensions", "layer", "share of the variance",
        at=table.layer.tolist(),
    )  # fmt: skip


def _map(values: xr.DataArray, title: str, unit: str) -> Any:
    """A heatmap [layer, dim]; wide sites are drawn by the largest of neighbouring dimensions, as tokens are."""
    labels = [""] * values.sizes["dim"]
    made = figures.heatmap(values.to_numpy().T, labels, values.layer.to_numpy().tolist(), title, unit)
    made.update_xaxes(title="dimension")
    made.update_traces(hovertemplate=f"dimension %{{x}}<br>layer %{{text}}<br>%{{z:.4g}} {unit}<extra></extra>")
    return made
