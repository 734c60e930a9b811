"""Figures of `drafts`."""

from __future__ import annotations

from typing import Any

import pandas as pd

from sotscope.analysis import figures


def shares(table: pd.DataFrame, name: str, title: str) -> Any:
    """Acceptance of each group as bars; the hover says of how many drafts."""
    labels = [str(value) for value in table[name]]
    made = figures.bars(labels, table.acceptance, title, "accepted of the drafts looked at (share)", "")
    made.data[0].customdata = [
        f"{label}: {accepted} of {judged} drafts"
        for label, accepted, judged in zip(labels, table.accepted, table.judged, strict=True)
    ]
    made.update_xaxes(range=[0, 1])
    return made


def reliability(table: pd.DataFrame) -> Any:
    """Share that was right over confidence, a line a mode; on the diagonal a drafter knows what it knows."""
    made = figures.figure(
        "Is the drafter as sure as it is right?", "confidence (probability)", "right (share)", height=420
    )
    made.add_scatter(
        x=[0, 1], y=[0, 1], mode="lines", name="as it should be", line={"dash": "dot", "color": figures.GREY},
        hoverinfo="skip",
    )  # fmt: skip
    for mode, those in table.groupby("mode", sort=False):
        made.add_scatter(
            x=those.confidence, y=those.right, name=str(mode), mode="lines+markers",
            marker={"size": 5 + 15 * (those.drafts / table.drafts.max()) ** 0.5}, customdata=those.drafts,
            hovertemplate="confidence %{x:.3f}<br>right %{y:.3f}<br>%{customdata} drafts",
        )  # fmt: skip
    made.update_xaxes(range=[0, 1])
    made.update_yaxes(range=[-0.02, 1.02])
    return made
