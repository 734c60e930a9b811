"""The parts of the page with which health is watched and states are changed: news, Recover, and interventions."""

from __future__ import annotations

from typing import Any

from dash import html

from sotscope.catalog import INTERVENTIONS, RECOVERIES, SITES
from sotscope_dashboards.native import native, wild

WAYS = {
    "rollback": "take the text back to where it began, and go on otherwise",
    "refresh": "go on from there with a cache that is computed anew",
    "rescale": "go on from there with norms held to their median",
    "plain": "go on one token at a time, without drafts",
    "stop": "end the text here",
}
EXAMPLES = {
    "prune": "k=3,how=clamp", "interpolate": "alpha=0.5,how=spherical", "rescale": "factor=0.9", "skip": "above=0.98",
    "steer": "dim=3,value=4", "transfer": "source=RUN.sot,how=mean", "temperature": "value=1.5", "freeze": "dims=7,9",
}  # fmt: skip


def news() -> Any:
    """The newest alarm or recovery, above the page; a person can send it away."""
    return html.Div(
        [
            html.P([html.Strong("", id="news-title"), " ", html.Span("", id="news-text")]),
            html.Div(
                [
                    html.Button("Show", id="news-show", className="quiet", title="Move the cursor to where it began"),
                    html.Button("Recover", id="news-recover", className="recover", hidden=True,
                                title="As the run's settings say, else rollback", **wild({"data-policy": ""})),
                    recover("news-ways", "▾"),
                    html.Button("×", id="news-close", className="quiet", **wild({"aria-label": "Dismiss"})),
                ],
                className="tools",
            ),
        ],
        id="news", className="news", role="status", hidden=True,
    )  # fmt: skip


def recover(id: str, text: str) -> Any:
    """A menu of the ways to recover; shown while there is something to recover."""
    ways = [(name, WAYS.get(name, "a recovery of your own")) for name in RECOVERIES.names()]
    items = [
        html.Button([html.B(name), html.Span(words)], className="recover way", **wild({"data-policy": name}))
        for name, words in ways
    ]
    summary = html.Summary(text, className="button", title="Ways to recover", **wild({"aria-label": "Ways to recover"}))
    return html.Details([summary, html.Div(items, className="ways")], id=id, className="menu", hidden=True)


def health_settings() -> Any:
    """Of the start form: whether all monitors watch, and what is done about their alarms."""
    ways = [("", "only tell"), *((name, name) for name in RECOVERIES.names())]
    return html.Div(
        [
            html.Label([native("input", "watch-health", "Watch health", type="checkbox", checked=True), "watch health"],
                       className="pick check", title="Loops, norms, collapse, NaN and more; costs about 2 %"),
            html.Label(["on an alarm", native("select", "recover-with", "On an alarm", options=ways)], className="pick",
                       title="What is done about an alarm, from the next start on"),
            html.Button("", id="planned", className="quiet", hidden=True, title="See the Interventions tab"),
        ],
        className="settings health",
    )  # fmt: skip


def interventions(live: bool) -> Any:
    """The list of the run's interventions, and, where there is an engine, the form that adds one."""
    return html.Div(
        [html.Ul([], id="interventions-list", className="interventions"), *([_form()] if live else [])],
        id="interventions-tools", hidden=True,
    )  # fmt: skip


def _form() -> Any:
    kinds = [(name, name) for name in INTERVENTIONS.names()]
    sites = [("", "the kind's own"), *((name, name) for name in SITES.names())]
    fields = [
        _field("kind", native("select", "iv-kind", "Kind", options=kinds)),
        _field("site", native("select", "iv-site", "Site", options=sites)),
        _text("layers", "iv-layers", "all", "e.g. 10-20"),
        _text("tokens", "iv-tokens", "generated", "all, prompt, generated, 40-"),
        _field("strength", native("input", "iv-strength", "Strength", type="number", value=1, step=0.1)),
        _text("options", "iv-options", "", EXAMPLES["prune"]),
    ]
    return html.Div(
        [
            html.Div([*fields, html.Button("Add", id="iv-add")], className="iv-form",
                     **wild({"data-examples": ";".join(f"{name}:{text}" for name, text in EXAMPLES.items())}),
                     id="iv-form"),
            html.Div(
                [html.P("", id="iv-note", className="note", role="status"),
                 html.Label([native("input", "measure", "Measure the effect", type="checkbox"),
                             "measure the effect (from the next start on; one more forward a step)"],
                            className="pick check")],
                className="iv-foot",
            ),
        ]
    )  # fmt: skip


def _text(label: str, id: str, value: str, example: str) -> Any:
    return _field(label, native("input", id, label.capitalize(), type="text", value=value, placeholder=example,
                                spellcheck="false", autocomplete="off"))  # fmt: skip


def _field(label: str, control: Any) -> Any:
    return html.Label([label, control], className="pick")
