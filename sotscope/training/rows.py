"""Rows of texts that are written already: a forward over each text, in blocks, and nothing is stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from sotscope.capture.plan import Plan
from sotscope.capture.tap import Captured, Tap
from sotscope.decode.cache import CachedModel
from sotscope.events import Step
from sotscope.health.contracts import Row
from sotscope.health.rows import rows_of_step, watched_layers

BLOCK = 128
"""Tokens a forward: logits of so many rows, and states of all layers, are held at a time."""


def text_rows(plan: Plan, prompt: Sequence[int], written: Sequence[int]) -> Iterator[Row]:
    """The rows that monitors would have seen while the model of ``plan`` wrote ``written`` [T] after ``prompt`` [P].

    P + T - 1 rows. As in a recording, those before the last prompt token are given and have no logit scalars. The
    hooks are gone when the iteration ends.
    """
    ids = [*prompt, *written]
    places = [plan.layers.index(layer) for layer in watched_layers(plan.layers)]
    for step, captured in _steps(plan, ids, len(prompt)):
        yield from rows_of_step(step, captured.scalars, captured.present, captured.resid[:, places])


def _steps(plan: Plan, ids: list[int], given: int) -> Iterator[tuple[Step, Captured]]:
    with Tap(plan, top_k=2) as tap:
        cached = CachedModel(plan.anatomy.model)
        blocks = cached.prefill(ids[:-1], BLOCK, all_logits=True, cut=given - 1)
        while True:
            with torch.inference_mode():  # not around the yield: it would leak into whoever iterates
                block = next(blocks, None)
            if block is None:
                return
            start, part = block
            following = tuple(ids[start + 1 : start + 1 + len(part)])
            mode = "prompt" if start < given - 1 else "ar"
            captured = tap.take(len(part), following, logits=mode == "ar")
            yield Step(0, 0, mode, start, tuple(part), following), captured
