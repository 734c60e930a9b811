"""`latency`: where the time of a step goes, how it spreads, and whether it drifts.

Times are those the loop measured, in milliseconds. The prefill is told apart: it is one wide forward, and no step.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from sotscope.analysis import figures
from sotscope.analysis.contracts import Analyzer, Params, Pool
from sotscope.analysis.latency_say import say
from sotscope.analysis.report import Report
from sotscope.analysis.steps import steps_of
from sotscope.analysis.view import View

PARTS = ("draft", "forward", "accept", "capture")
LEVELS = {"p50": 50, "p95": 95, "p99": 99}
MB = 1e6


class LatencyParams(Params):
    slowest: int = Field(default=10, ge=1, le=1000)
    """How many of the slowest steps are named."""
    window: int = Field(default=50, ge=1)
    """How many points the curve of tokens/s has at most."""


class Latency(Analyzer):
    name: ClassVar[str] = "latency"
    title: ClassVar[str] = "Where the time of each step goes"
    Params: ClassVar[type[Params]] = LatencyParams

    def analyze(self, view: View, params: LatencyParams, pool: Pool) -> Report:
        report = Report(self.name, self.title)
        steps = _in_ms(view, steps_of(view))
        prefill = steps["mode"] == "prompt"
        decode = steps[~prefill].reset_index(drop=True)
        report.tables = {"steps": decode, "prefill": steps[prefill].reset_index(drop=True)}
        if len(decode):
            report.tables |= {
                "parts": _parts(decode),
                "by_mode": _by_mode(decode),
                "over_time": _over_time(decode, params.window),
                "slowest": _slowest(decode, params.slowest),
            }
            report.figures = _figures(report.tables)
        say(report)
        return report


def _in_ms(view: View, steps: pd.DataFrame) -> pd.DataFrame:
    """[step] parts and their sum in ms, tokens that the step gave, memory in MB."""
    table = steps[["step", "seq_id", "pos", "rows", "mode", "reason", "window", "accepted"]].copy()
    for part in PARTS:
        table[f"{part}_ms"] = steps[f"{part}_ns"] / 1e6
    table["total_ms"] = table[[f"{part}_ms" for part in PARTS]].sum(axis=1)
    next_ids = view.run.tokens.next_ids
    chosen = np.concatenate([[0], np.cumsum(next_ids >= 0)])
    first = steps["first"].to_numpy(np.int64)
    last = np.minimum(first + steps.rows.to_numpy(np.int64), len(next_ids))
    # the next ids of prompt rows were given
    table["tokens"] = np.where(steps["mode"] == "prompt", 0, chosen[last] - chosen[first])
    table["token_ms"] = table.total_ms / table.tokens.where(table.tokens > 0)
    table["rss_mb"] = steps.rss / MB
    table["device_mb"] = steps.device_bytes / MB
    known = view.run.pieces
    table["text"] = [
        "" if prompt else known.text(next_ids[a:b].tolist(), special=True, start=False)
        for prompt, a, b in zip(steps["mode"] == "prompt", first, last, strict=True)
    ]
    return table


def _levels(values: NDArray[np.float64]) -> dict[str, float]:
    return {name: float(np.percentile(values, level)) if len(values) else np.nan for name, level in LEVELS.items()}


def _times(decode: pd.DataFrame, of: str) -> NDArray[np.float64]:
    """Milliseconds of a part or of the whole step [step], or of a token [token]: its share of its step."""
    values = decode[f"{of}_ms"].to_numpy(np.float64)
    return np.repeat(values, decode.tokens.to_numpy(np.int64)) if of == "token" else values


def _parts(decode: pd.DataFrame) -> pd.DataFrame:
    """p50, p95 and p99 of each part of a step, of the step and of a token (step over its tokens), in ms."""
    whole = decode.total_ms.sum()
    lines = []
    for part in (*PARTS, "total", "token"):
        values = _times(decode, part)
        share = values.sum() / whole if part in PARTS and whole > 0 else np.nan
        mean, most = (values.mean(), values.max()) if len(values) else (np.nan, np.nan)
        lines.append({"part": part, **_levels(values), "mean": mean, "max": most, "share": share})
    return pd.DataFrame(lines)


def _by_mode(decode: pd.DataFrame) -> pd.DataFrame:
    """One line a mode: steps, tokens, tokens/s, and p50, p95, p99 of a step in ms."""
    lines = []
    for mode, those in decode.groupby("mode", sort=False):
        seconds = those.total_ms.sum() / 1e3
        tokens = int(those.tokens.sum())
        lines.append(
            {
                "mode": mode,
                "steps": len(those),
                "tokens": tokens,
                "tokens_per_step": tokens / len(those),
                "tokens_per_second": tokens / seconds if seconds > 0 else np.nan,
                **{f"step_{name}_ms": value for name, value in _levels(_times(those, "total")).items()},
                **{f"token_{name}_ms": value for name, value in _levels(_times(those, "token")).items()},
                **{f"{part}_share": those[f"{part}_ms"].sum() / max(those.total_ms.sum(), 1e-12) for part in PARTS},
            }
        )
    return pd.DataFrame(lines)


def _over_time(decode: pd.DataFrame, points: int) -> pd.DataFrame:
    """Neighbouring steps in at most ``points`` groups: seconds since the first step, tokens/s, mean forward, memory."""
    groups = decode.groupby(np.arange(len(decode)) * min(points, len(decode)) // len(decode))
    milliseconds = groups.total_ms.sum()
    ended = milliseconds.cumsum() / 1e3
    return pd.DataFrame(
        {
            "seconds": ended,
            "first_step": groups.step.first(),
            "last_step": groups.step.last(),
            "pos": groups.pos.first(),
            "tokens_per_second": 1e3 * groups.tokens.sum() / milliseconds.where(milliseconds > 0),
            "forward_ms": groups.forward_ms.mean(),
            "rss_mb": groups.rss_mb.max(),
            "device_mb": groups.device_mb.max(),
        }
    ).reset_index(drop=True)


def _slowest(decode: pd.DataFrame, count: int) -> pd.DataFrame:
    found = decode.nlargest(count, "total_ms")
    parts = [f"{part}_ms" for part in PARTS]
    largest = [PARTS[at] for at in found[parts].to_numpy().argmax(1)]
    columns = ["step", "pos", "mode", "reason", "rows", *parts, "total_ms", "text"]
    table: pd.DataFrame = found[columns].assign(times_median=found.total_ms / decode.total_ms.median(), largest=largest)
    return table.reset_index(drop=True)


def _figures(tables: dict[str, Any]) -> dict[str, Any]:
    time, parts = tables["over_time"], tables["parts"]
    made = {
        "steps": partial(_steps_figure, tables["steps"]),
        "parts": partial(
            figures.bars, list(PARTS), 100 * parts.share[: len(PARTS)], "Share of each part in the time of all steps",
            "time (%)", "",
        ),
        "tokens_per_second": partial(
            figures.lines, {"tokens/s": time.tokens_per_second}, "Speed over time", "time since the first step (s)",
            "tokens/s", at=time.seconds,
        ),
    }  # fmt: skip
    memory = {"process (RSS)": time.rss_mb, "device": time.device_mb}
    known = {name: values for name, values in memory.items() if (values > 0).any()}
    if known:
        made["memory"] = partial(
            figures.lines,
            known,
            "Memory over time",
            "time since the first step (s)",
            "memory (MB)",
            at=time.seconds,
            zero=True,
        )
    return made


def _steps_figure(steps: pd.DataFrame) -> Any:
    """Every step as a stack of its parts; neighbours together where there are too many, each group its slowest."""
    width = -(-len(steps) // figures.COLUMNS)
    group = np.arange(len(steps)) // width
    shown = steps.loc[steps.groupby(group).total_ms.idxmax()]
    of = "" if width == 1 else f" (slowest of every {width})"
    made = figures.figure(f"Time of each step{of}", "step", "time (ms)")
    hover = [
        f"step {one.step} at position {one.pos}, {one.mode} ({one.reason}): {one.total_ms:.4g} ms, {one.tokens} tokens"
        for one in shown.itertuples()
    ]
    for colour, part in zip(figures.COLOURS, PARTS, strict=False):
        made.add_bar(
            x=shown.step, y=shown[f"{part}_ms"], name=part, marker={"color": colour, "line": {"width": 0}},
            customdata=hover, hovertemplate="%{customdata}<br>%{y:.4g} ms",
        )  # fmt: skip
    made.update_layout(barmode="stack", bargap=0, hovermode="closest")
    return made
