"""Which dimensions of the final state the answer hangs on, and how much of it survives when only some are kept."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sotscope.analysis import figures
from sotscope.analysis.agreement import ROWS, agreement
from sotscope.analysis.contracts import Pool
from sotscope.analysis.dim_stats import DimStats
from sotscope.analysis.head import BLOCK, Head
from sotscope.analysis.moments import Subject
from sotscope.analysis.report import Report
from sotscope.analysis.view import View

PERCENT = (1, 5, 10, 25, 50)
"""Shares of the dimensions that are kept; the others are set to their mean."""
SAME = 0.9
"""The answer survives where the top token stays the same in this share of the rows."""


def effects(head: Head, variance: NDArray[np.float64]) -> NDArray[np.float64]:
    """[dim] how far the logits move (root mean square over words and rows) when a dimension is set to its mean.

    About the mean over the words, which moves no probability; before a soft cap.
    """
    total, square = np.zeros(len(variance)), np.zeros(len(variance))
    for start in range(0, head.vocab, BLOCK):
        words = head.weight[start : start + BLOCK].astype(np.float64)
        total += words.sum(0)
        square += np.einsum("wd,wd->d", words, words)
    spread: NDArray[np.float64] = np.maximum(square / head.vocab - np.square(total / head.vocab), 0.0)
    return np.sqrt(variance * spread)


def survival(report: Report, view: View, final: Subject, stats: DimStats, head: Head, pool: Pool) -> pd.DataFrame:
    """Adds ``logits`` [dim], which it also returns, ``survival`` (by order and percent), figures and a finding."""
    logits = pd.DataFrame(
        {
            "dim": np.arange(stats.mean.size),
            "effect": effects(head, stats.variance),
            "variance": stats.variance,
            "entropy": stats.entropy,
        }
    )
    states = final.own_layers(view, ROWS)[0].all()
    others, lines = {}, []
    for by in ("effect", "variance", "entropy"):
        order = np.argsort(-logits[by].to_numpy(), kind="stable")
        for percent in PERCENT:
            kept = order[: max(1, round(len(order) * percent / 100))]
            reduced = np.tile(stats.mean, (len(states), 1))
            reduced[:, kept] = states[:, kept]
            others[f"{by} {percent}"] = reduced
            lines.append({"by": by, "percent": percent, "dims": len(kept)})
    found = agreement(head, states, others, pool, "logits of fewer dimensions")
    table = pd.concat([pd.DataFrame(lines), found.drop(columns="name")], axis=1)
    report.tables |= {"logits": logits, "survival": table}
    report.figures["survival"] = partial(_draw, table, "top1", "Top token that stays the same", "share of rows")
    report.figures["survival_kl"] = partial(_draw, table, "kl", "Divergence from the true distribution", "KL (nats)")
    _say(report, table, logits)
    return logits


def _say(report: Report, table: pd.DataFrame, logits: pd.DataFrame) -> None:
    top = logits.sort_values("effect", ascending=False, kind="stable").head(3)
    by = table[table.by == "effect"]
    enough = by[by.top1 >= SAME]
    if len(enough):
        line = enough.iloc[0]
        said = f"The top {line.percent} % of the dimensions of final by effect on the logits are enough for"
    else:
        line = by.iloc[-1]
        said = f"Even the top {line.percent} % of the dimensions of final by effect on the logits keep"
    report.find(
        f"{said} the same top token in {line.top1:.0%} of {line.rows} rows (KL {line.kl:.2g} nats); a tenth keeps "
        f"{by.top1[by.percent == 10].iloc[0]:.0%}. Most hangs on dimensions {', '.join(map(str, top.dim))}.",
        dims=top.dim.tolist(), percent=by.percent.tolist(), top1=by.top1.tolist(), kl=by.kl.tolist(), rows=line.rows,
    )  # fmt: skip


def _draw(table: pd.DataFrame, column: str, title: str, y: str) -> Any:
    """One line an order, over the share of dimensions that is kept."""
    series = {f"by {by}": lines[column] for by, lines in table.groupby("by", sort=False)}
    return figures.lines(series, title, "dimensions of final that are kept (%), others at their mean", y, at=PERCENT)
