"""What an analyzer found: tables, figures made on demand, findings in sentences, and what was left out and why."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
import xarray as xr

from sotscope.errors import AnalysisError
from sotscope.plain import plain
from sotscope.registry import unknown

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Severity = Literal["alarm", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("alarm", "warning", "note")
"""Worst first: what is broken, what deserves a look, what is good to know."""

Table = pd.DataFrame | xr.DataArray | xr.Dataset


@dataclass(frozen=True)
class Finding:
    """One sentence, with the numbers behind it."""

    text: str
    severity: Severity = "note"
    numbers: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Report:
    """The result of one analyzer. ``tables`` hold every number that ``figures`` draw; ``params`` what it was told."""

    name: str
    title: str
    tables: dict[str, Table] = field(default_factory=dict)
    figures: dict[str, Callable[[], Figure]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def find(self, text: str, severity: Severity = "note", **numbers: Any) -> None:
        """Add a finding."""
        self.findings.append(Finding(text, severity, numbers))

    def figure(self, name: str) -> Figure:
        """Make the figure called ``name``. Raises AnalysisError for one there is none of."""
        if name not in self.figures:
            raise AnalysisError(unknown("figure", name, list(self.figures)))
        return self.figures[name]()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON: NaN and infinities become None."""
        return {
            "name": self.name,
            "title": self.title,
            "params": plain(self.params),
            "findings": [
                {"severity": found.severity, "text": found.text, "numbers": plain(found.numbers)}
                for found in self.findings
            ],
            "tables": {name: _table(table) for name, table in self.tables.items()},
            "left_out": list(self.left_out),
            "seconds": round(self.seconds, 3),
        }

    def _repr_html_(self) -> str:
        """Findings and the names of what else there is; figures are asked for one by one."""
        lines = "".join(f"<li><b>{f.severity}</b> {html.escape(f.text)}</li>" for f in self.findings)
        left = "".join(f"<li>{html.escape(text)}</li>" for text in self.left_out)
        parts = [f"<h4>{html.escape(self.title)}</h4><ul>{lines or '<li>nothing to report</li>'}</ul>"]
        parts += [f"<p>left out:</p><ul>{left}</ul>"] if left else []
        for kind, names in (("figures", self.figures), ("tables", self.tables)):
            if names:
                parts.append(f"<p>{kind}: {', '.join(f'<code>{html.escape(name)}</code>' for name in names)}</p>")
        return "".join(parts)


def _table(table: Table) -> dict[str, Any]:
    if isinstance(table, pd.DataFrame):
        return {"columns": {str(name): plain(table[name].tolist()) for name in table.columns}}
    if isinstance(table, xr.DataArray):
        table = table.to_dataset(name="value" if table.name is None else str(table.name))
    found = table.to_dict()
    return {
        "coords": {name: plain(coord["data"]) for name, coord in found["coords"].items()},
        "arrays": {
            name: {"dims": list(var["dims"]), "values": plain(var["data"])} for name, var in found["data_vars"].items()
        },
    }
