"""`norms`: how large states are, per layer and token; sinks and massive activations found robustly.

Sources: attention sinks, Xiao et al. 2023 (arXiv 2309.17453); massive activations, Sun et al. 2024 (arXiv 2402.17762).
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from sotscope.analysis import figures
from sotscope.analysis.contracts import Analyzer, Params, Pool
from sotscope.analysis.facts import RowFacts, percentile
from sotscope.analysis.moments import subject
from sotscope.analysis.report import Report
from sotscope.analysis.view import View
from sotscope.analysis.wording import NOTHING_LEFT
from sotscope.plain import ranges

MASSIVE = 50.0
"""A largest number this many times the layer's median one is a massive activation."""
GROWTH = 3.0
"""A layer whose median norm is this many times that of the layer before is worth a sentence."""


class NormParams(Params):
    site: str | None = None
    """Which states (default: ``resid``, or the first site there is)."""
    all_rows: bool = False
    """Count sinks in as well."""


class Norms(Analyzer):
    name: ClassVar[str] = "norms"
    title: ClassVar[str] = "Size of the states"
    Params: ClassVar[type[Params]] = NormParams

    def analyze(self, view: View, params: NormParams, pool: Pool) -> Report:
        chosen = subject(view, params.site, params.all_rows, pool)
        site, layers, found, keep = chosen.site, chosen.names, chosen.found, chosen.keep
        report = Report(self.name, f"{self.title} ({site})", left_out=chosen.left_out)
        by_layer = _by_layer(found, keep, layers)
        report.tables = {
            "by_layer": by_layer,
            "by_token": _by_token(found, view, layers),
            "rows": _rows(found, view),
        }
        _say(report, found, keep, layers, view)
        report.figures = {
            "heatmap": partial(
                figures.heatmap, found.norm, view.labels, layers, f"L2 norm of {site}, token by layer", "L2 norm"
            ),
            "by_layer": partial(_profile, by_layer, site),
        }
        return report


def _by_layer(found: RowFacts, keep: NDArray[np.bool_], layers: list[Any]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "layer": layers,
            "norm_median": percentile(found.norm[keep]),
            "norm_p05": percentile(found.norm[keep], 5),
            "norm_p95": percentile(found.norm[keep], 95),
            "rms_median": percentile(found.rms[keep]),
            "max_abs_median": percentile(found.max_abs[keep]),
            "kurtosis_median": percentile(found.kurtosis[keep]),
            "nonfinite": found.nonfinite.sum(0),
        }
    )


def _by_token(found: RowFacts, view: View, layers: list[Any]) -> xr.Dataset:
    data = {"norm": found.norm, "rms": found.rms, "max_abs": found.max_abs, "kurtosis": found.kurtosis}
    return xr.Dataset(
        {key: (("token", "layer"), value) for key, value in data.items()},
        coords={"token": np.arange(len(view)), "layer": layers, "label": ("token", view.labels)},
    )


def _rows(found: RowFacts, view: View) -> pd.DataFrame:
    """The rows that are tagged, and why."""
    tagged = np.flatnonzero(found.sink | found.bad)
    middle = float(percentile(found.norm.reshape(-1)))
    return pd.DataFrame(
        {
            "token": tagged,
            "label": [view.labels[i] for i in tagged],
            "tag": ["nonfinite" if found.bad[i] else "sink" for i in tagged],
            "times_median": [_most(found.norm[i]) / middle for i in tagged],
            "dim": [int(np.bincount(found.dim[i]).argmax()) for i in tagged],
        }
    )


def _most(values: NDArray[np.float64]) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if len(finite) else float("nan")


def _count(number: int, what: str = "row") -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def massive(found: RowFacts) -> NDArray[np.bool_]:
    """[token, layer] True where the largest number is far above what is usual in its layer."""
    if not found.keep.any():
        return np.zeros(found.max_abs.shape, bool)
    result: NDArray[np.bool_] = found.max_abs > MASSIVE * percentile(found.max_abs[~found.bad])
    return result


def _say(report: Report, found: RowFacts, keep: NDArray[np.bool_], layers: list[Any], view: View) -> None:
    bad = np.flatnonzero(found.bad)
    if len(bad):
        at = int(np.flatnonzero(found.nonfinite[bad[0]])[0])
        report.find(
            f"{len(bad)} of {len(view)} rows hold NaN or infinity, first at token {bad[0]} in layer {layers[at]}.",
            "alarm", rows=bad[:100], first_layer=layers[at],
        )  # fmt: skip
    sink = np.flatnonzero(found.sink & ~found.bad)
    if len(sink):
        times = np.nanmax(found.norm[sink] / percentile(found.norm[~found.sink]))
        report.find(
            f"{_count(len(sink), 'sink row')} (token {ranges(sink.tolist())}): the norm reaches "
            f"{times:.3g} times the median of its layer.",
            rows=sink, times=times,
        )  # fmt: skip
    high = massive(found)
    if high.any():
        dims = np.bincount(found.dim[high])
        top = np.argsort(-dims)[: min(3, int((dims > 0).sum()))]
        report.find(
            f"Massive activations in {_count(int(high.any(1).sum()))}, in dimension {' and '.join(map(str, top))} "
            f"(largest {np.nanmax(found.max_abs):.4g}).",
            dims=top, rows=np.flatnonzero(high.any(1))[:100], largest=np.nanmax(found.max_abs),
        )  # fmt: skip
    if len(layers) > 1 and keep.any():
        middle = percentile(found.norm[keep])
        growth = middle[1:] / np.where(middle[:-1] > 0, middle[:-1], np.nan)
        jump = ""
        if np.isfinite(growth).any() and np.nanmax(growth) >= GROWTH:
            into = layers[int(np.nanargmax(growth)) + 1]
            jump = f"; the largest jump, {np.nanmax(growth):.3g} times, is into layer {into}"
        report.find(
            f"The median norm goes from {middle[0]:.4g} in layer {layers[0]} to {middle[-1]:.4g} in layer "
            f"{layers[-1]}{jump}.",
            first=middle[0], last=middle[-1], growth=growth,
        )  # fmt: skip
    elif keep.any():
        middle = percentile(found.norm[keep])
        report.find(f"The median norm in layer {layers[0]} is {middle[0]:.4g}.", median=middle[0])
    if not keep.any():
        report.find(NOTHING_LEFT, "warning", rows=len(view))


def _profile(table: pd.DataFrame, site: str) -> Any:
    series = {"95 %": table.norm_p95, "median": table.norm_median, "5 %": table.norm_p05}
    return figures.lines(
        series, f"L2 norm of {site} by layer, over tokens", "layer", "L2 norm", at=table.index, log=True
    )
