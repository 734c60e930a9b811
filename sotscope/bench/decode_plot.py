"""The plot of ``bench decode``: speed by kind of prompt, and where the time of a step goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from plotly.subplots import make_subplots

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
"""Okabe and Ito's, told apart by colour-blind readers as well."""
PARTS = ("draft", "forward", "accept", "other")


def draw(found: Mapping[str, Any], out: Path) -> str:
    """Write ``out`` (one HTML file that needs no network) and, if kaleido can, a PNG beside it.

    Returns a notice where there is no PNG, else "".
    """
    plot = figure(found)
    plot.write_html(out, include_plotlyjs=True)
    picture = out.with_suffix(".png")
    if find_spec("kaleido") is None:
        return f"no {picture.name}: it needs kaleido (pip install kaleido)."
    try:
        plot.write_image(picture, width=1100, height=800, scale=2)
    except Exception as error:  # noqa: BLE001 - kaleido drives a browser, which fails in many ways; the HTML is there
        return f"no {picture.name}: kaleido failed ({type(error).__name__}: {str(error).splitlines()[0][:100]})."
    return ""


def figure(found: Mapping[str, Any]) -> Any:
    """Two plots of ``decode.run``'s figures, one above the other."""
    titles = ("Times the speed of our ar (median of prompts, 95 % interval)", "Where the time of a step goes")
    plot = make_subplots(rows=2, cols=1, subplot_titles=titles, vertical_spacing=0.15, row_heights=[0.65, 0.35])
    groups = [*found["speedup"], "geomean"]
    arms = [*(mode for mode in found["geomean"] if mode != "ar"), *found["peers"]]
    for arm, colour in zip(arms, _repeated(COLOURS, len(arms)), strict=True):
        spread = [found["intervals"][group][arm] for group in groups]
        middle = [entry["median"] for entry in spread]
        plot.add_bar(
            x=groups, y=middle, name=arm, marker_color=colour, legendgroup="arms", row=1, col=1,
            marker_pattern_shape="/" if arm in found["peers"] else "",
            error_y={
                "type": "data",
                "array": [entry["high"] - entry["median"] for entry in spread],
                "arrayminus": [entry["median"] - entry["low"] for entry in spread],
            },
        )  # fmt: skip
    plot.add_hline(y=1.0, line_dash="dot", line_color="grey", row=1, col=1)
    _add_shares(plot, found["share"])
    about = found["conditions"]
    name, tokens, rounds = about["model"]["name"], about["tokens"], about["rounds"]
    plot.update_layout(
        title=f"sotscope bench decode: {name}, greedy, {tokens} tokens, {rounds} round{'s' if rounds > 1 else ''}",
        template="plotly_white", barmode="group", height=800,
    )  # fmt: skip
    return plot


def _add_shares(plot: Any, share: Mapping[str, Mapping[str, float]]) -> None:
    """Bars put end to end by hand: ``barmode`` would hold for both plots."""
    ends = dict.fromkeys(share, 0.0)
    for part, colour in zip(PARTS, ("#777777", "#BBBBBB", "#999999", "#DDDDDD"), strict=True):
        plot.add_bar(
            x=[share[mode][part] for mode in share], y=list(share), base=list(ends.values()), name=part,
            orientation="h", marker_color=colour, legendgroup="time", offsetgroup="time", row=2, col=1,
        )  # fmt: skip
        ends = {mode: end + share[mode][part] for mode, end in ends.items()}


def _repeated(colours: Sequence[str], count: int) -> list[str]:
    return [colours[place % len(colours)] for place in range(count)]
