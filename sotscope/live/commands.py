"""What an engine can be told, and what it says. Plain values on the pipe, validated on both sides."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from sotscope.errors import LiveError
from sotscope.plain import first_error

State = Literal["starting", "idle", "preparing", "running", "paused", "ended", "dead"]
"""`ended`: the text is written and the run still open, so that it can be branched."""


class _Command(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: int = 0


class Start(_Command):
    """Decode a new run; ``settings`` are those of RunConfig (input, capture, decode, health, interventions ...)."""

    kind: Literal["start"] = "start"
    settings: dict[str, Any] = Field(default_factory=dict)
    paused: bool = False
    """Stop before the first step."""
    delay_ms: float = Field(0, ge=0, le=10_000)


class Pause(_Command):
    kind: Literal["pause"] = "pause"


class Resume(_Command):
    kind: Literal["resume"] = "resume"


class StepOnce(_Command):
    """One step of the decode loop, then pause."""

    kind: Literal["step"] = "step"


class Stop(_Command):
    """End the run here; what is committed stays."""

    kind: Literal["stop"] = "stop"


class Set(_Command):
    """Change settings of DecodeConfig, or ``interventions``, at the next step boundary."""

    kind: Literal["set"] = "set"
    changes: dict[str, Any]


class Pace(_Command):
    """Slow motion: wait so long after every step."""

    kind: Literal["pace"] = "pace"
    delay_ms: float = Field(ge=0, le=10_000)


class Recover(_Command):
    """Recover as if an alarm had just been raised; ``policy`` empty: as the settings of the run say, else rollback."""

    kind: Literal["recover"] = "recover"
    policy: str = Field("", max_length=64)


class BranchAt(_Command):
    """Go on from a position of a sequence with another token there, as a new sequence."""

    kind: Literal["branch"] = "branch"
    seq: int = Field(ge=0)
    pos: int = Field(ge=1)
    token: int = Field(ge=0)


class Quit(_Command):
    """Close what is open and leave."""

    kind: Literal["quit"] = "quit"


Command = Annotated[
    Start | Pause | Resume | StepOnce | Stop | Set | Pace | Recover | BranchAt | Quit, Field(discriminator="kind")
]
_COMMANDS: TypeAdapter[Any] = TypeAdapter(Command)


def command_of(data: Any) -> Any:
    """The command that ``data`` describes. Raises LiveError in one line."""
    try:
        return _COMMANDS.validate_python(data)
    except ValidationError as error:
        raise LiveError(first_error(error)) from error


class Ack(BaseModel):
    """The answer to the command with this id. ``error`` is one line, empty where it was done (or is being done)."""

    id: int
    error: str = ""


class Status(BaseModel):
    """How the engine is. ``sequence`` grows by one with each."""

    sequence: int = 0
    state: State = "starting"
    text: str = ""
    """What it is at, or why it cannot go on; one line."""
    run: str = ""
    """Path of the run that it writes, or wrote last."""
    seq: int = 0
    """The sequence of that run that is decoded."""
    model: str = ""
    modes: tuple[str, ...] = ()
    """Modes that this model can be decoded in here."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Decode settings in force."""
    interventions: list[dict[str, Any]] = Field(default_factory=list)
    """Interventions there are, on or off, in their order, as ``set`` takes them back."""
    measured: bool = False
    """Whether their effect is measured."""
    monitors: list[str] = Field(default_factory=list)
    """What watches the run."""
    recoveries: list[str] = Field(default_factory=list)
    """What is tried about an alarm, in this order; empty: nothing, unless a person asks."""
    delay_ms: float = 0
