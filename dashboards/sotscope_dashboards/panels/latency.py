"""Where the time of each step in view goes, and how much memory it took."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pandas as pd

from sotscope.plain import plain
from sotscope_dashboards import style
from sotscope_dashboards.panels import parts
from sotscope_dashboards.panels.contract import Panel
from sotscope_dashboards.scene import Scene

PARTS = ("draft", "forward", "accept", "capture")
COLOURS = ("#e69f00", "#8b93a3", "#009e73", "#cc79a7")
"""Of the parts: the forward, which most of a step is, in grey."""
LEVELS = {"p50": (50, "solid"), "p95": (95, "dash"), "p99": (99, "dot")}
DASHES = {"solid": "solid line", "dash": "dashed", "dot": "dotted"}
BARS = 512
MB = 1e6


class Latency(Panel):
    name: ClassVar[str] = "latency"
    title: ClassVar[str] = "Latency"
    shows: ClassVar[str] = "How long each decode step in view took, part by part, and the memory it left in use."
    look_for: ClassVar[str] = "Steps far above p50, and a draft part that takes more than it saves."
    not_meant: ClassVar[str] = (
        "These are the loop's own times: the first steps of a process are slow, others may compute."
    )

    @parts.figure(parts.EMPTY)
    def draw(self, scene: Scene) -> dict[str, Any]:
        steps = _steps(scene)
        decode = steps[~steps.prefill]
        if not len(decode):
            raise parts.NothingError(f"No decode steps in view. {_prefill(steps)}")
        width = -(-len(decode) // BARS)
        total = decode.total_ms.to_numpy()
        slowest = decode.iloc[[at + int(total[at : at + width].argmax()) for at in range(0, len(total), width)]]
        theme = scene.look.theme
        note, margin = parts.headline(_title(steps, decode, width), theme)
        picture = style.layout(
            theme, 400 + margin, margin={"t": margin}, annotations=[note], uirevision=parts.uirevision(scene),
            barmode="stack", bargap=0.1 if len(slowest) < 128 else 0, showlegend=True,
            legend={"y": 0.36, "yanchor": "top", "traceorder": "normal"},
        )  # fmt: skip
        times = parts.pane(
            picture, 0, (0.0, 1.0), "", "time of the step (ms)",
            yaxis={"domain": [0.42, 1.0], "rangemode": "tozero"}, xaxis={"showgrid": False},
        )  # fmt: skip
        memory = parts.pane(
            picture, 1, (0.0, 1.0), "step", "memory (MB)",
            yaxis={"domain": [0.0, 0.24], "rangemode": "tozero", "nticks": 3},
            xaxis={"matches": "x", "showgrid": False},
        )  # fmt: skip
        data = [*_bars(slowest, width, times), *_levels(decode, times, theme), *_lines(slowest, memory, theme)]
        return {"data": data, "layout": plain(picture)}

    @parts.columns("step", "position", "mode", "tokens", *(f"{part}_ms" for part in PARTS), "total_ms", "rss_mb")
    def table(self, scene: Scene) -> pd.DataFrame:
        return _steps(scene).reset_index(drop=True)


def _steps(scene: Scene) -> pd.DataFrame:
    """[step] parts and their sum in ms, memory in MB."""
    steps = parts.steps_in_view(scene)
    if not len(steps):
        raise parts.NothingError("No steps in view.")
    table = pd.DataFrame({"step": steps.step, "position": steps.pos, "mode": steps["mode"], "rows": steps.rows})
    table["prefill"] = steps["mode"] == "prompt"
    for part in PARTS:
        table[f"{part}_ms"] = steps[f"{part}_ns"] / 1e6
    table["total_ms"] = table[[f"{part}_ms" for part in PARTS]].sum(axis=1)
    table["rss_mb"] = steps.rss / MB
    table["device_mb"] = steps.device_bytes / MB
    return table


def levels(total: pd.Series[float]) -> dict[str, float]:
    """p50, p95 and p99 in ms."""
    return {name: float(np.percentile(total, level)) for name, (level, _) in LEVELS.items()}


def _title(steps: pd.DataFrame, decode: pd.DataFrame, width: int) -> list[str]:
    of = " · ".join(
        f"{name} {value:.4g} ms ({DASHES[LEVELS[name][1]]})" for name, value in levels(decode.total_ms).items()
    )
    whole = decode.total_ms.sum()
    share = ", ".join(f"{part} {decode[f'{part}_ms'].sum() / whole:.0%}" for part in PARTS) if whole > 0 else "no times"
    more = (f"Of their time: {share}.", _prefill(steps), _memory(decode))
    lines = [f"{parts.count(len(decode), 'step')}: {of}.", " ".join(filter(None, more))]
    if width > 1:
        lines.append(f"Each bar is the slowest of {width} steps; levels and shares are of all of them.")
    return lines


def _prefill(steps: pd.DataFrame) -> str:
    given = steps[steps.prefill]
    if not len(given):
        return ""
    tokens = parts.count(int(given.rows.sum()), "token")
    return f"Not in the bars: the prefill of {tokens}, {given.total_ms.sum():,.4g} ms."


def _memory(decode: pd.DataFrame) -> str:
    if not (decode.rss_mb > 0).any():
        return "Memory was not recorded."
    first, last = decode.rss_mb.iloc[0], decode.rss_mb.iloc[-1]
    return f"Memory of the process: {first:,.0f} MB at first, {last:,.0f} MB at last."


def _bars(slowest: pd.DataFrame, width: int, axes: dict[str, str]) -> list[dict[str, Any]]:
    at, about = style.typed(slowest.step), style.typed(slowest[["position", "total_ms"]].to_numpy(np.float32))
    step = "step %{x} at position %{customdata[0]}: %{customdata[1]:.4g} ms"
    return [
        {
            "type": "bar", **axes, "name": part, "x": at, "y": style.typed(slowest[f"{part}_ms"]), "customdata": about,
            "marker": {"color": colour, "line": {"width": 0}}, "width": 0.9 * width,
            "hovertemplate": f"{step}<br>{part} %{{y:.4g}} ms<extra></extra>",
        }
        for part, colour in zip(PARTS, COLOURS, strict=True)
    ]  # fmt: skip


def _levels(decode: pd.DataFrame, axes: dict[str, str], theme: str) -> list[dict[str, Any]]:
    ends = [int(decode.step.iloc[0]), int(decode.step.iloc[-1])]
    return [
        {
            "type": "scatter", "mode": "lines", **axes, "name": name, "x": ends, "y": [value, value],
            "showlegend": False, "line": {"color": style.THEMES[theme]["ink"], "width": 1, "dash": LEVELS[name][1]},
            "hovertemplate": f"{name} %{{y:.4g}} ms<extra></extra>",
        }
        for name, value in levels(decode.total_ms).items()
    ]  # fmt: skip


def _lines(slowest: pd.DataFrame, axes: dict[str, str], theme: str) -> list[dict[str, Any]]:
    """Memory after the steps that are drawn; the device's where there is one."""
    colours = style.THEMES[theme]
    kinds = {"process": ("rss_mb", colours["soft"], "solid"), "device": ("device_mb", colours["accent"], "dash")}
    return [
        {
            "type": "scatter", "mode": "lines", **axes, "name": f"memory of the {name}", "x": style.typed(slowest.step),
            "y": style.typed(slowest[column]), "line": {"color": colour, "width": 1.5, "dash": dash},
            "hovertemplate": f"{name} %{{y:,.0f}} MB<extra></extra>",
        }
        for name, (column, colour, dash) in kinds.items()
        if (slowest[column] > 0).any()
    ]  # fmt: skip
