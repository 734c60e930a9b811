"""The engine of interventions: hooks that change rows while the model runs, attached on enter and gone on exit.

They run before the hooks of taps and watches, which therefore see what the model really uses. The engine knows neither
the decode loop nor the store; which row it is, a forward's position says.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from sotscope.capture.applied import Active, Key, labels, make_active, refuse_contradictions
from sotscope.capture.contracts import unwrap
from sotscope.capture.edit import entering, read_rows, with_input, with_state, write_rows
from sotscope.capture.interventions import InterventionConfig, read_intervention
from sotscope.capture.plan import Plan, Point, anatomy
from sotscope.errors import CaptureError, HealthError

MOST = 31
"""Names that fit into the mask of a row, an int32."""

BEGIN, END = ("begin", -1), ("end", -1)
"""Keys of the hooks around a forward."""


class Intervening:
    """Changes states of ``model`` as ``configs`` say, in their order, for one sequence at a time.

    ``configs`` are InterventionConfigs, mappings or texts such as ``prune:layers=10-20,k=3``; ``prompt_length`` tells
    where ``tokens=generated`` begins. ``module_names`` gives module paths by hand, as for recording. Rows that are
    changed carry no gradient.

    Raises HealthError for settings that make no sense or contradict each other, SiteError for a site or layer that the
    model does not have. Nothing is attached then.
    """

    def __init__(
        self,
        model: Any,
        configs: Sequence[str | Mapping[str, Any] | InterventionConfig],
        prompt_length: int,
        *,
        module_names: Mapping[str, str] | None = None,
    ) -> None:
        self.body = model.anatomy if isinstance(model, Plan) else anatomy(model)
        self._module_names = module_names
        self._prompt_length = prompt_length
        self._known: dict[str, InterventionConfig] = {}
        self.configs: tuple[InterventionConfig, ...] = ()
        """The settings that hold now."""
        self._schedule: list[tuple[int, tuple[Active, ...]]] = []
        self._entered = self._off = False
        self._inside = False  # a module that somebody calls by itself computes no rows
        self._handles: dict[Key, RemovableHandle] = {}
        self._rows = range(0)
        self._cache: Callable[[], Any] = _nothing
        self.set(configs, 0)

    # -- what is on --------------------------------------------------------------------------------------------

    def set(self, configs: Sequence[str | Mapping[str, Any] | InterventionConfig], from_position: int) -> None:
        """From ``from_position`` on these hold; rows before it keep what they had, also when they are fed again.

        Those that were on already with the same settings go on with what they remember; new ones begin anew. On an
        error nothing changes.
        """
        self._set([read_intervention(config) for config in configs], from_position, self._schedule)

    def add(self, configs: Sequence[str | Mapping[str, Any] | InterventionConfig]) -> None:
        """These also hold, in their token ranges, after all that is on at a row; they look back at every row that is
        fed again from now on. On an error nothing changes."""
        given = [read_intervention(config) for config in configs]
        named = labels([*self.configs, *given], self._known)[len(self.configs) :]
        known = _few({**self._known, **dict(zip(named, given, strict=True))})
        made = tuple(
            make_active(self.body, config, label, self._prompt_length, self._module_names)
            for label, config in zip(named, given, strict=True)
        )
        for _, actives in self._schedule:
            refuse_contradictions([*actives, *made])
        self._known, self.configs = known, (*self.configs, *given)
        self._schedule = [(start, (*actives, *made)) for start, actives in self._schedule]
        if self._entered:
            self._attach()

    def restart(self, prompt_length: int) -> None:
        """Another sequence: what holds now holds from its first row. (A branch needs no restart: its rows have their
        positions.)"""
        before, self._prompt_length = self._prompt_length, prompt_length
        try:
            self._set(self.configs, 0, [])
        except HealthError:
            self._prompt_length = before
            raise

    @property
    def sites(self) -> frozenset[str]:
        """Where something is changed, at some position."""
        return frozenset(site for _, actives in self._schedule for one in actives for site, _ in one.at)

    @property
    def names(self) -> list[str]:
        """Every intervention there has been, on or off; the place of a name is its bit in ``active``."""
        return list(self._known)

    def active(self, position: int) -> int:
        """Bit i is set where ``names[i]`` changes the row at ``position``."""
        position = int(position)  # a range looks through all it has for a number that is not Python's own
        _, actives = next((entry for entry in reversed(self._schedule) if entry[0] <= position), (0, ()))
        return sum(1 << self.names.index(active.label) for active in actives if position in active.where)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Forwards inside are those of the unchanged model; what is remembered stays."""
        before, self._off = self._off, True
        try:
            yield
        finally:
            self._off = before

    def _set(
        self, configs: Sequence[InterventionConfig], start: int, schedule: list[tuple[int, tuple[Active, ...]]]
    ) -> None:
        named = dict(zip(labels(configs, self._known), configs, strict=True))
        known = _few({**self._known, **named})
        kept = [entry for entry in schedule if entry[0] < start]
        running = {active.label: active for active in kept[-1][1]} if kept else {}
        actives: list[Active] = []
        for label, config in named.items():
            active = running.get(label)
            if active is None or active.config != config:
                active = make_active(self.body, config, label, self._prompt_length, self._module_names)
            if config.active:
                actives.append(active)
        refuse_contradictions(actives)
        self._known, self.configs, self._schedule = known, tuple(configs), [*kept, (start, tuple(actives))]
        if self._entered:
            self._attach()

    # -- hooks -------------------------------------------------------------------------------------------------

    def __enter__(self) -> Intervening:
        self._entered = True
        try:
            self._attach()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._entered = False
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()

    def _attach(self) -> None:
        """Hooks on the modules that something in the schedule touches, and on no other."""
        needed = {
            key: applied.point for _, actives in self._schedule for one in actives for key, applied in one.at.items()
        }
        for gone in [key for key in self._handles if key not in needed]:
            self._handles.pop(gone).remove()
        for key, point in needed.items():
            if key in self._handles:
                continue
            if point.site.side == "in":
                hook = point.module.register_forward_pre_hook(self._before(key, point), prepend=True, with_kwargs=True)
            else:
                hook = point.module.register_forward_hook(self._after(key, point), prepend=True, with_kwargs=True)
            self._handles[key] = hook
        if needed:
            decoder = self.body.decoder
            self._handles[BEGIN] = decoder.register_forward_pre_hook(self._begin, prepend=True, with_kwargs=True)
            self._handles[END] = decoder.register_forward_hook(self._end, always_call=True)

    def _begin(self, module: Any, args: Any, kwargs: Mapping[str, Any]) -> None:
        given = [*args[:1], kwargs.get("input_ids"), kwargs.get("inputs_embeds")]
        inputs = next((value for value in given if isinstance(value, Tensor)), None)
        if inputs is None:
            raise CaptureError("the decoder was called without input_ids or inputs_embeds.")
        if inputs.shape[0] != 1 and not self._off:
            raise CaptureError(f"a batch of {inputs.shape[0]} sequences: intervene in one sequence at a time.")
        start = self._first(kwargs)
        self._rows = range(start, start + inputs.shape[1])
        self._inside = not self._off

    def _end(self, module: Any, args: Any, output: Any) -> None:
        self._inside = False

    def _first(self, kwargs: Mapping[str, Any]) -> int:
        """The position of a forward's first row: from ``position_ids``, else the length of its cache, else 0. Rows of a
        recurrent cache, which does not know its length, are counted: it cannot go back."""
        positions = kwargs.get("position_ids")
        cache = next((kwargs[name] for name in ("cache", "past_key_values") if kwargs.get(name) is not None), None)
        before, self._cache = self._cache(), weakref.ref(cache) if cache is not None else _nothing
        if positions is not None:
            return int(positions.flatten()[0])
        if cache is None:
            return 0
        try:
            return int(cache.get_seq_length())
        except ValueError:
            return self._rows.stop if cache is before else 0

    def _before(self, key: Key, point: Point) -> Any:
        def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            changed = self._changed(key, point, entering(args, kwargs), None)
            return None if changed is None else with_input(args, kwargs, changed)

        return hook

    def _after(self, key: Key, point: Point) -> Any:
        def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            entered = entering(args, kwargs) if args or "hidden_states" in kwargs else None
            changed = self._changed(key, point, unwrap(output), entered)
            return None if changed is None else with_state(output, changed)

        return hook

    @torch.no_grad()
    def _changed(self, key: Key, point: Point, tensor: Tensor, entered: Tensor | None) -> Tensor | None:
        """The state of a module with its rows changed; None where nothing changes."""
        if not self._inside:
            return None
        pieces = [(rows, [active.at[key] for active in on if key in active.at]) for rows, on in self._pieces()]
        if not any(applied for _, applied in pieces):
            return None
        geometry, start = self.body.geometry, self._rows.start
        states = _wide(read_rows(tensor, point, geometry))
        out: list[Tensor] = []
        same = True
        for rows, all_applied in pieces:
            where = slice(rows.start - start, rows.stop - start)
            piece = states[where]
            for applied in all_applied:
                given = None
                if applied.intervention.pairs and entered is not None:
                    given = _wide(read_rows(entered, point, geometry))[where]
                changed = applied.change(piece, given, rows)
                same &= changed is piece
                piece = changed
            out.append(piece)
        return None if same else write_rows(tensor, torch.cat(out), point, geometry)

    def _pieces(self) -> Iterator[tuple[range, tuple[Active, ...]]]:
        """The rows of this forward with what holds for them."""
        starts = [start for start, _ in self._schedule] + [self._rows.stop]
        for (start, actives), end in zip(self._schedule, starts[1:], strict=True):
            rows = range(max(start, self._rows.start), min(end, self._rows.stop))
            if rows:
                yield rows, actives


def _few(known: dict[str, InterventionConfig]) -> dict[str, InterventionConfig]:
    if len(known) > MOST:
        raise HealthError(f"{len(known)} interventions in one run; a row can tell {MOST} apart.")
    return known


def _nothing() -> None:
    return None


def _wide(states: Tensor) -> Tensor:
    """A copy in float32 or wider: a memory may keep it, and the model may write into its own."""
    return states.detach().to(torch.promote_types(states.dtype, torch.float32), copy=True)
