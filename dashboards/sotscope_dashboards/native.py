"""Form controls as the browser has them: labelled, and known to keyboards and screen readers. Dash has no such ones."""

from __future__ import annotations

import json
from typing import Any

from dash import html


def wild(attributes: dict[str, str]) -> dict[str, Any]:
    """``data-*`` and ``aria-*`` attributes, which Dash takes as keywords that no signature names."""
    return dict(attributes)


def native(tag: str, id: str, label: str, **attributes: Any) -> Any:
    """A place in which ``assets/native.js`` makes the control ``tag``; ``options`` of a select are (value, text)."""
    facts = {"tag": tag, "id": id, "aria-label": label, **attributes}
    return html.Span(className="native", **wild({"data-native": json.dumps(facts)}))
