"""Colours, figures without numbers, and arrays as plotly.js takes them without a copy in text."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

MODE_COLOURS = {
    "prompt": "#c3c9d2", "ar": "#8b93a3", "lookup": "#b8860b", "sot": "#3d6fd9", "dmtd": "#1f9d84",
    "combine": "#7a5cc9", "draft": "#b0568c", "forced": "#5b6470", "other": "#5b6470",
}  # fmt: skip
THEMES = {
    "light": {"ink": "#1b2230", "soft": "#667085", "line": "#e3e7ed", "card": "#ffffff", "accent": "#3d6fd9",
              "warm": "#c2611b", "alarm": "#c0392b", "blank": "#d7dbe2"},
    "dark": {"ink": "#e7eaf0", "soft": "#9aa4b5", "line": "#2a3140", "card": "#171c26", "accent": "#7aa2f7",
             "warm": "#e8a26b", "alarm": "#ff8a80", "blank": "#3a4252"},
}  # fmt: skip
SERIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
"""Okabe and Ito's palette, safe for colour-blind readers."""
SEQUENTIAL = "Cividis"
DIVERGING = "RdBu"


def typed(values: ArrayLike) -> dict[str, str]:
    """An array as plotly.js reads it: float32 (or int32) bytes in base64; what is not finite is NaN, left blank."""
    array = np.asarray(values)
    if array.dtype.kind in "iub":
        array = array.astype(np.int32)
    else:
        array = array.astype(np.float32)
        array = np.where(np.isfinite(array), array, np.float32(np.nan))
    spec = {"dtype": "i4" if array.dtype.kind == "i" else "f4"}
    spec["bdata"] = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    if array.ndim > 1:
        spec["shape"] = ",".join(map(str, array.shape))
    return spec


def layout(theme: str, height: int, **more: Any) -> dict[str, Any]:
    """A figure's layout in the page's look; ``more`` overrides. Give ``uirevision`` so that a user's zoom stays."""
    colours = THEMES[theme]
    axis = {"gridcolor": colours["line"], "linecolor": colours["line"], "zeroline": False, "automargin": True}
    base: dict[str, Any] = {
        "height": height, "margin": {"l": 44, "r": 12, "t": 8, "b": 36}, "showlegend": False,
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)", "colorway": list(SERIES),
        "font": {"family": "Inter, system-ui, sans-serif", "size": 11, "color": colours["soft"]},
        "hoverlabel": {"bgcolor": colours["card"], "font": {"color": colours["ink"]}, "align": "left"},
        "xaxis": dict(axis), "yaxis": dict(axis), "dragmode": "zoom",
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": colours["soft"], "activecolor": colours["accent"]},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
    }  # fmt: skip
    for key, value in more.items():
        base[key] = {**base[key], **value} if isinstance(value, dict) and isinstance(base.get(key), dict) else value
    return base


def sentence(text: str, theme: str, height: int = 240) -> dict[str, Any]:
    """A figure that has nothing to draw and says why."""
    note = {"text": escaped(text), "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5, "showarrow": False,
            "font": {"size": 13, "color": THEMES[theme]["soft"]}}  # fmt: skip
    hidden = {"visible": False}
    return {"data": [], "layout": layout(theme, height, annotations=[note], xaxis=hidden, yaxis=hidden)}


def escaped(text: str) -> str:
    """Text that plotly shows as it is: it reads a few HTML tags."""
    return visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def visible(text: str) -> str:
    """Text whose control and direction characters are shown as what they are, <U+202E> for one."""
    return "".join(f"<U+{ord(c):04X}>" if _hidden(c) else c for c in text)


def _hidden(character: str) -> bool:
    code = ord(character)
    marks = (0x200B, 0x200C, 0x200D, 0x200E, 0x200F, 0x2060, 0xFEFF, 0x061C, 0x00AD)
    directions = 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069
    return code < 0x20 or 0x7F <= code < 0xA0 or directions or code in marks
