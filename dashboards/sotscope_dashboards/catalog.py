"""The table of contents of the page: which panels there are, in the order of the tabs."""

from __future__ import annotations

from sotscope.errors import AnalysisError
from sotscope.registry import Registry
from sotscope_dashboards.panels.contract import Panel

PANELS: Registry[type[Panel]] = Registry(
    "panel",
    {
        "states": "sotscope_dashboards.panels.states:States",
        "candidates": "sotscope_dashboards.panels.candidates:Candidates",
        "words": "sotscope_dashboards.panels.words:Words",
        "layers": "sotscope_dashboards.panels.layers:Layers",
        "drafts": "sotscope_dashboards.panels.drafts:Drafts",
        "projection": "sotscope_dashboards.panels.projection:Projection",
        "dimensions": "sotscope_dashboards.panels.dimensions:Dimensions",
        "heads": "sotscope_dashboards.panels.heads:Heads",
        "interventions": "sotscope_dashboards.panels.interventions:Interventions",
        "latency": "sotscope_dashboards.panels.latency:Latency",
        "events": "sotscope_dashboards.panels.events:Events",
    },
    group="sotscope.panels",
    error=AnalysisError,
)
