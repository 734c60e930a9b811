"""Journal records from what the decode loop and the capture hand over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sotscope.events import Branch, Step
from sotscope.store import layout


@dataclass
class Rows:
    """Captured rows of a step: ``states[site] [row, ...]``, ``scalars[name] [row, ...]``, ``present [row, layer]``."""

    states: Mapping[str, NDArray[Any]]
    scalars: Mapping[str, NDArray[Any]]
    present: NDArray[np.bool_]
    top_id: NDArray[np.int32]
    top_logprob: NDArray[np.float32]
    segments: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.states.values())


def row_records(spec: layout.RunSpec, step: Step, rows: Rows) -> NDArray[Any]:
    """One record a row of ``step``: its tokens and where they stand, and all scalars."""
    records = np.zeros(step.rows, spec.row_dtype)
    records["tag"] = layout.ROW
    records["token_id"] = step.token_ids
    records["next_id"] = step.next_ids
    records["seq_id"] = step.seq
    records["pos"] = np.arange(step.pos, step.pos + step.rows)
    records["step"] = step.index
    records["mode"] = layout.encode("mode", step.mode)
    records["segment"] = rows.segments
    records["present"] = rows.present
    records["top_id"] = rows.top_id
    records["top_logprob"] = rows.top_logprob
    for scalar in spec.scalars:
        records[f"scalar_{scalar.name}"] = rows.scalars[scalar.name]
    return records


def draft_records(spec: layout.RunSpec, step: Step) -> NDArray[Any]:
    """One record a drafted token of ``step``; drafts whose state was not predicted have NaN there."""
    records = np.zeros(len(step.drafts), spec.draft_dtype)
    records["tag"] = layout.DRAFT
    records["step"] = step.index
    for name in ("slot", "target", "token", "probability", "entropy", "accepted", "cosine", "relative_error"):
        records[name] = [getattr(draft, name) for draft in step.drafts]
    records["reason"] = [layout.encode("draft_reason", draft.reason) for draft in step.drafts]
    if spec.predicted:
        records["state"] = np.nan if step.predicted is None else step.predicted
    return records


def step_record(step: Step, capture_ns: int, rss: int, device_bytes: int) -> NDArray[Any]:
    """The record of ``step`` itself, [1]."""
    record = np.zeros(1, layout.STEP_DTYPE)
    record[0] = (
        layout.STEP,
        step.index,
        step.seq,
        step.pos,
        step.rows,
        layout.encode("mode", step.mode),
        step.window,
        step.accepted,
        layout.encode("step_reason", step.reason),
        step.draft_ns,
        step.forward_ns,
        step.accept_ns,
        capture_ns,
        rss,
        device_bytes,
    )
    return record


def sequence_record(branch: Branch) -> NDArray[Any]:
    """The record of a sequence, [1]."""
    record = np.zeros(1, layout.SEQUENCE_DTYPE)
    record[0] = (
        layout.SEQUENCE,
        branch.seq,
        branch.prompt_length,
        branch.parent,
        branch.parent_pos,
        layout.encode("finish", branch.finish),
    )
    return record
