"""What a recording amounts to, and whether its rows are those of an uncached forward."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sotscope.capture.intervening import Intervening
from sotscope.capture.selfcheck import SelfCheck, self_check
from sotscope.decode.loop import Decoder
from sotscope.models.load import Loaded
from sotscope.prepared import Prepared
from sotscope.row_sink import RowSink
from sotscope.store.reader import open_run
from sotscope.store.writer import RunWriter

COARSENESS = ("float32", "float16", "bfloat16")


class Recorded(Protocol):
    """What is asked of a ``Recording``."""

    path: Path
    loaded: Loaded
    prepared: Prepared
    decoder: Decoder
    writer: RunWriter
    check: SelfCheck
    sink: RowSink
    forwards: int
    decode_s: float
    intervening: Intervening


@dataclass(frozen=True)
class Summary:
    """What a finished recording amounts to; the fields of ``record --json``. Tokens, forwards and speed are of all its
    sequences, the text is that of the last."""

    run: str
    model: str
    mode: str
    policy: str
    lossy: bool
    interventions: list[str]
    believed: int
    prompt_tokens: int
    new_tokens: int
    rows: int
    finish_reason: str
    text: str
    tokens_per_second: float
    tokens_per_forward: float
    bytes: int
    self_check: dict[str, Any]
    stalled_ms: float
    alarms: list[dict[str, Any]]


def summarise(recorded: Recorded, reason: str) -> Summary:
    """Of a ``Recording`` that ends for ``reason``. Of a step that was broken off, only what became rows counts."""
    decoder, sink, new = recorded.decoder, recorded.sink, recorded.sink.new_tokens
    return Summary(
        run=str(recorded.path),
        model=recorded.loaded.name,
        mode=recorded.prepared.parts.drafter.mode,
        policy=decoder.parts.judge,
        lossy=sink.was_lossy,
        interventions=list(recorded.intervening.names),
        believed=sink.believed,
        prompt_tokens=len(recorded.prepared.prompt.ids),
        new_tokens=new,
        rows=recorded.writer.rows,
        finish_reason=reason,
        text=decoder.text.text,
        tokens_per_second=round(new / recorded.decode_s, 2) if new else 0.0,
        tokens_per_forward=round(new / max(1, recorded.forwards), 3),
        bytes=recorded.writer.bytes_written,
        self_check=recorded.check.as_dict(),
        stalled_ms=round(recorded.writer.stalled_ms, 1),
        alarms=[{"kind": a.kind, "message": a.message, **a.data} for a in sink.alarms],
    )


def check_rows(recorded: Recorded) -> SelfCheck:
    """The self-check of the first sequence of a ``Recording``, read back from its run."""
    if any(alarm.kind in ("non_finite", "overflow") for alarm in recorded.sink.alarms):
        return SelfCheck(passed=False, skipped="the states are not finite; there is nothing to compare")
    run = open_run(recorded.path, live=True)
    first = run.rows(0)

    def read(site: str, layer: int | None, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return run.take(site, first[rows], layer=layer)

    stored = {site.dtype for site in recorded.prepared.spec.sites} or {"float32"}
    coarsest = max(stored | {str(recorded.loaded.model.dtype).removeprefix("torch.")}, key=COARSENESS.index)
    return self_check(
        recorded.prepared.plan,
        [int(i) for i in run.tokens_of(0).ids],
        read,
        run.top[0][first, 0],
        coarsest,
        recorded.intervening.sites,
    )
