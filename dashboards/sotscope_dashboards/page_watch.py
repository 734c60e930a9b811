"""The page that watches a run, live or finished: its parts and their places. What moves is ``assets/``."""

from __future__ import annotations

from typing import Any

from dash import dcc, html
from dash_ag_grid import AgGrid

from sotscope_dashboards import page_steer
from sotscope_dashboards.native import native, wild
from sotscope_dashboards.panels.contract import Panel
from sotscope_dashboards.panels.states import HEIGHT

SAMPLE = "Why is the sky blue?"
EMPTY: Any = {"data": [], "layout": {"xaxis": {"visible": False}, "yaxis": {"visible": False}}}
GRAPH: Any = {
    "displaylogo": False, "showSendToCloud": False, "responsive": True,
    "modeBarButtonsToRemove": ["autoScale2d", "toggleSpikelines"], "toImageButtonOptions": {"scale": 2},
}  # fmt: skip


def watch_page(panels: dict[str, Panel], live: bool) -> Any:
    """``live``: there is an engine to start runs with."""
    return html.Div(
        [
            page_steer.news(),
            html.Main(
                [
                    html.Div([_prompt(live), _text(live), _candidates(panels)], className="column left"),
                    html.Div([_states(panels), _tabs(panels, live)], className="column right"),
                ],
                id="watch", className="watch simple",
            ),
            _scrubber(),
        ]
    )  # fmt: skip


def _card(id: str, title: str, tools: list[Any], body: list[Any], more: str = "", beside: Any = ()) -> Any:
    name = html.Div([html.H2(title, id=f"{id}-title"), *beside], className="tools card-title")
    head = html.Div([name, html.Div(tools, className="tools")], className="card-head")
    return html.Section([head, *body], id=id, className=f"card {more}", **wild({"aria-labelledby": f"{id}-title"}))


def _help(panel: Panel) -> Any:
    """The `?`: what it shows, what to look for, what it does not mean."""
    lines = [("Shows", panel.shows), ("Look for", panel.look_for), ("Does not mean", panel.not_meant)]
    return html.Details(
        [
            html.Summary("?", title=f"What is {panel.title}?", **wild({"aria-label": f"Help on {panel.title}"})),
            html.Dl([part for term, text in lines for part in (html.Dt(term), html.Dd(text))]),
        ],
        className="help",
    )


def _csv(name: str) -> Any:
    return html.Button(
        "CSV", className="quiet csv", **wild({"data-panel": name, "aria-label": f"Download {name} as CSV"})
    )


def _select(id: str, label: str, options: list[tuple[str, str]]) -> Any:
    """A native select, filled by name: it is labelled, and keyboards know it."""
    return html.Label([label, native("select", id, label.strip() or id, options=options)], className="pick")


def _prompt(live: bool) -> Any:
    if not live:
        return html.Div(id="prompt-card", hidden=True)
    body = [
        native("textarea", "prompt", "Prompt", rows=2, maxlength=20_000, spellcheck="false", value=SAMPLE,
               placeholder="What should the model answer?"),
        html.Div(
            [
                _number("max-new-tokens", "tokens to write", 96, 1, 4096, 1),
                _number("temperature", "temperature", 0, 0, 4, 0.1),
                _number("delay", "slow motion (ms)", 0, 0, 5000, 50),
            ],
            className="settings",
        ),
        page_steer.health_settings(),
        html.Details(
            [
                html.Summary("Drafts: how many, and when they are taken", className="note"),
                html.Div(
                    [
                        _number("window", "most drafts a step", "", 0, 64, 1),
                        _number("entropy-gate", "plain step above (nats)", "", 0, 12, 0.1),
                        _select("policy", "draft is taken if", [("exact", "exact"), ("typical", "typical (lossy)"),
                                                                 ("none", "always (lossy)")]),
                    ],
                    className="settings",
                ),
            ],
            id="more-settings",
        ),
    ]  # fmt: skip
    return _card("prompt-card", "Prompt", [html.P("", id="prompt-note", className="note", role="status")], body)


def _number(id: str, label: str, value: Any, low: float, high: float, step: float, more: str = "") -> Any:
    field = native("input", id, label, type="number", value=value, min=low, max=high, step=step)
    return html.Label([label, field], className=f"pick {more}")


