"""A run to go on from: its tokens up to a position, and the settings it was decoded with. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sotscope.errors import PromptError
from sotscope.store.reader import open_run


@dataclass(frozen=True)
class Source:
    """``ids`` with the segment of each; the last ``written`` of them were chosen by the model. ``settings`` are those
    of RunConfig, ``model`` says what it was."""

    ids: list[int]
    segments: list[str]
    written: int
    settings: dict[str, Any]
    model: dict[str, Any]


def read_source(text: str) -> Source:
    """What ``RUN@POSITION``, ``RUN@SEQUENCE:POSITION`` or ``RUN`` (the end of its last sequence) stands for.

    The first new token will stand at POSITION. Raises PromptError for a position that the sequence does not reach and
    for what is not understood, StoreError for a run or sequence that is not there.
    """
    path, _, place = text.rpartition("@") if "@" in text else (text, "", "")
    run = open_run(Path(path))
    sequences = run.sequences
    seq_text, _, pos_text = place.rpartition(":")
    try:
        seq = int(seq_text) if seq_text else int(sequences["seq_id"].iloc[-1])
        wanted = int(pos_text) if pos_text else None
    except ValueError:
        raise PromptError(
            f"{text!r} is not RUN@POSITION or RUN@SEQUENCE:POSITION; for example runs/a.sot@40."
        ) from None
    tokens = run.tokens_of(seq)
    ids, segments = [int(token) for token in tokens.ids], list(tokens.segments)
    if len(tokens) and tokens.next_ids[-1] >= 0:  # chosen last, and never fed
        ids.append(int(tokens.next_ids[-1]))
        segments.append("think" if segments[-1] == "think" else "generated")
    pos = len(ids) if wanted is None else wanted
    if not 0 < pos <= len(ids):
        raise PromptError(f"{path} has tokens at positions 0 to {len(ids) - 1}; it cannot be gone on from {pos}.")
    config = run.events("config")
    if not config or "settings" not in config[0]:
        raise PromptError(f"{path} does not say how it was decoded; it cannot be gone on from.")
    given = int(sequences.loc[sequences["seq_id"] == seq, "prompt_length"].iloc[0])
    return Source(
        ids[:pos], segments[:pos], max(0, pos - given), config[0]["settings"], run.attributes.get("model", {})
    )
