"""`heads`: how much each attention head puts out, dead and dominant ones, and heads that leave their own past."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field
from scipy.stats import median_abs_deviation

from sotscope.analysis import figures, grids
from sotscope.analysis.contracts import Analyzer, Params, Pool
from sotscope.analysis.head_norms import HeadNorms, divergence, head_norms, measured, robust_z
from sotscope.analysis.report import Report
from sotscope.analysis.view import View
from sotscope.analysis.wording import NOTHING_LEFT
from sotscope.errors import AnalysisError
from sotscope.store.reader import open_run

DEAD = 0.01
"""A head whose median norm is no more than this part of its layer's median head is dead."""
DOMINANT, TIMES = 0.5, 3.0
"""A head is dominant with more than this share of its layer's energy, and so many times an even share."""
SHARED = 0.25
"""Where more than this part of all heads diverge, the text has changed and not a head."""
WARN = 3.0
"""Heads follow the text; one that goes so many times as far as the limits deserves a look."""
TOGETHER = 64
"""Heads of a task."""
DRAWN = 4
"""Heads whose course is drawn."""


class HeadParams(Params):
    window: Annotated[int, Field(ge=4)] = 32
    """Tokens that are held against all before them."""
    far: Annotated[float, Field(gt=0)] = 4.0
    """A head diverges that is so many robust standard deviations of single tokens away ..."""
    factor: Annotated[float, Field(gt=1)] = 2.0
    """... and whose norm has changed by this factor."""
    baseline: str | None = None
    """Path of a run of the same model to hold medians against."""
    all_rows: bool = False
    """Count sinks in as well."""


class Heads(Analyzer):
    """Tables: ``by_head`` and ``course`` (norms by token of the heads that diverge most).

    norm: L2 norm of a head's output, before the output projection. share: its square in those of the layer's heads
    together. Of the window farthest from the past: divergence (1 on: it diverges), z (robust, in logs), times (its norm
    over the past's); onset is the token with which the first such window began (-1: none). baseline_z and so on: of
    this run's median against the baseline's.
    """

    name: ClassVar[str] = "heads"
    title: ClassVar[str] = "Attention heads"
    any_site: ClassVar[tuple[str, ...]] = ("head_out",)
    Params: ClassVar[type[Params]] = HeadParams

    def analyze(self, view: View, params: HeadParams, pool: Pool) -> Report:
        found = head_norms(view, params.all_rows, pool)
        report = Report(self.name, f"{self.title} ({found.source})", left_out=list(found.left_out))
        table = report.tables["by_head"] = _by_head(found)
        grid = partial(_grid, table, found)
        report.figures["share"] = partial(
            grid, "share_median", "A head's share of its layer, median over tokens", "share"
        )
        if not found.keep.any():
            report.find(NOTHING_LEFT, "warning", rows=len(view))
            return report
        _say_sizes(report, table)
        if found.keep.sum() < 2 * params.window:
            report.left_out.append(
                f"heads against their past: {2 * params.window} rows are needed (window=...), {found.keep.sum()} count"
            )
        else:
            _history(table, found, view, params, pool)
            _say_history(report, table, params)
            title = f"{params.window} tokens against all before them, where they are farthest"
            report.figures["divergence"] = partial(grid, "z", title, "robust z", diverging=True)
        if params.baseline is not None:
            name = _baseline(table, found, view, params, pool)
            _say_baseline(report, table, name)
            title = f"Median norm against that of {name}"
            report.figures["baseline"] = partial(grid, "baseline_z", title, "robust z", diverging=True)
        _course(report, table, found, view)
        return report


def _percentile(values: NDArray[np.float64], q: float = 50, axis: int = 0) -> NDArray[np.float64]:
    """Along ``axis``, of what is not NaN; NaN where nothing is."""
    some = ~np.isnan(values).all(axis)
    found = np.full(some.shape, np.nan)
    if some.any():
        found[some] = np.nanpercentile(np.moveaxis(values, axis, 0)[:, some], q, axis=0)
    return found


