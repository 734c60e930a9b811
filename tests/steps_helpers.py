"""Runs of given steps, heads and likeliest tokens, for tests of analyzers: known numbers, no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from sotscope.analysis.head import FILE, FORMAT
from sotscope.events import SEGMENTS, Branch, Draft, Piece, Step
from sotscope.store.layout import RunSpec, ScalarSpec, SiteSpec
from sotscope.store.reader import Run, open_run
from sotscope.store.writer import Rows, RunWriter

FINGERPRINT = "0123456789abcdef"


@dataclass(frozen=True)
class Turn:
    """One step: the tokens it fed and what they chose, its drafts, parts in ns (draft, forward, accept, capture)."""

    fed: Sequence[int]
    chosen: Sequence[int]
    drafts: Sequence[Draft] = ()
    mode: str = "ar"
    segment: str = "generated"
    ns: tuple[int, int, int, int] = (0, 1_000_000, 0, 0)
    rss: int = 10**9
    entropy: Sequence[float] = ()


def write_turns(path: Path, turns: Sequence[Turn], words: Mapping[int, str] | None = None, special: int = -1) -> Run:
    """A run of one sequence with these steps, and no states to speak of. ``words`` are texts of tokens."""
    texts = words or {}
    spec = RunSpec(
        sites=(SiteSpec(name="final", row=(2,), dims=("token", "dim"), dtype="float32", source_dtype="float32"),),
        scalars=(ScalarSpec(name="entropy", unit="nats"),), layers=(0,), top_k=1,
    )  # fmt: skip
    at = 0

    def piece(token: int) -> Piece:
        text = texts.get(token, f" {token}")
        return Piece(token, text, text.encode(), token == special)

    with RunWriter(path, spec, attributes={"model": {"name": "given"}}, piece_of=piece) as writer:
        writer.sequence(Branch(0, 1))
        for index, turn in enumerate(turns):
            count = len(turn.fed)
            prompt = turn.mode == "prompt"
            step = Step(
                index, 0, turn.mode, at, tuple(turn.fed), tuple(turn.chosen), window=len(turn.drafts),
                accepted=sum(draft.accepted for draft in turn.drafts), drafts=tuple(turn.drafts),
                reason="prefill" if prompt else "drafted" if turn.drafts else "plain",
                draft_ns=turn.ns[0], forward_ns=turn.ns[1], accept_ns=turn.ns[2],
            )  # fmt: skip
            rows = Rows(
                states={"final": np.ones((count, 2), np.float32)},
                scalars={"entropy": np.array(turn.entropy or [1.0] * count, np.float32)},
                present=np.ones((count, 1), bool),
                top_id=np.array(turn.chosen, np.int32)[:, None],
                top_logprob=np.zeros((count, 1), np.float32),
                segments=(SEGMENTS.index(turn.segment),) * count,
            )
            writer.commit(step, rows, capture_ns=turn.ns[3], rss=turn.rss)
            at += count
        writer.sequence(Branch(0, 1, finish="eos"))
    return open_run(path)


def write_head(run: Run, weight: np.ndarray, *, layers: int, norm: str = "none", **tensors: np.ndarray) -> None:
    """Put a head into ``run``, whose attributes must name ``FINGERPRINT``."""
    facts = {"norm": norm, "layers": str(layers), "eps": "1e-06", "softcap": "0.0", "scale": "1.0"}
    made: dict[str, Any] = {"weight": np.ascontiguousarray(weight), **tensors}
    save_file(made, run.path / FILE, {"format": FORMAT, "fingerprint": FINGERPRINT, **facts})


def model_attributes(**more: str) -> dict[str, Any]:
    return {"model": {"name": "given", "dtype": "float32", "fingerprint": FINGERPRINT, **more}}
