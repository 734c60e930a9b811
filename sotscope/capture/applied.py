"""Interventions at work: from settings to what changes the rows of each layer, and which settings contradict."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sotscope.capture.edit import width_of
from sotscope.capture.interventions import Intervention, InterventionConfig, Place, Recurrent, Rowwise, span
from sotscope.capture.plan import Anatomy, Point, make_plan, site_names
from sotscope.catalog import INTERVENTIONS, SITES
from sotscope.errors import HealthError, SiteError
from sotscope.parameters import check_parameters
from sotscope.plain import ranges

KEPT = 128
"""Positions whose memories are kept, for each layer: more than any draft window, to undo rejected rows."""

Key = tuple[str, int]
"""A site and a layer."""


class Applied:
    """One intervention at one layer: the rows it changes, how strongly, and what it remembers of the last ones."""

    def __init__(self, point: Point, intervention: Rowwise | Recurrent, where: range, strength: float) -> None:
        self.point = point
        self.intervention = intervention
        self._where = where
        self._strength = strength
        self._memories: dict[int, Any] = {}

    def change(self, states: Tensor, entered: Tensor | None, positions: range) -> Tensor:
        """``states [row, value]`` at ``positions`` changed; the same object where no row is in the token range."""
        low, high = (
            min(max(edge - positions.start, 0), len(positions)) for edge in (self._where.start, self._where.stop)
        )
        rows = states if entered is None else torch.stack((entered, states), 1)
        if isinstance(self.intervention, Recurrent):
            changed = self._recur(rows, positions, low, high)
        else:
            changed = self.intervention.rows(rows[low:high], positions[low:high]) if low < high else states[:0]
        old = states[low:high]
        if changed.shape != old.shape:
            name = self.intervention.name
            raise HealthError(f"intervention {name} made {list(changed.shape)} of rows {list(old.shape)}.")
        if low == high:
            return states
        if self._strength != 1:
            changed = old + self._strength * (changed - old)
        return torch.cat((states[:low], changed, states[high:]))  # not in place: a memory may look into the old rows

    def _recur(self, rows: Tensor, positions: range, low: int, high: int) -> Tensor:
        assert isinstance(self.intervention, Recurrent)
        for known in [pos for pos in self._memories if pos >= positions.start]:  # rejected rows
            del self._memories[known]
        memory = self._memories.get(positions.start - 1)
        out: list[Tensor] = []
        for i, pos in enumerate(positions[:high]):
            if i < low:
                memory = self.intervention.watch(rows[i], memory, pos)
            else:
                state, memory = self.intervention.row(rows[i], memory, pos)
                out.append(state)
            self._memories[pos] = memory
        for old in list(self._memories)[:-KEPT]:
            del self._memories[old]
        return torch.stack(out) if out else rows.flatten(1)[:0, : rows.shape[-1]]


@dataclass(frozen=True)
class Active:
    """An intervention that is on, with what does it at each layer."""

    config: InterventionConfig
    label: str
    where: range
    at: Mapping[Key, Applied]


def make_active(
    body: Anatomy, config: InterventionConfig, label: str, prompt_length: int, module_names: Mapping[str, str] | None
) -> Active:
    """What ``config`` means on a model. Raises HealthError or SiteError, in one line, where it means nothing."""
    entry: type[Intervention] = INTERVENTIONS.get(config.kind)
    options = _fitting(entry, config.options)
    check_parameters(INTERVENTIONS, config.kind, options, supplied=("place",), error=HealthError)
    where = span(config.tokens or entry.tokens, prompt_length)
    at: dict[Key, Applied] = {}
    for point in _points(body, config, entry, module_names):
        place = Place(point.site.name, point.layer, width_of(point, body.geometry, body.model), body.geometry.layers)
        made = entry.make(place, **options)
        if not isinstance(made, Rowwise | Recurrent):
            raise HealthError(f"intervention {config.kind} is neither Rowwise nor Recurrent.")
        at[point.site.name, point.layer] = Applied(point, made, where, config.strength)
    return Active(config, label, where, at)


def _points(
    body: Anatomy, config: InterventionConfig, entry: type[Intervention], module_names: Mapping[str, str] | None
) -> list[Point]:
    """The modules that ``config`` means."""
    wanted = config.site or entry.site
    names = site_names([wanted])
    if len(names) != 1 or names == ["all"]:
        raise HealthError(f"intervention {config.kind} works at one site; {wanted!r} is {len(names) or 'none'}.")
    site = SITES.get(names[0])
    if entry.sites and site.name not in entry.sites:
        raise SiteError(f"intervention {config.kind} works at {' or '.join(entry.sites)}, not at {site.name}.")
    if site.side == "weights" or site.role == "router":
        raise SiteError(f"site {site.name} holds no states; nothing there can be changed by an intervention.")
    plan = make_plan(body.model, [site.name], config.layers, module_names=module_names)
    return [point for point in plan.points if point.site.name == site.name]


def labels(configs: Sequence[InterventionConfig], known: Mapping[str, InterventionConfig]) -> list[str]:
    """A name for each: its own, else that which the same settings had before (``known``), else its kind, with a number
    from the second one on. Raises HealthError where two are given the same name."""
    found: dict[int, str] = {}
    for i, config in enumerate(configs):
        if config.name in found.values():
            raise HealthError(f"two interventions are called {config.name!r}; give each its own name.")
        if config.name:
            found[i] = config.name
    for i, config in enumerate(configs):
        same = (name for name, before in known.items() if name not in found.values() and _alike(before, config))
        if i not in found and (name := next(same, "")):
            found[i] = name
    for i, config in enumerate(configs):
        numbered = (config.kind if n == 1 else f"{config.kind} {n}" for n in range(1, len(configs) + 1))
        found.setdefault(i, next((name for name in numbered if name not in found.values()), config.kind))
    return [found[i] for i in range(len(configs))]


def _alike(one: InterventionConfig, other: InterventionConfig) -> bool:
    """Whether they are the same but for being on, and how strongly."""
    same = {"on": True, "strength": 1.0}
    return one.model_copy(update=same) == other.model_copy(update=same)


def _fitting(entry: type[Intervention], options: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers written where words are meant (``dims=7``) are words."""
    defaults = {key: parameter.default for key, parameter in inspect.signature(entry).parameters.items()}
    worded = {key for key, default in defaults.items() if isinstance(default, str)}
    return {key: str(value) if key in worded and type(value) is int else value for key, value in options.items()}


def refuse_contradictions(actives: Sequence[Active]) -> None:
    """Raises HealthError, with both names, where a later intervention leaves no trace of an earlier one."""
    for number, later in enumerate(actives):
        for earlier in actives[:number]:
            if earlier.config.kind != later.config.kind or not _common(earlier.where, later.where):
                continue
            shared = [key for key in later.at if key in earlier.at]
            void = [key[1] for key in shared if later.at[key].intervention.voids(earlier.at[key].intervention)]
            if void:
                raise HealthError(
                    f"interventions {earlier.label!r} and {later.label!r} contradict each other at {shared[0][0]}, "
                    f"layers {ranges(void)}: the second leaves nothing of the first; keep one, or part their rows."
                )


def _common(first: range, second: range) -> range:
    return range(max(first.start, second.start), min(first.stop, second.stop))