def _by_head(found: HeadNorms) -> pd.DataFrame:
    """A line a head, layer by layer."""
    kept = found.kept
    energy = kept**2
    total = energy.sum(-1, keepdims=True)
    share = np.divide(energy, total, out=np.full_like(energy, np.nan), where=total > 0)
    layers, heads = kept.shape[1:]
    norm = _percentile(kept)
    mad = median_abs_deviation(kept, axis=0) if len(kept) else np.full_like(norm, np.nan)
    typical = _percentile(norm, axis=1)[:, None]
    dead = norm <= DEAD * typical
    part = _percentile(share)
    dominant = (part > DOMINANT) & (part > TIMES / heads)
    columns = {"norm_median": norm, "norm_mad": mad, "share_median": part}
    columns |= {f"share_p{q:02d}": _percentile(share, q) for q in (5, 95)}
    table = pd.DataFrame({"layer": np.repeat(found.layers, heads), "head": np.tile(np.arange(heads), layers)})
    table[list(columns)] = np.stack([column.ravel() for column in columns.values()], axis=1)
    table["state"] = np.where(dead, "dead", np.where(dominant, "dominant", "")).ravel()
    return table


def _history(table: pd.DataFrame, found: HeadNorms, view: View, params: HeadParams, pool: Pool) -> None:
    logs = np.log(found.kept + found.floor()).reshape(int(found.keep.sum()), -1)
    work = partial(divergence, window=params.window, far=params.far, factor=params.factor)
    tasks = [logs[:, begin : begin + TOGETHER] for begin in range(0, logs.shape[1], TOGETHER)]
    parts = list(pool.map(work, tasks, "heads against their past"))
    table["divergence"] = np.concatenate([part.measure for part in parts])
    table["z"] = np.concatenate([part.z for part in parts])
    table["times"] = np.concatenate([part.times for part in parts])
    onset = np.concatenate([part.onset for part in parts])
    table["onset"] = np.where(onset < 0, -1, np.flatnonzero(found.keep)[onset])
    table["onset_label"] = [view.labels[i] if i >= 0 else "" for i in table.onset]


def _baseline(table: pd.DataFrame, found: HeadNorms, view: View, params: HeadParams, pool: Pool) -> str:
    """Adds baseline_median and baseline_z to ``table``; returns the baseline's name."""
    run = open_run(str(params.baseline), live=True)
    name = run.path.name
    missing = [layer for layer in found.layers if layer not in run.layers]
    if missing:
        raise AnalysisError(f"{name} has no layer {missing[0]}; a baseline is a run of the same model.")
    theirs = head_norms(View(run, view.selection.model_copy(update={"layers": found.layers})), params.all_rows, pool)
    if theirs.norm.shape[1:] != found.norm.shape[1:]:
        here, there = (f"{norms.norm.shape[1]} layers of {norms.norm.shape[2]} heads" for norms in (found, theirs))
        raise AnalysisError(f"{name} has {there}, this run has {here}; a baseline is a run of the same model.")
    if not theirs.keep.any():
        raise AnalysisError(f"{name}: no row of it counts, so it is no baseline.")
    floor = theirs.floor()
    z, _, deviation = robust_z(np.log(found.kept + floor), np.log(theirs.kept + floor))
    table["baseline_median"] = np.median(theirs.kept, axis=0).ravel()
    table["baseline_divergence"] = measured(z, z * deviation, params.far, params.factor).ravel()
    table["baseline_z"] = z.ravel()
    table["baseline_times"] = np.exp(z * deviation).ravel()
    return name


def _named(lines: pd.DataFrame, count: int = 5) -> str:
    """Heads in a sentence."""
    named = [f"layer {line.layer} head {line.head}" for line in lines.head(count).itertuples()]
    return ", ".join(named) + (f" and {len(lines) - count} more" if len(lines) > count else "")


