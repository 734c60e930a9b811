"""The contracts of health: what a monitor sees of a row, what it says, and what a recovery asks for.

Nothing here needs torch: monitors judge a finished run as they judge one that is being decoded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from sotscope.events import Alarm
from sotscope.health.baseline import Baseline
from sotscope.health.early_model import EarlyModel

Severity = Literal["warning", "critical"]


@dataclass(frozen=True, slots=True)
class Row:
    """One committed row as monitors see it. Arrays are the program's own: look, do not write.

    ``token`` was fed at position ``pos`` and chose ``next_id`` (-1: none). ``given``: what follows was part of the
    prompt or of a given text, nobody chose it. ``norm``, ``max_abs``, ``nonfinite``, ``cosine`` (to the row before)
    and ``present`` are [layer], of the recorded layers; ``states`` [watched, dim] are those of the subject's
    watched layers, None where they were not recorded; ``head_norm`` and ``attn_entropy`` [layer, head] are None
    where they were not. ``entropy``, ``logprob`` and ``margin`` (nats) are NaN where no logits were looked at.
    """

    pos: int
    token: int
    next_id: int
    given: bool
    norm: NDArray[np.float32]
    max_abs: NDArray[np.float32]
    nonfinite: NDArray[np.int32]
    cosine: NDArray[np.float32]
    present: NDArray[np.bool_]
    entropy: float
    logprob: float
    margin: float
    states: NDArray[np.float32] | None = None
    head_norm: NDArray[np.float32] | None = None
    attn_entropy: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Subject:
    """What is watched: the numbers of the recorded layers, those of them whose states rows carry, what is normal
    for the model, and how its loops announce themselves (None: nobody knows)."""

    layers: tuple[int, ...]
    watched: tuple[int, ...] = ()
    baseline: Baseline | None = None
    early: EarlyModel | None = None


@dataclass(frozen=True)
class Signal:
    """What a monitor finds wrong in a row. ``onset`` is the position where it began, ``evidence`` the numbers."""

    severity: Severity
    message: str
    onset: int
    evidence: Mapping[str, Any] = field(default_factory=dict)


class Monitor(ABC):
    """A rule over committed rows of one sequence, in order. One object watches one sequence.

    The constructor takes ``subject`` and then parameters with defaults; it raises HealthError for values out of range.
    ``needs`` names the optional fields of a row it reads.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()
    calm: ClassVar[int] = 16
    """Rows without a signal that end an episode."""
    advice: ClassVar[str] = ""
    """What to try, for `diagnose`; one line."""

    @classmethod
    def lacks(cls, subject: Subject) -> str:
        """Why it cannot judge such a subject ("there is no baseline ..."), or empty. It is left out then, and said."""
        return ""

    @abstractmethod
    def observe(self, row: Row) -> Signal | None:
        """Look at the next row. A signal while it is wrong (also in the rows after the first), else None."""


@dataclass(frozen=True)
class Trouble:
    """An alarm that is to be recovered from. ``ids`` are all tokens up to the one that the alarmed row chose;
    ``attempt`` counts from 0."""

    alarm: Alarm
    ids: Sequence[int]
    prompt_length: int
    attempt: int = 0


@dataclass(frozen=True)
class Action:
    """What a recovery asks for. All of it holds for the ``hold`` tokens after ``keep``, by position, so that the width
    of a step does not matter.

    ``keep``: go on from the first ``keep`` tokens, as a new sequence, the last of them fed anew; the others are
    retracted (those of the prompt never are: they are fed anew from there). ``fresh``: with a cache
    that is computed anew. ``ban``: n-grams that
    must not be completed. ``penalty``: repetition penalty. ``temperature``: draw tokens. ``mode``: decode with this
    drafter from here on. ``interventions``: settings of interventions. ``stop``: end the sequence here.
    """

    note: str
    keep: int = -1
    hold: int = 0
    ban: tuple[tuple[int, ...], ...] = ()
    penalty: float = 1.0
    temperature: float = 0.0
    mode: str = ""
    interventions: tuple[Mapping[str, Any], ...] = ()
    fresh: bool = False
    stop: bool = False


class Recovery(ABC):
    """What is done about an alarm. The constructor takes parameters with defaults and raises HealthError."""

    name: ClassVar[str]

    @abstractmethod
    def plan(self, trouble: Trouble) -> Action | None:
        """What to do in this attempt; None where it can do nothing about such an alarm."""
