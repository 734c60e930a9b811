"""The Dash app: bar, pages by address, and the routes that its script calls."""

from __future__ import annotations

from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs

from dash import Dash, Input, Output, dcc, html

from sotscope_dashboards.answer import Answers, Engine
from sotscope_dashboards.api import Api
from sotscope_dashboards.catalog import PANELS
from sotscope_dashboards.jobs import Jobs
from sotscope_dashboards.library import Library
from sotscope_dashboards.native import wild
from sotscope_dashboards.page_runs import compare_page, runs_page
from sotscope_dashboards.page_watch import watch_page

MODES = ("ar", "lookup", "sot", "dmtd", "combine")
NUMBERS = {
    "tokens_per_s": "tokens/s", "tokens_per_forward": "tokens/forward", "latency": "p50·p95·p99 ms",
    "memory_mb": "memory", "alarms": "alarms", "age_ms": "data age",
}  # fmt: skip


def make_app(library: Library, engine: Engine | None, initial_run: str = "") -> Dash:
    """The app over the runs of ``library``; ``engine`` None: only look. ``initial_run``: the id it opens with."""
    panels = {name: PANELS.get(name)() for name in PANELS.names()}
    app = Dash(
        "sotscope_dashboards", title="sotscope", update_title="", suppress_callback_exceptions=True, enable_mcp=False,
        assets_folder=str(files("sotscope_dashboards") / "assets"),
        serve_locally=True, add_log_handler=False,
    )  # fmt: skip
    app.index_string = app.index_string.replace("<html>", '<html lang="en">')
    jobs = Jobs()
    Api(library, engine, Answers(library, engine, panels), panels, jobs).register(app.server)

    def shell() -> Any:  # with every request: where it is served is known when it is served
        base = app.get_relative_path("/")  # type: ignore[no-untyped-call]
        facts = wild({"data-run": initial_run, "data-live": "yes" if engine is not None else "no"})
        return html.Div(
            [
                dcc.Location(id="url", refresh=False), _bar(engine is not None, base),
                html.P("", id="banner", className="banner", role="alert", hidden=True),
                html.Div(id="page"), html.Div(id="config", hidden=True, **facts),
            ],
            id="shell",
        )  # fmt: skip

    app.layout = shell

    @app.callback(Output("page", "children"), Input("url", "pathname"), Input("url", "search"))
    def page(pathname: str | None, search: str | None) -> Any:
        name = (pathname or "/").rstrip("/").rpartition("/")[2]
        if name == "runs":
            return runs_page(library)
        if name == "compare":
            ids = parse_qs((search or "").lstrip("?")).get("runs", [""])[0]
            return compare_page(library, [one for one in ids.split(",") if one])
        return watch_page(panels, engine is not None)

    return app


def _bar(live: bool, base: str) -> Any:
    pages = [dcc.Link(text, id=f"to-{path or 'watch'}", href=base + path, className="page-link") for text, path in
             (("Live" if live else "Watch", ""), ("Runs", "runs"))]  # fmt: skip
    modes = [
        html.Button(mode, className="mode", role="radio", **wild({"data-mode": mode, "aria-checked": "false"}))
        for mode in MODES
    ]
    steer = [
        html.Div(modes, id="modes", className="modes", role="radiogroup", **wild({"aria-label": "Decoding mode"})),
        html.Button("Start", id="start", className="primary"),
        html.Button("Step", id="step", title="One step of the decode loop"),
        html.Button("Stop", id="stop"),
    ]
    numbers = [
        html.Div(
            [html.B("–", id=f"n-{name}"), html.Span(unit, id=f"unit-{name}")], className="number", id=f"box-{name}"
        )
        for name, unit in NUMBERS.items()
    ]
    view = [
        html.Button("Full view", id="view", className="quiet", **wild({"aria-pressed": "false"})),
        html.Button("◐", id="theme", className="quiet", title="Light or dark", **wild({"aria-label": "Light or dark"})),
        html.Button("?", id="keys", className="quiet", title="Keys", **wild({"aria-label": "Keys"})),
    ]
    return html.Header(
        [
            html.Div([html.Strong("sotscope"), html.Nav(pages, **wild({"aria-label": "Pages"}))], className="group"),
            html.Div(steer if live else [], className="group steer"),
            html.Div(numbers, className="group numbers"),
            html.Div(view, className="group view"),
            html.Dialog([html.H2("Keys"), html.Dl(id="key-list"), html.Button("Close", id="keys-close")],
                        id="keys-dialog", **wild({"aria-label": "Keys"})),
        ],
        className="bar",
    )  # fmt: skip