def _say_sizes(report: Report, table: pd.DataFrame) -> None:
    dead, dominant = table[table.state == "dead"], table[table.state == "dominant"]
    if len(dead):
        report.find(
            f"{len(dead)} of {len(table)} heads put out next to nothing (at most {100 * DEAD:g} % of their layer's "
            f"median norm): {_named(dead)}.", "warning", heads=dead[["layer", "head"]].to_numpy(),
        )  # fmt: skip
    if len(dominant):
        lines = dominant.sort_values("share_median", ascending=False)
        report.find(
            f"More than half of their layer's energy (up to {100 * lines.share_median.iloc[0]:.3g} %) comes from "
            f"{_named(lines)}.", heads=lines[["layer", "head"]].to_numpy(),
        )  # fmt: skip
    if not len(dead) and not len(dominant) and table.share_median.notna().any():
        top = table.iloc[int(np.nanargmax(table.share_median))]
        report.find(
            f"No head is dead, none dominates: the largest share of a layer's energy is {100 * top.share_median:.3g} % "
            f"(layer {top.layer} head {top['head']}).", share=top.share_median,
        )  # fmt: skip


def _diverging(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """The heads that diverge, the farthest first."""
    return table[table[column] >= 1].sort_values(column, ascending=False, kind="stable")


def _say_history(report: Report, table: pd.DataFrame, params: HeadParams) -> None:
    lines = _diverging(table, "divergence")
    limits = f"{params.far:g} robust deviations and a factor of {params.factor:g}"
    if not len(lines):
        report.find(
            f"No head leaves its own past: {params.window} tokens are nowhere {limits} from those before.",
            most=table.divergence.max(),
        )  # fmt: skip
        return
    top, own = lines.iloc[0], "leaves its" if len(lines) == 1 else "leave their"
    shared = len(lines) > max(1, SHARED * len(table))
    why = "; so many are a change of the text rather than of heads" if shared else ""
    report.find(
        f"{len(lines)} of {len(table)} heads {own} own past ({limits}): {_named(lines)}; "
        f"the first named begins at token {top.onset} {top.onset_label!r} and gets to {top.times:.2g} times its norm"
        f"{why}.",
        "warning" if top.divergence >= WARN and not shared else "note",
        heads=lines[["layer", "head"]].to_numpy(), z=lines.z.to_numpy(), onset=lines.onset.to_numpy(),
    )  # fmt: skip


def _say_baseline(report: Report, table: pd.DataFrame, name: str) -> None:
    lines = _diverging(table, "baseline_divergence")
    if not len(lines):
        report.find(f"All heads are about as in {name}.", most=table.baseline_divergence.max())
        return
    top = lines.iloc[0]
    report.find(
        f"{len(lines)} of {len(table)} heads differ{'s'[: len(lines) == 1]} from {name}: {_named(lines)}; the first "
        f"named has {top.baseline_times:.2g} times the norm (z {top.baseline_z:.2g}).", "warning",
        heads=lines[["layer", "head"]].to_numpy(), z=lines.baseline_z.to_numpy(),
    )  # fmt: skip


def _grid(table: pd.DataFrame, found: HeadNorms, column: str, title: str, unit: str, *, diverging: bool = False) -> Any:
    heads = found.norm.shape[2]
    values: NDArray[Any] = table[column].to_numpy().reshape(-1, heads)
    return grids.grid(values, ("layer", found.layers), ("head", list(range(heads))), title, unit, diverging=diverging)


def _course(report: Report, table: pd.DataFrame, found: HeadNorms, view: View) -> None:
    """Norms by token of the heads that diverge most: from their past, from the baseline, or else vary most."""
    reason = next((column for column in ("divergence", "baseline_divergence") if column in table), "")
    by = table[reason] if reason else table.norm_mad / table.norm_median
    at = by.sort_values(ascending=False, kind="stable", na_position="last").index[:DRAWN].to_numpy()
    layers, heads = np.divmod(at, found.norm.shape[2])
    norm = np.where(found.keep[:, None], found.norm[:, layers, heads], np.nan)
    names = [f"layer {found.layers[layer]} head {head}" for layer, head in zip(layers, heads, strict=True)]
    course = pd.DataFrame({"token": np.arange(len(view)), "label": view.labels})
    course[names] = norm
    report.tables["course"] = course
    hover = [figures.name(view.labels, i) for i in range(len(view))]
    report.figures["course"] = partial(
        figures.lines, {name: course[name] for name in names}, "Norms of the heads that change most",
        "token (position in this view)", "L2 norm", hover=hover, log=True,
    )  # fmt: skip