def _text(live: bool) -> Any:
    tools = [
        _select("colour", "", [(name, f"shade: {name}") for name in ("entropy", "acceptance", "norm")]),
        html.Button("Refused drafts", id="refused", className="quiet toggle", **wild({"aria-pressed": "false"})),
        _select("sequence", "", [("0", "sequence 0")]),
    ]
    body = [
        html.P("", id="text-note", className="note"),
        html.Div(
            id="text", className="text", role="group", tabIndex=0, **wild({"aria-label": "The text, token by token"})
        ),
        html.Div(id="other-text", className="text other", hidden=True),
        html.P("", id="legend", className="note legend"),
        html.P("", id="readout", className="note readout"),
    ]
    return _card(
        "text-card", "Text", tools, body, beside=[page_steer.recover("text-ways", "↺ Recover")] if live else []
    )


def _candidates(panels: dict[str, Panel]) -> Any:
    tools = [html.Span("", id="branch-note", className="note"), _csv("candidates"), _help(panels["candidates"])]
    return _card("candidates-card", "Next token", tools, [html.Ol(id="candidates", className="candidates")])


def _states(panels: dict[str, Panel]) -> Any:
    tools = [
        _select("site", "", [("", "resid")]),
        _select("scalar", "", [("norm", "norm"), ("change", "change"), ("cosine", "cosine"), ("max_abs", "max-abs")]),
        _number("low", "layers", "", 0, 999, 1), _number("high", "to", "", 0, 999, 1),
        _csv("states"), _help(panels["states"]),
    ]  # fmt: skip
    graph = _graph("graph-states", HEIGHT)
    return _card("states-card", "States", tools, [graph], "full")


def _graph(id: str, height: int) -> Any:
    return dcc.Graph(id=id, config=GRAPH, figure=EMPTY, style={"height": height})


def _tabs(panels: dict[str, Panel], live: bool) -> Any:
    names = [name for name in panels if name not in ("states", "candidates")]
    tabs = [
        html.Button(panels[name].title, id=f"tab-{name}", className="view-tab", role="tab",
                    **wild({"data-tab": name, "data-kind": panels[name].kind, "aria-selected": "false",
                       "aria-controls": "tab-body"}))
        for name in names
    ]  # fmt: skip
    helps = [html.Div(_help(panels[name]), id=f"help-{name}", hidden=True) for name in names]
    body = [
        html.Div(html.Table(id="words", className="words"), id="body-words", className="tab-body wide"),
        html.Div(
            [_projection_tools(), page_steer.interventions(live), _graph("graph-tab", 400)],
            id="body-figure", className="tab-body", hidden=True,
        ),
        html.Div(
            AgGrid(id="grid-tab", rowData=[], columnDefs=[], className="grid",
                   dashGridOptions={"enableCellTextSelection": True, "suppressColumnVirtualisation": True},
                   defaultColDef={"sortable": True, "resizable": True, "minWidth": 90},
                   style={"height": 380}),
            id="body-grid", className="tab-body", hidden=True,
        ),
    ]  # fmt: skip
    head = html.Div(
        [html.H2("What each layer would say", id="words-title"),
         html.Div(tabs, className="view-tabs", role="tablist", **wild({"aria-label": "Details"})),
         html.Div([html.Div(_select("layer", "layer", []), className="full"), _csv("words"), *helps],
                  className="tools")],
        className="card-head",
    )  # fmt: skip
    panel = html.Div([html.P("", id="tab-note", className="note"), *body], id="tab-body", role="tabpanel",
                     **wild({"aria-label": "The chosen detail"}))  # fmt: skip
    return html.Section([head, panel], id="tabs-card",
                        className="card", **wild({"aria-label": "Details"}))  # fmt: skip


def _projection_tools() -> Any:
    buttons = [
        html.Button(text, className="quiet job", **wild({"data-method": method}))
        for method, text in (("tsne", "t-SNE"), ("umap", "UMAP"))
    ]
    return html.Div(
        [html.Span("PCA, live; on demand: ", className="note"), *buttons,
         html.Button("Cancel", id="job-cancel", className="quiet", hidden=True),
         html.Button("Back to PCA", id="job-clear", className="quiet", hidden=True),
         html.Span("", id="job-note", className="note", role="status")],
        id="projection-tools", className="tools", hidden=True,
    )  # fmt: skip


def _scrubber() -> Any:
    return html.Footer(
        [
            html.Button("Follow", id="follow", className="primary", title="Follow the newest tokens (L)"),
            html.Span("", id="run-name", className="chip"),
            html.Div(
                [html.Div(id="marks", className="marks"),
                 native("input", "scrub", "Cursor along the run", type="range", min=0, max=1, step=1, value=1)],
                className="track",
            ),
            html.Div([html.Span("", id="when", className="note"), html.Output("", id="place", htmlFor="scrub")],
                     className="where"),
        ],
        className="scrubber",
    )  # fmt: skip
