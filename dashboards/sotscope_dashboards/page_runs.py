"""The pages that list runs and compare them."""

from __future__ import annotations

from typing import Any

from dash import dcc, html
from dash_ag_grid import AgGrid

from sotscope.analysis.comparison import compare
from sotscope.analysis.pool import Threads
from sotscope.errors import SotscopeError
from sotscope_dashboards.library import Library
from sotscope_dashboards.native import native, wild
from sotscope_dashboards.page_watch import GRAPH

COLUMNS = [
    {"field": "name", "headerName": "run", "flex": 4, "minWidth": 140, "cellRenderer": "RunLink",
     "tooltipField": "name"},
    {"field": "prompt", "headerName": "prompt", "flex": 4, "minWidth": 100, "tooltipField": "prompt"},
    {"field": "started", "headerName": "started", "width": 142, "sort": "desc",
     "valueFormatter": {"function": "when(params.value)"}},
    {"field": "mode", "headerName": "mode", "width": 90},
    {"field": "model", "headerName": "model", "width": 96, "tooltipField": "model"},
    {"field": "rows", "headerName": "rows", "type": "rightAligned", "width": 72,
     "valueFormatter": {"function": "d3.format(',')(params.value)"}},
    {"field": "bytes", "headerName": "size (MB)", "type": "rightAligned", "width": 96,
     "valueFormatter": {"function": "d3.format(',.1f')(params.value / 1e6)"}},
    {"field": "state", "headerName": "state", "width": 104, "tooltipField": "problem"},
]  # fmt: skip
LINE = 34
"""Pixels of a line of the list."""


def runs_page(library: Library) -> Any:
    """A sortable table with a search; select runs to compare or to delete."""
    entries = library.entries()
    empty = html.P("No runs here yet: record one with sotscope record, or press Start on the live page.",
                   id="runs-empty", className="empty", hidden=bool(entries))  # fmt: skip
    grid = AgGrid(
        id="runs-grid", rowData=entries, columnDefs=COLUMNS, className="grid", getRowId="params.data.id",
        defaultColDef={"sortable": True, "resizable": True},
        dashGridOptions={"rowSelection": {"mode": "multiRow", "enableClickSelection": False},
                         "selectionColumnDef": {"width": 44}, "enableCellTextSelection": True,
                         "tooltipShowDelay": 200},
        style={"height": f"min(100vh - 150px, {LINE * len(entries) + 40}px)"},
    )  # fmt: skip
    tools = html.Div(
        [native("input", "runs-search", "Search runs", type="search", placeholder="Search runs"),
         html.Button("Compare", id="runs-compare", disabled=True, title="Choose two runs or more"),
         html.Button("Delete", id="runs-delete", disabled=True, title="Choose the runs to delete"),
         html.Span("", id="runs-note", className="note", role="status")],
        className="tools above",
    )  # fmt: skip
    left_out = [html.P(one, className="note") for one in library.refused]
    dialog = html.Dialog(
        [html.P("", id="delete-question"),
         html.Div([html.Button("Delete for good", id="delete-yes", className="danger"),
                   html.Button("Keep", id="delete-no")], className="tools")],
        id="delete-dialog", **wild({"aria-labelledby": "delete-question"}),
    )  # fmt: skip
    place = html.Div(grid, id="runs-place", hidden=not entries)
    return html.Main([html.H1("Runs"), tools, empty, place, *left_out, dialog], className="single")


def compare_page(library: Library, ids: list[str]) -> Any:
    """Two or more runs on aligned positions: what differs from the first, in sentences, a table and figures."""
    try:
        report = compare([library.open(one) for one in ids], Threads())
    except SotscopeError as error:
        return html.Main([html.H1("Compare"), html.P(f"{error} Choose runs on the page Runs.", className="empty")],
                         className="single")  # fmt: skip
    table = report.tables["runs"]
    lines = dict(zip(map(str, table.columns), zip(*table.itertuples(index=False), strict=True), strict=True))
    runs = lines.pop("run")  # side by side
    head = html.Thead(html.Tr([html.Th(text) for text in ("", *runs)]))
    rows = [
        html.Tr([html.Th(name.replace("_", " "), scope="row"), *(html.Td(_cell(value)) for value in line)])
        for name, line in lines.items()
    ]
    figures = []
    for name in report.figures:
        figure = report.figure(name)
        title = figure.layout.title.text or name
        figure.update_layout(title=None, margin_t=16, height=min(figure.layout.height or 320, 420))
        graph = dcc.Graph(figure=figure, config=GRAPH, style={"height": figure.layout.height})
        figures.append(html.Figure([html.Figcaption(title), graph], className="card"))
    findings = [
        html.Li([html.B(found.severity, className=found.severity), " ", found.text]) for found in report.findings
    ]
    left = [html.P("Left out: " + "; ".join(report.left_out), className="note")] if report.left_out else []
    return html.Main(
        [html.H1("Compare"), html.Ul(findings, className="findings"), *left,
         html.Div(html.Table([head, html.Tbody(rows)]), className="wide", tabIndex=0),
         html.Div(figures, className="figures")],
        className="single",
    )  # fmt: skip


def _cell(value: Any) -> str:
    if value is None or value != value:
        return "–"
    if isinstance(value, float):
        return f"{value:,.4g}"
    return str(value)
