"""`latency` in sentences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import spearmanr, theilslopes

from sotscope.analysis.report import Report

DOMINATES = 0.5
"""A part other than the forward that takes so large a share of the time is worth a warning."""
TAIL = 3.0
"""A p99 this many times the p50 is a tail."""
ENOUGH = 20
"""Steps of the same width that a drift needs."""
DRIFT = 0.1
"""Relative growth from the first to the last step that deserves a sentence ..."""
CHANCE = 0.001
"""... where the rank correlation with the position is no chance."""
GROWTH = 0.1
"""Memory growth, as a share, that deserves a sentence."""
SPARED = 500
"""Steps that the slope (of all pairs) is fitted to at most."""


def say(report: Report) -> None:
    """Findings from the tables that are in the report already."""
    prefill: Any = report.tables["prefill"]
    if "parts" not in report.tables:
        report.find(f"No decode steps here; {_prefill(prefill)}.", **_numbers(prefill))
        return
    decode: Any = report.tables["steps"]
    if decode.total_ms.sum() <= 0:
        report.find(f"The {len(decode)} steps have no times.", steps=len(decode))
        return
    _speed(report, prefill)
    _dominates(report)
    _tail(report)
    _drift(report, decode)
    _memory(report)


def _by_part(report: Report) -> Any:
    table: Any = report.tables["parts"]
    return table.set_index("part")


def _numbers(prefill: pd.DataFrame) -> dict[str, Any]:
    return {"prefill_ms": float(prefill.total_ms.sum()), "prefill_tokens": int(prefill.rows.sum())}


def _prefill(prefill: Any) -> str:
    if not len(prefill):
        return "there is no prefill either"
    return f"the prefill of {int(prefill.rows.sum())} tokens took {prefill.total_ms.sum():.4g} ms"


def _speed(report: Report, prefill: Any) -> None:
    parts = _by_part(report)
    modes: Any = report.tables["by_mode"]
    each = [
        f"{one.mode} {one.tokens_per_second:.3g} tokens/s in {one.steps} {'step' if one.steps == 1 else 'steps'}"
        for one in modes.itertuples()
        if np.isfinite(one.tokens_per_second)
    ]
    total, token = parts.loc["total"], parts.loc["token"]
    tokens = f", a token {token.p50:.4g}" if np.isfinite(token.p50) else ""
    first = f"; {_prefill(prefill)}" if len(prefill) else ""
    report.find(
        f"Speed: {', '.join(each)}. A step takes {total.p50:.4g} ms (p95 {total.p95:.4g}, p99 {total.p99:.4g}){tokens}"
        f"{first}.",
        p50=total.p50, p95=total.p95, p99=total.p99, **_numbers(prefill),
    )  # fmt: skip


def _dominates(report: Report) -> None:
    parts: Any = report.tables["parts"]
    known = parts[parts.share.notna()].sort_values("share", ascending=False)
    top, second = known.iloc[0], known.iloc[1]
    text = (
        f"{100 * top.share:.0f} % of the time of steps is {top.part}, {100 * second.share:.0f} % {second.part} "
        f"({second['mean']:.3g} ms a step)."
    )
    unusual = top.part != "forward" and top.share >= DOMINATES
    report.find(text, "warning" if unusual else "note", **{one.part: one.share for one in known.itertuples()})


def _tail(report: Report) -> None:
    parts = _by_part(report)
    slowest: Any = report.tables["slowest"]
    total = parts.loc["total"]
    first = slowest.iloc[0]
    if len(report.tables["steps"]) < ENOUGH or not total["max"] > TAIL * total.p50:
        return
    report.find(
        f"The slowest step, {int(first.step)} at position {int(first.pos)}, took {first.total_ms:.4g} ms, "
        f"{first.times_median:.3g} times the median; most of it is {first.largest}.",
        step=int(first.step), times_median=first.times_median, largest=first.largest,
    )  # fmt: skip


def _drift(report: Report, decode: pd.DataFrame) -> None:
    """Does the forward of steps of the usual width take longer the longer the text is?"""
    width = decode.rows.mode().iloc[0]
    # the first steps of a process are slow for other reasons
    those = decode[decode.rows == width].iloc[1:]
    if len(those) < ENOUGH or those.pos.nunique() < ENOUGH:
        return
    those = those.iloc[np.linspace(0, len(those) - 1, min(SPARED, len(those))).round().astype(int)]
    position, forward = those.pos.to_numpy(float), those.forward_ms.to_numpy(float)
    if np.ptp(forward) == 0:
        return
    rank = spearmanr(position, forward)
    slope, intercept, *_ = theilslopes(forward, position)
    begin, end = (float(intercept + slope * at) for at in (position.min(), position.max()))
    if rank.pvalue > CHANCE or begin <= 0 or abs(end / begin - 1) < DRIFT:
        return
    how, why = "grows with the text", ""
    if slope < 0:
        how, why = "falls", "; a longer text makes no step faster, so something else used the machine at first"
    report.find(
        f"The forward of a step of width {int(width)} {how}: from {begin:.4g} ms at position {int(position.min())} to "
        f"{end:.4g} ms at {int(position.max())} (rank correlation {rank.statistic:.2f}){why}.",
        "warning" if end > 2 * begin else "note",
        slope_ms_per_1000_tokens=1000 * slope, rank_correlation=rank.statistic, begin_ms=begin, end_ms=end,
    )  # fmt: skip


def _memory(report: Report) -> None:
    time: Any = report.tables["over_time"]
    for name, column in (("process", "rss_mb"), ("device", "device_mb")):
        first, last = time[column].iloc[0], time[column].iloc[-1]
        if first > 0 and last > (1 + GROWTH) * first:
            report.find(
                f"Memory of the {name} grows from {first:.0f} to {last:.0f} MB in {len(report.tables['steps'])} steps.",
                first_mb=first, last_mb=last,
            )  # fmt: skip
