"""`pca`: how many directions the states of a layer use, and how far they can be compressed.

Sources: participation ratio, Gao et al. 2017 (bioRxiv 214262); intrinsic dimension by two nearest neighbours (TwoNN),
Facco et al. 2017 (Scientific Reports 7, 12140).
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray
from pydantic import Field

from sotscope.analysis import figures
from sotscope.analysis.agreement import ROWS, agreement, head_for
from sotscope.analysis.contracts import Analyzer, Params, Pool
from sotscope.analysis.head import Head
from sotscope.analysis.moments import Layer, Subject, subject
from sotscope.analysis.report import Report
from sotscope.analysis.spectrum import eight_bit, leading_row, spectrum, twonn
from sotscope.analysis.view import View
from sotscope.analysis.wording import NOTHING_LEFT, called, highest, lowest, span

DOMINANT = 0.5
"""A direction with this share of the variance is worth a sentence."""
SHOWN = 5
"""Layers a figure of spectra shows at most."""


class PcaParams(Params):
    site: str | None = None
    """Which states (default: ``resid``, or the first site there is)."""
    all_rows: bool = False
    """Count sinks in as well."""
    components: int = Field(64, ge=1)
    """Leading components whose shares are listed; there are never more than rows, or than dimensions."""
    neighbours: int = Field(1024, ge=16)
    """Rows the intrinsic dimension is estimated from."""


class Pca(Analyzer):
    """Tables: ``by_layer``; ``spectrum`` [layer, component], shares of the variance and their sums; ``logits`` of
    rebuilt states.

    error: L2 norm of what is lost over that of the states; lost: over their variance. half: half of the components
    there are; 8bit: each dimension in 255 equal steps between its extremes. first_dim, first_token: where most of the
    first component comes from, and which share of it.
    """

    name: ClassVar[str] = "pca"
    title: ClassVar[str] = "Dimensions that are used"
    Params: ClassVar[type[Params]] = PcaParams

    def analyze(self, view: View, params: PcaParams, pool: Pool) -> Report:
        chosen = subject(view, params.site, params.all_rows, pool)
        report = Report(self.name, f"{self.title} ({chosen.site})", left_out=chosen.all_left_out(view))
        most = min(len(chosen.kept), view.width(chosen.site))
        listed = min(params.components, most)
        layers = chosen.own_layers(view)
        near = chosen.own_layers(view, params.neighbours)
        work = partial(_layer, listed=listed)
        lines, shares = [], []
        for line, found in pool.map(work, list(zip(layers, near, strict=True)), f"components of {chosen.site}"):
            lines.append(line)
            shares.append(found)
        table = pd.DataFrame(lines)
        share = np.array(shares).reshape(len(lines), listed)
        spectra = xr.Dataset(
            {"share": (("layer", "component"), share), "cumulative": (("layer", "component"), np.cumsum(share, 1))},
            coords={"layer": chosen.names, "component": np.arange(1, listed + 1)},
        )
        report.tables = {"by_layer": table, "spectrum": spectra}
        _limits(report, params, most, len(chosen.kept), view.width(chosen.site))
        if len(chosen.kept):
            _say(report, table, view.labels)
        else:
            report.find(NOTHING_LEFT, "warning", rows=len(view))
        _logits(report, view, chosen, table, pool)
        _draw(report, chosen.site, table, spectra)
        return report


def _layer(task: tuple[Layer, Layer], listed: int) -> tuple[dict[str, Any], NDArray[np.float64]]:
    """The line of one layer, and the shares of its leading components."""
    layer, near = task
    found = spectrum(layer)
    dimension, used = twonn(near.all())
    line: dict[str, Any] = {"layer": layer.name, "rows": len(layer), "variance": found.variance}
    line |= {"components": found.count, "components_90": found.needed(0.90), "components_95": found.needed(0.95)}
    line |= {"participation_ratio": found.participation, "intrinsic_dim": dimension, "intrinsic_rows": used}
    line |= {"first_share": found.shares[0] if found.count else np.nan}
    line |= {"first_dim": found.top_dim, "first_dim_share": found.top_dim_share}
    line["first_token"], line["first_token_share"] = leading_row(layer, found)
    line |= {"error_half": found.error(found.half), "lost_half": found.lost(found.half)}
    line |= {"error_8bit": found.error_8bit, "lost_8bit": found.lost_8bit}
    return line, found.shares[:listed]


def _limits(report: Report, params: PcaParams, most: int, rows: int, width: int) -> None:
    """What few rows allow, said once."""
    if params.components > most:
        report.left_out.append(f"components beyond {most}: {rows} rows of {width} numbers have no more")
    if rows <= 2 * width:
        report.left_out.append(
            f"{rows} rows of {width} numbers: counts of components are at most {max(0, min(rows - 1, width))} and grow "
            f"with more rows; rebuilding from components is measured on the rows they were fitted to"
        )


def _say(report: Report, table: pd.DataFrame, labels: list[str]) -> None:
    flat = table[table.variance == 0].layer.tolist()
    if flat:
        rows = int(table.rows.iloc[0])
        what = f"its {rows} rows are all the same" if rows > 1 else "there is one row"
        report.find(f"There is no variance in {called(flat)}: {what}.", "warning" if rows > 1 else "note", layers=flat)
    real = table[table.variance > 0]
    if not len(real):
        return
    few, many = lowest(real, "components_90"), highest(real, "components_90")
    text = f"90 % of the variance takes {few.components_90} components in {called([few.layer])}"
    if few.components_90 != many.components_90:
        text += f" and {many.components_90} in {called([many.layer])}"
    report.find(
        f"{text}; the effective rank (participation ratio) is {span(real.participation_ratio)}.",
        components_90=table.components_90.tolist(), participation_ratio=table.participation_ratio.tolist(),
    )  # fmt: skip
    _say_dominant(report, real[real.first_share > DOMINANT], labels)
    if real.intrinsic_dim.notna().any():
        low, high = lowest(real, "intrinsic_dim"), highest(real, "intrinsic_dim")
        where = f" (least in {called([low.layer])}, most in {called([high.layer])})" if low != high else ""
        report.find(
            f"Neighbouring states vary along {span(real.intrinsic_dim, '.1f')} dimensions{where}, by TwoNN on "
            f"{int(real.intrinsic_rows.max())} rows.",
            intrinsic_dim=table.intrinsic_dim.tolist(),
        )  # fmt: skip


def _say_dominant(report: Report, dominant: pd.DataFrame, labels: list[str]) -> None:
    if not len(dominant):
        return
    top = highest(dominant, "first_share")
    alone = top.first_token_share > DOMINANT
    token = f", {top.first_token_share:.0%} comes from token {top.first_token} {labels[top.first_token]!r} alone"
    report.find(
        f"One direction holds over half of the variance in {called(dominant.layer)}: in {called([top.layer])} it holds "
        f"{top.first_share:.0%}, {top.first_dim_share:.0%} of it lies in dimension {top.first_dim}"
        f"{token if alone else ''}.",
        layers=dominant.layer.tolist(), share=dominant.first_share.tolist(), dim=dominant.first_dim.tolist(),
        token=dominant.first_token.tolist(), token_share=dominant.first_token_share.tolist(),
    )  # fmt: skip


def _logits(report: Report, view: View, chosen: Subject, by_layer: pd.DataFrame, pool: Pool) -> None:
    """What the head makes of rebuilt states: of ``final``, or of the last block through the final norm."""
    what = f"logits of rebuilt {chosen.site}"
    head, at, why = _head(view, chosen)
    if head is None or not chosen.keep.any():
        report.left_out.append(f"{what}: {why or 'no row is left'}")
        return
    found = spectrum(chosen.own_layers(view)[at], vectors=True)
    states = chosen.own_layers(view, ROWS)[at].all()
    assert found.vectors is not None
    axes = found.vectors[:, : found.half]
    all_states: dict[str, NDArray[Any]] = {
        "true": states,
        f"{found.half} components": found.mean + (states - found.mean) @ axes @ axes.T,
        "8 bits": eight_bit(states, found.low, found.high),
    }
    if chosen.site == "resid":
        all_states = {name: head.normed(one) for name, one in all_states.items()}
    table = agreement(head, all_states.pop("true"), all_states, pool, what)
    report.tables["logits"] = table
    (half, eight), line = table.itertuples(), list(by_layer.itertuples())[at]
    report.find(
        f"Of {called([line.layer])}, {half.name} rebuild the states to within {line.error_half:.1%} of their size and "
        f"keep the top token in {half.top1:.0%} of {half.rows} rows (KL {half.kl:.2g} nats); {eight.name} a number: "
        f"{line.error_8bit:.1%}, {eight.top1:.0%}, {eight.kl:.2g} nats.",
        components=found.half, top1=table.top1.tolist(), kl=table.kl.tolist(), rows=half.rows,
    )  # fmt: skip


def _head(view: View, chosen: Subject) -> tuple[Head | None, int, str]:
    """The head, which of the layers leads to it, and why there is none."""
    if chosen.site not in ("final", "resid"):
        return None, 0, "only final, or resid of the last layer, leads to logits"
    head, why = head_for(view, view.width("final") if chosen.site == "final" else None)
    if head is None or chosen.site == "final":
        return head, 0, why
    if head.layers - 1 not in chosen.names:
        return None, 0, f"the last layer, {head.layers - 1}, is not in this view"
    if head.norm == "unknown":
        return None, 0, "the final norm of this model is of a kind that sotscope does not know"
    return head, chosen.names.index(head.layers - 1), ""


def _draw(report: Report, site: str, table: pd.DataFrame, spectra: xr.Dataset) -> None:
    names = table.layer.tolist()
    shown = np.unique(np.linspace(0, len(table) - 1, min(SHOWN, len(table))).round().astype(int))
    report.figures["spectrum"] = partial(
        figures.lines, {called([names[i]]): spectra["cumulative"].to_numpy()[i] for i in shown},
        f"Variance of {site} that the leading components hold", "components", "share of the variance",
        at=np.arange(1, spectra.sizes["component"] + 1),
    )  # fmt: skip
    series = {
        "components for 90 %": table.components_90, "components for 95 %": table.components_95,
        "effective rank": table.participation_ratio, "intrinsic dimension": table.intrinsic_dim,
    }  # fmt: skip
    report.figures["by_layer"] = partial(
        figures.lines, series, f"Dimensions that {site} uses", "layer", "dimensions", at=names, log=True
    )
    report.figures["compression"] = partial(
        figures.lines, {"half of the components": table.error_half, "8 bits a number": table.error_8bit},
        f"Relative error of {site}, rebuilt", "layer", "L2 of the error / L2 of the states", at=names,
    )  # fmt: skip
