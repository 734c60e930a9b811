"""Facts about a run, frozen. The store, the capture and the decode loop meet here and do not know each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

MODES = ("prompt", "ar", "lookup", "sot", "dmtd", "forced", "other", "combine", "draft")
"""Which drafter's step computed a row; the index is what the store holds. `prompt`: all but the last prompt token."""

POLICIES = ("exact", "typical", "none")
"""How drafts are judged. All but `exact` are lossy: the text may differ from what `ar` would have written."""
LOSSY = frozenset(POLICIES) - {"exact"}

SEGMENTS = ("system", "user", "assistant", "generated", "think", "tool", "raw")
"""What a token is part of; the index is what the store holds. `raw` is a prompt given without a chat template."""

DRAFT_REASONS = (
    "accepted",
    "first_slot_miss",
    "later_slot_miss",
    "after_miss",
    "outside_vocabulary",
    "near_tie",
    "processor",
    "after_end",
    "believed",
)
"""Why a draft was taken or refused; the index is what the store holds. `believed`: a lossy policy took a token that
`ar` would not have chosen there."""

FINISH_REASONS = (
    "open",
    "eos",
    "stop_string",
    "max_new_tokens",
    "context_limit",
    "end_of_text",
    "prompt_only",
    "non_finite",
    "interrupted",
    "error",
    "branched",
    "criteria",
    "rolled_back",
    "stopped",
)
"""Why a sequence ended; the index is what the store holds. `open`: it has not ended, or its writer died. `criteria`: a
stopping criterion of the user's. `rolled_back`: a recovery went on elsewhere, `stopped`: one ended it."""

STEP_REASONS = ("plain", "drafted", "gated", "prefill", "last_row")
"""Why a step had the width it had; the index is what the store holds."""


@dataclass(frozen=True, slots=True)
class Draft:
    """One drafted token and what became of it."""

    slot: int
    target: int
    """Position in the sequence that the token was drafted for."""
    token: int
    probability: float
    entropy: float
    reason: str
    cosine: float = float("nan")
    relative_error: float = float("nan")

    @property
    def accepted(self) -> bool:
        return self.reason in ("accepted", "believed")


@dataclass(frozen=True, slots=True)
class Step:
    """One turn of the decode loop, committed.

    Row j of the step fed ``token_ids[j]`` at position ``pos + j`` and chose ``next_ids[j]`` (-1: none was chosen).
    Times are nanoseconds.
    """

    index: int
    seq: int
    mode: str
    pos: int
    token_ids: tuple[int, ...]
    next_ids: tuple[int, ...]
    text: str = ""
    """Printable text that this step added; never half a character."""
    window: int = 0
    accepted: int = 0
    reason: str = "plain"
    drafts: tuple[Draft, ...] = ()
    draft_ns: int = 0
    forward_ns: int = 0
    accept_ns: int = 0
    predicted: Any = None
    """States [draft, dim] that the drafter predicted, where the drafter predicts states and they are recorded."""
    effect: Mapping[str, float] | None = None
    """What interventions did to the first row, where that is measured."""

    @property
    def rows(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Branch:
    """A sequence: a prompt with its continuation, or a continuation of ``parent`` from ``parent_pos`` on.

    Positions below ``parent_pos`` are the parent's; the first row of the branch is at ``parent_pos``.
    """

    seq: int
    prompt_length: int
    parent: int = -1
    parent_pos: int = -1
    finish: str = "open"


@dataclass(frozen=True, slots=True)
class Piece:
    """What a reader must know of a token to show it without a tokenizer: its raw piece (``Ġthe``, ``▁the``,
    ``<0xE2>``) and the bytes it adds to the text."""

    id: int
    raw: str
    data: bytes
    special: bool = False


@dataclass(frozen=True, slots=True)
class Alarm:
    """Something is wrong with the states or with the recording. ``data`` is the evidence in numbers.

    A monitor's alarm is named after it and has ``onset``, the position where it began, ``pos``, that of the row that
    raised it, and ``episode``, its number in the run; others have -1.
    """

    kind: str
    message: str
    data: Mapping[str, Any] = field(default_factory=dict)
    severity: str = "warning"
    onset: int = -1
    pos: int = -1
    episode: int = -1


@dataclass(frozen=True, slots=True)
class AlarmEnd:
    """The episode that an alarm began is over: ``pos`` is the last position at which it was wrong."""

    kind: str
    episode: int
    onset: int
    pos: int


@dataclass(frozen=True, slots=True)
class Command:
    """Settings that were changed while decoding, applied before step ``step`` at position ``pos``."""

    id: int
    changes: Mapping[str, Any]
    step: int = -1
    pos: int = -1


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a sequence ended. Times are seconds."""

    finish_reason: str
    prompt_tokens: int
    new_tokens: int
    text: str
    steps: int
    prefill_s: float
    decode_s: float
    detail: str = ""


class Sink(Protocol):
    """What a decode loop tells. An observer cannot change what is decoded."""

    def on_step(self, step: Step) -> None: ...

    def on_alarm(self, alarm: Alarm) -> None: ...

    def on_command(self, command: Command) -> None: ...
