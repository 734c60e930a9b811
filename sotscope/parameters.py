"""The parameters that people give gates, monitors, recoveries and interventions, before anything is made of them."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import Any

from sotscope.errors import SotscopeError
from sotscope.registry import Registry, unknown

_NUMBERS: Mapping[type, tuple[type, ...]] = {int: (int,), float: (int, float), bool: (bool,), str: (str,)}
_CALLED = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}


def check_parameters(
    registry: Registry[Any],
    name: str,
    options: Mapping[str, Any],
    *,
    supplied: Collection[str] = (),
    error: type[SotscopeError],
) -> None:
    """Raises ``error`` in one line for an unknown entry, a parameter it does not have, or a value of another type.

    ``supplied`` are parameters that the program gives, never its user. Whether a number is in its range is for the
    entry itself to say.
    """
    given = inspect.signature(registry.get(name)).parameters
    known = {key: parameter.default for key, parameter in given.items() if key not in supplied}
    kind_of = registry.kind
    for key, value in options.items():
        if key not in known:
            raise error(
                unknown(f"parameter of {kind_of} {name}", key, list(known))
                if known
                else f"{kind_of} {name} takes no parameters."
            )
        kind = type(known[key])
        if kind in _NUMBERS and type(value) not in _NUMBERS[kind]:
            raise error(f"{kind_of} {name}: {key} = {value!r} is not {_CALLED[kind]}.")
        if isinstance(value, float) and value != value:
            raise error(f"{kind_of} {name}: {key} is not a number.")
