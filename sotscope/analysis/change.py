"""`change`: how fast states change from token to token and from layer to layer, and how soon after a change of topic.

Cosines are given raw and about the layer's mean: a direction that all states share (a few large dimensions) makes any
two of them look alike (Ethayarajh 2019, arXiv 1909.00512; Timkey and van Schijndel 2021, arXiv 2109.04404).
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray
from pydantic import Field

from sotscope.analysis import figures
from sotscope.analysis.change_measures import MEASURES, Task, measure
from sotscope.analysis.contracts import Analyzer, Params, Pool
from sotscope.analysis.facts import percentile
from sotscope.analysis.moments import Subject, follows, subject
from sotscope.analysis.report import Report
from sotscope.analysis.switch import Switch, after_switch
from sotscope.analysis.view import View
from sotscope.analysis.wording import NOTHING_LEFT, called, highest, lowest

EVEN = 0.05
"""Cosines of layers that are no further apart are about alike."""
RESIDUAL = frozenset({"resid", "attn_out", "mlp_out"})
"""Sites of which all layers write into the same space."""
FROZEN = 0.01
"""A median step (1.4 for unrelated states) below this means that states do not change any more."""
ALIKE, APART = 0.8, 0.5
"""Cosines above the first that fall below the second about the mean owe it to what all states share."""


class ChangeParams(Params):
    site: str | None = None
    """Which states (default: ``resid``, or the first site there is)."""
    all_rows: bool = False
    """Count sinks in as well."""
    switch: int | None = Field(None, ge=1)
    """Row of the view with which the topic changes (default: the last user turn, or what the model wrote first)."""
    around: int = Field(256, ge=8)
    """Rows before and after the switch that are looked at."""


class Change(Analyzer):
    """Tables: ``by_token`` [token, layer], ``by_layer`` (medians), and ``switch``, ``response`` (see ``switch.py``).

    velocity, acceleration: L2 norm of the first and second difference of successive tokens' states. step: the root mean
    square over dimensions of the first difference, each over its dimension's own root mean square (0: equal states,
    1.4: unrelated ones). cosine, layer_cosine: to the token before, and to the same token in the layer before.
    """

    name: ClassVar[str] = "change"
    title: ClassVar[str] = "Change from token to token and layer to layer"
    Params: ClassVar[type[Params]] = ChangeParams

    def analyze(self, view: View, params: ChangeParams, pool: Pool) -> Report:
        chosen = subject(view, params.site, params.all_rows, pool)
        report = Report(self.name, f"{self.title} ({chosen.site})", left_out=chosen.all_left_out(view))
        values = _measured(view, chosen, pool)
        table = _by_layer(values, chosen)
        by_token = xr.Dataset(
            {key: (("token", "layer"), value) for key, value in values.items()},
            coords={"token": np.arange(len(view)), "layer": chosen.names, "label": ("token", view.labels)},
        )
        report.tables = {"by_layer": table, "by_token": by_token}
        _limits(report, chosen, table)
        if chosen.keep.any():
            _say(report, table)
            _say_jump(report, values["velocity_relative"], view)
            _say_layers(report, table)
        else:
            report.find(NOTHING_LEFT, "warning", rows=len(view))
        _draw(report, chosen, view, table, values)
        found = after_switch(view, chosen.everywhere(view), params.switch, params.around, pool)
        if isinstance(found, Switch):
            found.add_to(report, view)
        else:
            report.left_out.append(found)
        return report


def _measured(view: View, chosen: Subject, pool: Pool) -> dict[str, NDArray[np.float64]]:
    """Each of MEASURES as [token, layer], NaN where there is no such pair of rows that count."""
    layers = chosen.own_layers(view)
    tasks = [Task(layer, follows(view, layer.at)) for layer in layers]
    if _one_space(chosen):
        for below, task in zip(layers[:-1], tasks[1:], strict=True):
            task.below, task.under = below, chosen.layer(view, below.name, task.layer.at)
    values = {key: np.full((len(view), len(layers)), np.nan) for key in MEASURES}
    for column, found in enumerate(pool.map(measure, tasks, f"change of {chosen.site}")):
        for key, value in zip(MEASURES, found, strict=True):
            values[key][layers[column].at, column] = value
    usual = percentile(values["velocity"])
    values["velocity_relative"] = values["velocity"] / np.where(usual > 0, usual, np.nan)
    return values


def _one_space(chosen: Subject) -> bool:
    """Whether a number of a state means the same in all layers: heads and MLPs have axes of their own."""
    return chosen.site in RESIDUAL


def _by_layer(values: dict[str, NDArray[np.float64]], chosen: Subject) -> pd.DataFrame:
    table = {"layer": chosen.names, "velocity_p95": percentile(values["velocity"], 95)}
    table |= {f"{key}_median": percentile(values[key]) for key in MEASURES}
    return pd.DataFrame(table)


def _limits(report: Report, chosen: Subject, table: pd.DataFrame) -> None:
    if table.velocity_median.isna().all():
        report.left_out.append("change from token to token: no two rows that count stand next to each other")
    if len(chosen.names) < 2:
        report.left_out.append(f"change from layer to layer: there is one layer of {chosen.site} in this view")
    elif not _one_space(chosen):
        report.left_out.append(f"change from layer to layer: each layer of {chosen.site} has axes of its own")


def _say(report: Report, table: pd.DataFrame) -> None:
    frozen = table[table.step_median < FROZEN]
    if len(frozen):
        report.find(
            f"The states hardly change from token to token any more in {called(frozen.layer)}: the median step is "
            f"{frozen.step_median.max():.1g} of a dimension's usual size or less (unrelated states: 1.4).",
            "alarm", layers=frozen.layer.tolist(), step=table.step_median.tolist(),
        )  # fmt: skip
    alike = table[(table.cosine_median > ALIKE) & (table.cosine_centred_median < APART)]
    if len(alike):
        worst = highest(alike, "cosine_median")
        report.find(
            f"Successive tokens look alike (cosine {worst.cosine_median:.2f} in {called([worst.layer])}) because of "
            f"what all states share; about the mean it is {worst.cosine_centred_median:.2f}.",
            layers=alike.layer.tolist(), raw=alike.cosine_median.tolist(),
            centred=alike.cosine_centred_median.tolist(),
        )  # fmt: skip


def _say_jump(report: Report, relative: NDArray[np.float64], view: View) -> None:
    moving = relative[:, ~np.isnan(relative).all(0)]
    rows = np.flatnonzero(np.isfinite(moving).all(1))
    if moving.size and len(rows):
        across = np.median(moving[rows], 1)
        at, times = int(rows[across.argmax()]), float(across.max())
        report.find(
            f"The states change most at token {at} {view.labels[at]!r}: {times:.2g} times the usual step (median over "
            f"the layers).",
            token=at, times=times,
        )  # fmt: skip


def _say_layers(report: Report, table: pd.DataFrame) -> None:
    column = "layer_cosine_centred_median"
    turn = table[column]
    if not turn.notna().any():
        return
    most, least = lowest(table, column), highest(table, column)
    if turn.max() - turn.min() < EVEN:
        text = "All layers turn the states about alike (median cosine to the layer before, about the means, "
        text += f"{turn.median():.2f})."
    else:
        text = f"Layer {most.layer} turns the states most (median cosine to the layer before, about the means, "
        text += f"{turn.min():.2f}), layer {least.layer} least ({turn.max():.2f})."
    report.find(text, most=most.layer, least=least.layer, cosine=turn.tolist())


def _draw(
    report: Report, chosen: Subject, view: View, table: pd.DataFrame, values: dict[str, NDArray[np.float64]]
) -> None:
    heat = partial(figures.heatmap, labels=view.labels, layers=chosen.names)
    site = chosen.site
    report.figures["velocity"] = partial(
        heat, values["velocity_relative"], title=f"Change of {site} from the token before",
        unit="L2 distance / layer's median",
    )  # fmt: skip
    report.figures["cosine"] = partial(
        heat, values["cosine_centred"], title=f"Cosine of {site} to the token before, about the layer's mean",
        unit="cosine", diverging=True,
    )  # fmt: skip
    series = {
        "token before, raw": table.cosine_median,
        "token before, about the mean": table.cosine_centred_median,
    }
    if table.layer_cosine_median.notna().any():
        report.figures["layer_cosine"] = partial(
            heat, values["layer_cosine_centred"], title=f"Cosine of {site} to the layer before, about the means",
            unit="cosine", diverging=True,
        )  # fmt: skip
        series |= {
            "layer before, raw": table.layer_cosine_median,
            "layer before, about the mean": table.layer_cosine_centred_median,
        }
    report.figures["by_layer"] = partial(
        figures.lines, series, f"Cosine of {site} to its neighbours, median over tokens", "layer", "cosine",
        at=chosen.names,
    )  # fmt: skip
