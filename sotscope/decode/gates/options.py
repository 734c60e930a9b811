"""The parameters that people give gates: known by name, and numbers where numbers are meant."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from sotscope.catalog import GATES
from sotscope.errors import DecodeError
from sotscope.registry import unknown

SUPPLIED = "widths"
"""What a gate gets from the program, never from its user."""
_NUMBERS: Mapping[type, tuple[type, ...]] = {int: (int,), float: (int, float)}


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raises DecodeError in one line for an unknown gate, a parameter it does not have, or a value of another type.

    Whether a number is in its range is for the gate itself to say.
    """
    known = {key: given.default for key, given in inspect.signature(GATES.get(name)).parameters.items()}
    known.pop(SUPPLIED, None)
    for key, value in options.items():
        if key not in known:
            raise DecodeError(
                unknown(f"parameter of gate {name}", key, list(known)) if known else f"gate {name} takes no parameters."
            )
        kind = type(known[key])
        if kind in _NUMBERS and type(value) not in _NUMBERS[kind]:
            raise DecodeError(f"gate {name}: {key} = {value!r} is not a {'whole ' * (kind is int)}number.")


def check_gates(gates: Mapping[str, Mapping[str, Any]]) -> None:
    """As ``check_options``, and ranges too where that takes neither model nor measurement."""
    for name, options in gates.items():
        check_options(name, options)
        gate = GATES.get(name)
        if all(p.default is not p.empty for p in inspect.signature(gate).parameters.values()):
            gate(**options)
