"""A run next to another one, for `similarity`: the rows that stand after the same tokens, layer by layer."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from sotscope.analysis import figures, grids
from sotscope.analysis.cka import FEWEST, cka, layer_vectors
from sotscope.analysis.contracts import Pool
from sotscope.analysis.moments import Layer, Subject, subject
from sotscope.analysis.report import Report
from sotscope.analysis.view import View
from sotscope.analysis.wording import span
from sotscope.store.reader import open_run


def compare(
    report: Report,
    view: View,
    ours: Subject,
    path: str,
    *,
    rows: int,
    debiased: bool,
    alike: float,
    all_rows: bool,
    pool: Pool,
) -> None:
    """Add to ``report`` how the run at ``path`` compares, over the rows up to the first token that differs.

    Layers are matched one to one where both have as many; the CKA of all pairs is there in any case. Raises StoreError
    for a run that cannot be read, AnalysisError for one without the site.
    """
    other = _other(view, path)
    theirs = subject(other, ours.site, all_rows, pool)
    if not all_rows:
        theirs = theirs.everywhere(other)
    name = other.run.path.name
    shared = common_prefix(view, other)
    report.left_out += [f"{name}: {line}" for line in theirs.left_out if line not in ours.left_out]
    keep = np.zeros(len(view), bool)
    keep[:shared] = ours.keep[:shared] & theirs.keep[:shared]
    at = view.sample(rows, keep)
    if len(at) < FEWEST:
        report.find(
            f"{name} cannot be compared: {shared} rows stand after the same tokens, {len(at)} of them count, and CKA "
            f"needs {FEWEST}.", "warning", shared=shared, rows=len(at),
        )  # fmt: skip
        return
    layers, their_layers = ours.layers(view, at), theirs.layers(other, at)
    similar = cka(layer_vectors(layers, debiased, pool), layer_vectors(their_layers, debiased, pool))
    report.tables["cka_other"] = xr.DataArray(
        similar, dims=("layer", "other_layer"), coords={"layer": ours.names, "other_layer": theirs.names}, name="cka"
    )
    report.figures["cka_other"] = partial(
        grids.grid, similar, ("layer", ours.names), (f"layer of {name}", theirs.names),
        f"CKA of {ours.site} with {name}, over {len(at)} rows", "CKA",
    )  # fmt: skip
    table = _nearest(similar, ours.names, theirs.names)
    if len(layers) == len(their_layers):
        table["other_layer"], table["cka"] = theirs.names, np.diagonal(similar)
        if layers[0].width == their_layers[0].width:
            pairs = list(zip(layers, their_layers, strict=True))
            found = np.array(list(pool.map(_distance, pairs, f"cosines with {name}")))
            table["cosine"], table["relative"] = found.T
        else:
            why = f"their states have other sizes ({layers[0].width} and {their_layers[0].width} numbers)"
            report.left_out.append(f"cosines with {name}: {why}")
        _draw(report, table, ours.site, name)
    else:
        report.left_out.append(
            f"{name}, layer by layer: it has {len(their_layers)} layers of {ours.site}, not {len(layers)}; all pairs "
            "are compared"
        )
    report.tables["matched"] = table
    _say(report, table, name, len(at), alike)


def _other(view: View, path: str) -> View:
    """The same part of the run at ``path``; the same layers only if it has as many."""
    run = open_run(path, live=True)
    same = len(run.layers) == len(view.run.layers) and set(view.layers) <= set(run.layers)
    return View(run, view.selection if same else view.selection.model_copy(update={"layers": None}))


def common_prefix(view: View, other: View) -> int:
    """How many rows from the beginning have the very same tokens, by number and by text."""
    count = min(len(view), len(other))
    same = view.tokens.ids[:count] == other.tokens.ids[:count]
    same &= np.array([a == b for a, b in zip(view.labels[:count], other.labels[:count], strict=True)], bool)
    return count if same.all() else int(same.argmin())


def _nearest(similar: NDArray[np.float64], names: list[Any], others: list[Any]) -> pd.DataFrame:
    """Which layer of the other run each layer is most like."""
    best = np.where(np.isnan(similar), -np.inf, similar).argmax(1)
    most = similar[np.arange(len(names)), best]
    nearest = [None if np.isnan(value) else others[k] for k, value in zip(best, most, strict=True)]
    return pd.DataFrame({"layer": names, "nearest": nearest, "nearest_cka": most})


def _distance(pair: tuple[Layer, Layer]) -> tuple[float, float]:
    """Mean cosine of the rows, and the median of ‖b - a‖ / ‖a‖; rows of zeros left out."""
    a, b = (layer.all() for layer in pair)
    size, other = np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)
    both = (size > 0) & (other > 0)
    if not both.any():
        return float("nan"), float("nan")
    cosine = np.einsum("td,td->t", a[both], b[both]) / (size[both] * other[both])
    return float(cosine.mean()), float(np.median(np.linalg.norm(b - a, axis=1)[both] / size[both]))


def _draw(report: Report, table: pd.DataFrame, site: str, name: str) -> None:
    series = {key: table[key] for key in ("cka", "cosine") if key in table}
    report.figures["matched"] = partial(
        figures.lines, series, f"{site} next to {name}, layer by layer", "layer", "CKA, mean cosine", at=table.index
    )


def _say(report: Report, table: pd.DataFrame, name: str, rows: int, alike: float) -> None:
    compared = "cka" if "cka" in table else "nearest_cka"
    if table[compared].isna().all():
        report.find(f"{name}: no layer varies over the {rows} rows that are compared, so there is no CKA.", "warning")
        return
    lowest = table.iloc[int(np.nanargmin(table[compared]))]
    if compared == "cka":
        text = f"Next to {name}, over {rows} rows, layers have a CKA of {span(table.cka)} with their like"
        if lowest.cka < alike:
            text += f", lowest in layer {lowest.layer}"
        if "relative" in table:
            text += f"; states differ by up to {table.relative.max():.2g} of their size"
    else:
        best = table.iloc[int(np.nanargmax(table[compared]))]
        text = (
            f"Next to {name}, over {rows} rows, layer {best.layer} is most like its layer {best.nearest} (CKA "
            f"{best.nearest_cka:.2g}); layer {lowest.layer} is least like any ({lowest.nearest_cka:.2g})"
        )
    report.find(f"{text}.", rows=rows, lowest=lowest[compared], layer=lowest.layer)
