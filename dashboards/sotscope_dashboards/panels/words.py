"""What each layer would say after each token: the logit lens (nostalgebraist 2020), some layers, a few tokens."""

from __future__ import annotations

from itertools import product
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sotscope.analysis.head import Head, load_head, missing
from sotscope.analysis.lens_look import Task, look
from sotscope.errors import SotscopeError
from sotscope.store.reader import Run
from sotscope_dashboards import style
from sotscope_dashboards.panels import parts
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
        found = cells(scene, head, layers, at)
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
        found = cells(scene, head, layers, at)
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
        return scene.why if run is None else parts.NO_ROWS, None
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


def cells(
    scene: Scene, head: Head, layers: list[int], at: NDArray[np.int64]
) -> dict[tuple[int, int], tuple[int, float]]:
    """(token, layer): the likeliest word (-1: its state is not finite) and its probability; worked out once a row."""
    known = scene.memo.setdefault("words", {})
    rows = scene.lineage[at].tolist()
    new = sorted({row for row, layer in product(rows, layers) if (row, layer) not in known})
    if new and scene.run is not None:
        # all in one product: most of its time is the reading of the head's weight, however few the states
        known |= dict(zip(product(new, layers), _said(scene.run, head, np.array(new), layers), strict=True))
        while len(known) > KEPT:
            known.pop(next(iter(known)))
    return {(int(i), layer): known[row, layer] for i, row in zip(at, rows, strict=True) for layer in layers}


def _said(run: Run, head: Head, rows: NDArray[np.int64], layers: list[int]) -> list[tuple[int, float]]:
    """[row, layer] in one list: the likeliest word and its probability, by the lens that reports use."""
    unknown = np.full(len(rows), -1)
    with np.errstate(all="ignore"):  # what is not finite is named as such
        seen = look(Task(run, head, rows, tuple(layers), None, unknown, unknown, top=1))
    finite = np.isfinite(run.take("resid", rows, layers=tuple(layers))).all(-1)
    words = np.where(finite, seen.ids[..., 0], -1)
    return list(zip(words.ravel().tolist(), seen.probs[..., 0].ravel().tolist(), strict=True))


def _cell(found: tuple[int, float], head: Head) -> list[Any]:
    word, probability = found
    if word < 0:
        return ["not finite", None]
    return [style.visible(head.label(word)), round(probability, 4)]
