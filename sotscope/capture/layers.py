"""Which layers: ``all``, ``0-29``, ``first``, ``last``, ``every 4``, ``0, 5, 10-12``, negative ones from the end."""

from __future__ import annotations

import re

from sotscope.errors import SiteError

SYNTAX = "all, first, last, every 4, 0-29, 3, -1, or several of these with commas"


def parse_layers(text: str, count: int) -> tuple[int, ...]:
    """Layer numbers of ``text`` for a model of ``count`` layers, sorted and without doubles.

    Raises SiteError for what is not understood, and for layers that the model does not have.
    """
    found: set[int] = set()
    parts = [part.strip() for part in text.split(",")]
    if not any(parts):
        raise SiteError(f"no layers in {text!r}; write {SYNTAX}.")
    for part in parts:
        found.update(_part(part, count, text))
    return tuple(sorted(found))


def _part(part: str, count: int, text: str) -> range | tuple[int, ...]:
    if part == "all":
        return range(count)
    if part == "first":
        return (0,)
    if part == "last":
        return (count - 1,)
    if match := re.fullmatch(r"every\s+(\d+)", part):
        stride = int(match[1])
        if stride < 1:
            raise SiteError(f"'every {stride}' makes no sense; write every 1, every 2 ...")
        return range(0, count, stride)
    if match := re.fullmatch(r"(-?\d+)", part):
        return (_one(int(match[1]), count),)
    if match := re.fullmatch(r"(\d+)\s*-\s*(\d+)", part):
        first, last = _one(int(match[1]), count), _one(int(match[2]), count)
        if first > last:
            raise SiteError(f"layers {part!r} run backwards; write {last}-{first}.")
        return range(first, last + 1)
    raise SiteError(f"layers {text!r} not understood at {part!r}; write {SYNTAX}.")


def _one(layer: int, count: int) -> int:
    if not -count <= layer < count:
        raise SiteError(f"layer {layer} does not exist; the model has {count} layers, 0-{count - 1}.")
    return layer % count
