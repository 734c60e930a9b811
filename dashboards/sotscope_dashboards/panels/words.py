"""What each layer would say after each token: the logit lens (nostalgebraist 2020), some layers, a few tokens."""

from __future__ import annotations

from itertools import product
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sotscope.analysis.head import Head, load_head, missing
from sotscope.errors import SotscopeError
from sotscope_dashboards import style
from sotscope_dashboards.panels.contract import Kind, Panel
from sotscope_dashboards.scene import Scene

TOKENS, LAYERS = 8, 10
KEPT = 4096
"""Cells that are remembered between looks."""


class Words(Panel):
    name: ClassVar[str] = "words"
    title: ClassVar[str] = "Words"
    kind: ClassVar[Kind] = "list"
    shows: ClassVar[str] = "The word each layer would say next, if the text were decided there (logit lens)."
    look_for: ClassVar[str] = "The layer from which the final word is on top; a word that appears and is dropped again."
    not_meant: ClassVar[str] = "Early layers are not trained to be read so; odd words there are no fault."
    by_cursor: ClassVar[bool] = True
    rest_ms: ClassVar[int] = 1500

    def draw(self, scene: Scene) -> dict[str, Any]:
        why, head = _head(scene)
        if head is None:
            return {"why": why, "layers": [], "tokens": [], "cells": []}
        layers, at = shown_layers(scene), _tokens(scene)
        found = look(scene, head, layers, at)
        labels = scene.run.tokens_at(scene.lineage[at]).labels if scene.run is not None else []
        return {
            "why": "", "layers": layers[::-1], "cursor": scene.cursor,
            "tokens": [{"at": int(i), "label": style.visible(text)} for i, text in zip(at, labels, strict=True)],
            "cells": [[_cell(found[int(i), layer], head) for i in at] for layer in layers[::-1]],
        }  # fmt: skip

    def table(self, scene: Scene) -> pd.DataFrame:
        _, head = _head(scene)
        if head is None or scene.run is None:
            return pd.DataFrame(columns=["token", "label", "layer", "word", "probability"])
        layers, at = shown_layers(scene), _tokens(scene)
        labels = scene.run.tokens_at(scene.lineage[at]).labels
        found = look(scene, head, layers, at)
        lines = [
            [int(i), text, layer, *_cell(found[int(i), layer], head)]
            for i, text in zip(at, labels, strict=True)
            for layer in layers
        ]
        return pd.DataFrame(lines, columns=["token", "label", "layer", "word", "probability"])


def _head(scene: Scene) -> tuple[str, Head | None]:
    """The head that reads the states, or why there is none."""
    run = scene.run
    if run is None or not scene.total:
        return scene.why if run is None else "No token yet.", None
    if "resid" not in run.sites:
        return "This run has no resid; record it with --sites resid.", None
    if "head" not in scene.memo:
        try:
            scene.memo["head"] = load_head(run)
        except SotscopeError as error:
            return str(error), None
    head: Head | None = scene.memo["head"]
    if head is None:
        del scene.memo["head"]  # it may come yet
        return missing(run), None
    if head.norm == "unknown":
        return "The final norm of this model is of a kind that sotscope does not know.", None
    return "", head


def shown_layers(scene: Scene) -> list[int]:
    """About ten layers, evenly spread, the last among them."""
    layers = scene.shown_layers
    picked = np.linspace(len(layers) - 1, 0, min(LAYERS, len(layers))).round().astype(int)
    return [layers[i] for i in sorted(set(picked.tolist()))]


def _tokens(scene: Scene) -> NDArray[np.int64]:
    """Some tokens up to the cursor and a few after it, along the lineage."""
    stop = min(scene.total, scene.cursor + 3)
    return np.arange(max(0, stop - TOKENS), stop)


def look(
    scene: Scene, head: Head, layers: list[int], at: NDArray[np.int64]
) -> dict[tuple[int, int], tuple[int, float]]:
    """(token, layer): the likeliest word and its probability; worked out once a row."""
    known = scene.memo.setdefault("words", {})
    rows = scene.lineage[at]
    wanted = [(int(row), layer) for row in rows for layer in layers if (int(row), layer) not in known]
    if wanted and scene.run is not None:
        # all in one product: most of its time is the reading of the head's weight, however few the states
        new, layers_of = sorted({row for row, _ in wanted}), sorted({layer for _, layer in wanted})
        states = scene.run.take("resid", np.array(new), layers=tuple(layers_of))
        said = _said(head, states.reshape(-1, states.shape[-1]))
        known |= dict(zip(product(new, layers_of), said, strict=True))
        while len(known) > KEPT:
            known.pop(next(iter(known)))
    return {
        (int(i), k): known.get((int(row), k), (-1, np.nan)) for i, row in zip(at, rows, strict=True) for k in layers
    }


def _said(head: Head, states: NDArray[np.float32]) -> list[tuple[int, float]]:
    """The likeliest word of each of ``states [n, dim]`` and its probability; -1 where a number is not finite.

    A softmax block by block, so that logits are used while they are in the processor's cache.
    """
    best, top, total = np.zeros(len(states), np.int64), np.full(len(states), -np.inf, np.float32), np.zeros(len(states))
    each = np.arange(len(states))
    with np.errstate(all="ignore"):
        for start, logits in head.blocks(head.normed(states)):
            at = logits.argmax(1)
            here = logits[each, at]  # NaN where there is one: argmax finds it
            best = np.where(here > top, start + at, best)
            higher = np.maximum(top, here)
            total *= np.exp(top - higher)
            logits -= higher[:, None]
            total += np.exp(logits, out=logits).sum(1)
            top = higher
        good = np.isfinite(top) & np.isfinite(states).all(1)
        return [(int(word), float(p)) for word, p in zip(np.where(good, best, -1), 1 / total, strict=True)]


def _cell(found: tuple[int, float], head: Head) -> list[Any]:
    word, probability = found
    if word < 0:
        return ["not finite", None]
    return [style.visible(head.label(word)), round(probability, 4)]
