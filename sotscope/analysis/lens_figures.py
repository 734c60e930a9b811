"""The lens as a table: layers by tokens, the word that each layer would say in each cell."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from sotscope.analysis import figures

CELL = 46
"""Pixels a column takes."""
LETTERS = 8
"""Letters of a word that fit into a cell; the hover has all of it."""


def words_figure(by_token: xr.Dataset, window: slice) -> Any:
    """``by_token`` of the lens, its tokens in ``window``: colour is the probability of the likeliest word.

    The last layer is on top; below each column stands the input token, above it the word that followed.
    """
    shown = by_token.isel(token=(by_token.token >= window.start) & (by_token.token < window.stop))
    layers, at = shown["layer"].values, shown["token"].values
    span = f"tokens {window.start}–{window.stop - 1}"
    made = figures.figure(
        f"What each layer would say next, {span}", "input token", "layer", height=160 + 24 * len(layers)
    )
    words = shown["word"].values[..., 0] if len(at) else np.empty((0, len(layers)), object)
    made.add_heatmap(
        z=shown["prob"].values[..., 0].T, x=np.arange(len(at)), y=np.arange(len(layers)), zmin=0, zmax=1,
        colorscale=figures.SEQUENTIAL, text=[[_short(word) for word in row] for row in words.T],
        texttemplate="%{text}", textfont={"size": 9}, xgap=1, ygap=1, customdata=_hover(shown),
        hovertemplate="%{customdata}<extra></extra>",
        colorbar={"title": {"text": "probability", "side": "right"}, "thickness": 12, "outlinewidth": 0},
    )  # fmt: skip
    labels = [f"{position} {_short(label)}" for position, label in zip(at, shown["label"].values, strict=True)]
    made.update_xaxes(tickvals=list(range(len(at))), ticktext=labels, tickangle=-60)
    made.update_yaxes(tickvals=list(range(len(layers))), ticktext=[str(layer) for layer in layers])
    made.update_layout(width=180 + CELL * max(8, len(at)), margin={"b": 90})
    return made


def _hover(shown: xr.Dataset) -> list[list[str]]:
    """[layer][token] all the words that are kept of a cell, with their probabilities."""
    words, probs, kl = shown["word"].values, shown["prob"].values, shown["kl"].values
    positions, layers = shown["token"].values, shown["layer"].values
    labels, following = shown["label"].values, shown["following"].values
    out = []
    for j, layer in enumerate(layers):
        line = []
        for i, position in enumerate(positions):
            best = "<br>".join(
                f"{100 * p:.1f} % {_safe(word)}" for word, p in zip(words[i, j], probs[i, j], strict=True)
            )
            away = f", KL {kl[i, j]:.3g} nats" if np.isfinite(kl[i, j]) else ""
            then = f", then came {_safe(following[i])}" if following[i] else ""
            line.append(f"token {position} {_safe(labels[i])}{then}<br>layer {layer}{away}<br>{best}")
        out.append(line)
    return out


def _short(word: str) -> str:
    return _safe(word if len(word) <= LETTERS else word[: LETTERS - 1] + "…")


def _safe(word: str) -> str:
    """Plotly reads tags in texts."""
    return str(word).replace("&", "&amp;").replace("<", "&lt;")
