"""The parameters that people give gates: known by name, and numbers where numbers are meant."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from sotscope.catalog import GATES
from sotscope.errors import DecodeError
from sotscope.parameters import check_parameters

SUPPLIED = "widths"
"""What a gate gets from the program, never from its user."""


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raises DecodeError in one line for an unknown gate, a parameter it does not have, or a value of another type."""
    check_parameters(GATES, name, options, supplied=(SUPPLIED,), error=DecodeError)


def check_gates(gates: Mapping[str, Mapping[str, Any]]) -> None:
    """As ``check_options``, and ranges too where that takes neither model nor measurement."""
    for name, options in gates.items():
        check_options(name, options)
        gate = GATES.get(name)
        if all(p.default is not p.empty for p in inspect.signature(gate).parameters.values()):
            gate(**options)
