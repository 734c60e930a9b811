"""The lens in sentences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from sotscope.analysis.lens_look import Seen
from sotscope.analysis.report import Report

NEAR = {"float32": 0.01, "float16": 0.1, "bfloat16": 0.25}
"""Nats by which a rebuilt log-probability may differ from the recorded one, by the type the model computed in."""
LATE = 0.1
"""Share of rows whose word the last layer overturns that deserves a sentence."""
SURE = 0.5
"""A layer whose median entropy is less than so many times the final one's ..."""
WRONG = 0.2
"""... while it says the final word in less than this share of the rows, is sure of something else."""


def say(report: Report, seen: Seen, dtype: str) -> None:
    """Findings from the tables that are in the report already."""
    by_layer: Any = report.tables["by_layer"]
    by_token: Any = report.tables["by_token"]
    _check(report, NEAR.get(dtype, NEAR["bfloat16"]))
    rows = int(by_token["sampled"].sum())
    if by_layer.settled.notna().all() and len(by_layer) > 1:
        _settling(report, by_layer, rows)
        _overturned(report, by_layer, by_token)
    if by_layer.kl_median.notna().all() and len(by_layer) > 1:
        _closing_in(report, by_layer)
    _sure_of_else(report, by_layer, rows)
    if not report.findings:
        each = [
            f"layer {one.layer} {one.entropy_median:.3g}"
            for one in by_layer.iloc[[0, -1]].drop_duplicates().itertuples()
        ]
        report.find(
            f"Median entropy, in nats, of what layers would say in {rows} rows: {', '.join(each)}.",
            entropy=by_layer.entropy_median.to_numpy(), rows=rows,
        )  # fmt: skip


def _check(report: Report, near: float) -> None:
    """Is the rebuilt final distribution the model's? Ties count as equal."""
    check: Any = report.tables["check"]
    if not len(check):
        return
    same = check.recorded == check.rebuilt
    gap = (check.recorded_logprob - check.recorded_rebuilt_logprob).abs()
    off = int((gap > near).sum())
    wrong = int((~same & (check.rebuilt_logprob - check.recorded_rebuilt_logprob > near)).sum())
    numbers = {"rows": len(check), "equal": int(same.sum()), "largest_difference": float(gap.max())}
    if wrong:
        report.find(
            f"The lens does not end where the model does: in {wrong} of {len(check)} rows the likeliest word of the "
            "last layer, through final norm and lm_head, is not the one that was recorded.",
            "alarm", **numbers,
        )  # fmt: skip
    elif off:
        report.find(
            f"The words of the last layer are those that were recorded, but in {off} of {len(check)} rows their "
            f"log-probabilities differ, by up to {gap.max():.2g} nats: this model does more to its logits.",
            "warning", **numbers,
        )  # fmt: skip


def _settling(report: Report, by_layer: pd.DataFrame, rows: int) -> None:
    reached = by_layer.layer[by_layer.settled >= 0.5]
    last = by_layer.layer.iloc[-1]
    if not len(reached):
        report.find(
            f"In fewer than half of the {rows} rows is the word that wins already on top in layer {last}.",
            settled=by_layer.settled.to_numpy(),
        )  # fmt: skip
        return
    half = int(reached.iloc[0])
    early = by_layer.layer[by_layer.settled >= 0.1].iloc[0]
    report.find(
        f"Half of the {rows} words are settled by layer {half} of {last} (from there on the likeliest word is the one "
        f"that wins), a tenth by layer {early}.",
        layer=half, settled=by_layer.settled.to_numpy(),
    )  # fmt: skip


def _overturned(report: Report, by_layer: pd.DataFrame, by_token: Any) -> None:
    """Rows whose word changes in the last layer."""
    last = by_layer.layer.iloc[-1]
    share = float(by_layer.settles.iloc[-1])
    if share < LATE or by_layer.agrees.iloc[-1] < 1:
        return
    at = np.flatnonzero((by_token["settles"].values == last) & by_token["sampled"].values)
    words = by_token["word"].values[..., 0]
    some = ", ".join(f"token {by_token['token'].values[i]} {words[i, -2]!r} to {words[i, -1]!r}" for i in at[:3])
    report.find(
        f"In {100 * share:.0f} % of the rows the last layer overturns the word of the layer before ({some}).",
        share=share, tokens=by_token["token"].values[at][:100],
    )  # fmt: skip


def _closing_in(report: Report, by_layer: pd.DataFrame) -> None:
    kl = by_layer.kl_median.to_numpy()
    drop = kl[:-1] - kl[1:]
    into = int(np.argmax(drop))
    if drop[into] <= 0:
        return
    report.find(
        f"The median KL to the final distribution goes from {kl[0]:.3g} nats in layer {by_layer.layer.iloc[0]} to "
        f"{kl[-1]:.3g} in layer {by_layer.layer.iloc[-1]}; the largest step, {drop[into]:.3g}, is into layer "
        f"{by_layer.layer.iloc[into + 1]}.",
        kl=kl, layer=int(by_layer.layer.iloc[into + 1]),
    )  # fmt: skip


def _sure_of_else(report: Report, by_layer: pd.DataFrame, rows: int) -> None:
    final = by_layer.entropy_median.iloc[-1]
    found = by_layer[(by_layer.entropy_median < SURE * final) & (by_layer.agrees < WRONG)]
    if not len(found) or len(by_layer) < 2:
        return
    worst = found.loc[found.entropy_median.idxmin()]
    report.find(
        f"Layer {int(worst.layer)} is sure of other words: its median entropy is {worst.entropy_median:.3g} nats "
        f"(last layer {final:.3g}), yet its likeliest word wins in {100 * worst.agrees:.0f} % of {rows} rows only; the "
        "lens reads such layers poorly.",
        layers=found.layer.to_numpy(), entropy=found.entropy_median.to_numpy(),
    )  # fmt: skip
