"""Reports as one HTML page that works offline: findings on top, worst first, then a section an analyzer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr
from jinja2 import Environment
from plotly.offline import get_plotlyjs

from sotscope.analysis.report import SEVERITIES, Report, Table
from sotscope.store.reader import Run

ROWS = 60
"""Rows of a table that the page shows."""
NARROW = 40
"""Columns of a grid that half the page shows."""


@dataclass(frozen=True)
class _Part:
    name: str
    title: str
    findings: list[Any]
    left_out: list[str]
    figures: list[tuple[str, str, int, bool]]
    """Each one's id, caption, height in pixels, and whether it needs the width of the page."""
    tables: list[dict[str, Any]]
    told: str


def ranked(reports: Sequence[Report]) -> list[tuple[str, Any]]:
    """(analyzer, finding) of all reports, worst first."""
    found = [(report.name, finding) for report in reports for finding in report.findings]
    return sorted(found, key=lambda pair: SEVERITIES.index(pair[1].severity))


def page(title: str, subtitle: str, facts: Mapping[str, Any], reports: Sequence[Report], skipped: Sequence[str]) -> str:
    """One self-contained HTML page; ``skipped`` says which analyzers were not run and why."""
    figures: dict[str, Any] = {}
    parts = [_part(report, figures) for report in reports]
    template = Environment(autoescape=True, trim_blocks=True).from_string(
        (files("sotscope.analysis") / "assets" / "report.html.j2").read_text(encoding="utf-8")
    )
    return template.render(
        title=title, subtitle=subtitle, facts=facts, parts=parts, skipped=list(skipped),
        summary=[{"part": name, "severity": f.severity, "text": f.text} for name, f in ranked(reports)],
        figures="{" + ",".join(f"{json.dumps(key)}:{value}" for key, value in figures.items()) + "}",
        plotly=get_plotlyjs(),
    )  # fmt: skip


def run_facts(run: Run) -> dict[str, Any]:
    """What the head of the page says of a run."""
    info = run.info()
    outcome = info["outcome"] or {}
    return {
        "model": info["model"].get("name", "?"), "mode": outcome.get("mode", "?"), "rows": f"{len(run):,}",
        "layers": len(run.layers), "sites": ", ".join(run.sites),
        "state": "recording" if run.recording else "complete" if run.complete else "interrupted",
        "finish": outcome.get("finish_reason"),
    }  # fmt: skip


def _part(report: Report, figures: dict[str, Any]) -> _Part:
    drawn = []
    for name in report.figures:
        made = report.figure(name)
        caption = made.layout.title.text or name
        made.update_layout(title=None, margin_t=16)  # the page's own captions wrap
        key = f"{report.name}-{name}"
        figures[key] = made.to_json()  # plotly escapes what could end the script element
        drawn.append((key, caption, int(made.layout.height or 380), _wide(made)))
    told = ", ".join(f"{key} = {value}" for key, value in report.params.items() if value is not None)
    order = sorted(report.findings, key=lambda finding: SEVERITIES.index(finding.severity))
    tables = [_shown(name, table) for name, table in report.tables.items()]
    return _Part(report.name, report.title, order, report.left_out, drawn, [t for t in tables if t],
                 f"{report.name} with {told or 'no parameters'}; {report.seconds:.2f} s")  # fmt: skip


def _wide(figure: go.Figure) -> bool:
    """Whether it has more columns, or words in them, than half a page shows."""
    grids = [trace for trace in figure.data if trace.type == "heatmap"]
    return any(grid.texttemplate or np.shape(grid.z)[1] > NARROW for grid in grids)


def _shown(name: str, table: Table) -> dict[str, Any]:
    """The head of a table for the page; what has more than one axis is in ``--json`` only."""
    if isinstance(table, xr.DataArray | xr.Dataset):
        return {}
    head = table.head(ROWS)
    text = [not pd.api.types.is_numeric_dtype(table[column]) for column in table.columns]
    rows = [
        [(_cell(value), is_text) for value, is_text in zip(row, text, strict=True)]
        for row in head.itertuples(index=False)
    ]
    return {"name": name, "count": len(table), "cut": len(table) > ROWS, "rows": rows,
            "columns": list(zip(map(str, table.columns), text, strict=True))}  # fmt: skip


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "–" if value != value else f"{value:.4g}"
    return str(value)
