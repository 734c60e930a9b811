"""Interventions: how they are asked for, as plain data, and what each one must be. Nothing here loads torch.

An intervention changes a row by what the row is and by committed earlier rows, never by later ones. So it does not
matter how many rows a forward has: decoding with drafts, one token at a time, and one forward over the whole text give
the same states.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sotscope.catalog import INTERVENTIONS
from sotscope.errors import HealthError
from sotscope.plain import first_error
from sotscope.registry import unknown

if TYPE_CHECKING:
    from torch import Tensor

OPEN = 1 << 30
"""End of a range of positions that has none."""


class InterventionConfig(BaseModel):
    """What is to be changed, where, when and how strongly: ``new = old + strength * (changed - old)``.

    ``site`` and ``tokens`` are the kind's own by default; ``layers`` as everywhere. ``tokens``: ``all``, ``prompt``,
    ``generated`` (rows of generated tokens: the first one follows the last prompt token), or positions ``A-B``, ``A-``,
    ``A``. ``options`` are the kind's.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    kind: str
    site: str | None = None
    layers: str = "all"
    tokens: str | None = None
    strength: float = Field(default=1.0, allow_inf_nan=False)
    name: str | None = None
    on: bool = True
    options: dict[str, Any] = Field(default_factory=dict)

    @property
    def active(self) -> bool:
        """Whether it changes anything at all."""
        return self.on and self.strength != 0


def read_intervention(given: str | Mapping[str, Any] | InterventionConfig) -> InterventionConfig:
    """From ``prune:layers=10-20,k=3``, or from a mapping with ``kind`` and more; what is no field is an option.

    In the text a part without ``=`` goes on with the value before it: ``freeze:layers=0,2-4,dims=7,9``. Raises
    HealthError, in one line.
    """
    if isinstance(given, InterventionConfig):
        return given
    values = _parse(given) if isinstance(given, str) else dict(given)
    if values.get("kind") not in INTERVENTIONS:
        raise HealthError(unknown("intervention", str(values.get("kind", "")), INTERVENTIONS.names()))
    fields = {key: values.pop(key) for key in InterventionConfig.model_fields if key in values}
    try:
        return InterventionConfig(**{**fields, "options": {**(fields.get("options") or {}), **values}})
    except (ValidationError, TypeError) as error:
        what = first_error(error) if isinstance(error, ValidationError) else f"{error}."
        raise HealthError(f"intervention {given!r}: {what}") from None


def _parse(text: str) -> dict[str, Any]:
    kind, _, rest = text.strip().partition(":")
    values: dict[str, str] = {}
    key = ""
    for part in rest.split(",") if rest else []:
        name, equals, value = part.partition("=")
        if equals:
            key = name.strip()
            if key in values or key in ("", "kind", "options"):
                raise HealthError(f"intervention {text!r}: {key or 'an empty name'} cannot be set there, or not twice.")
            values[key] = value.strip()
        elif key:
            values[key] += "," + part.strip()
        else:
            raise HealthError(f"intervention {text!r} not understood at {part!r}; write KIND:layers=10-20,k=3.")
    if not kind:
        raise HealthError(f"intervention {text!r} names no kind; write KIND:layers=10-20,k=3.")
    return {"kind": kind, **{name: _value(value) for name, value in values.items()}}


def _value(text: str) -> Any:
    """A number, a truth value, or the word itself."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def span(tokens: str, prompt_length: int) -> range:
    """The positions that ``tokens`` means. Raises HealthError for what is not understood."""
    if tokens == "all":
        return range(OPEN)
    if tokens == "prompt":
        return range(prompt_length)
    if tokens == "generated":
        return range(prompt_length, OPEN)
    match = re.fullmatch(r"\s*(\d+)\s*(-\s*(\d*)\s*)?", tokens)
    if not match:
        raise HealthError(f"tokens {tokens!r} not understood; write all, prompt, generated, 5, 5-20 or 5-.")
    first = int(match[1])
    last = first if match[2] is None else int(match[3]) if match[3] else OPEN - 1
    if last < first:
        raise HealthError(f"tokens {tokens!r} run backwards; write {last}-{first}.")
    return range(first, last + 1)


@dataclass(frozen=True)
class Place:
    """Where an intervention works: a site of one layer. ``width`` values a row; the model has ``layers`` layers."""

    site: str
    layer: int
    width: int
    layers: int


class Intervention(ABC):
    """A change of states, at one layer. The constructor takes ``place`` and then parameters with defaults, and raises
    HealthError for values out of range. Subclass ``Rowwise`` or ``Recurrent``.

    ``site`` and ``tokens`` are what is meant where nothing is said; ``sites`` are all it can work at (empty: any).
    With ``pairs`` a row is [2, value], what entered the site's module and what it gave; what is returned is [value].
    States are float32 or wider whatever the model's type, and must not be written to.
    """

    name: ClassVar[str]
    site: ClassVar[str] = "resid"
    sites: ClassVar[tuple[str, ...]] = ()
    tokens: ClassVar[str] = "all"
    pairs: ClassVar[bool] = False

    @classmethod
    def make(cls, place: Place, **options: Any) -> Intervention:
        """The object for ``place``; for kinds of which an option changes the class."""
        make: Callable[..., Intervention] = cls
        return make(place, **options)

    def voids(self, earlier: Any) -> bool:
        """Whether ``earlier``, of the same kind on the same rows, would leave no trace: then both are refused."""
        return False


class Rowwise(Intervention):
    """Changes each row by itself."""

    @abstractmethod
    def rows(self, states: Tensor, positions: range) -> Tensor:
        """``states [row, value]`` at ``positions``, changed."""


class Recurrent(Intervention):
    """Changes a row by what earlier rows were. Memories are values: make a new one, never write into the old."""

    @abstractmethod
    def row(self, state: Tensor, memory: Any, pos: int) -> tuple[Tensor, Any]:
        """The row ``state [value]`` at ``pos`` changed, and the memory after it; ``memory`` is that of the row before
        (None: it is not known)."""

    def watch(self, state: Tensor, memory: Any, pos: int) -> Any:
        """The memory after a row before its token range, which is not changed."""
        return self.row(state, memory, pos)[1]
