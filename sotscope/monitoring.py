"""The monitors and recoveries of one recording: what is watched, what is wrong, and what is tried about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sotscope.catalog import MONITORS, RECOVERIES
from sotscope.config import HealthConfig
from sotscope.errors import HealthError
from sotscope.events import Alarm, AlarmEnd, Step
from sotscope.health.contracts import Action, Recovery, Row, Subject, Trouble
from sotscope.health.rows import rows_of_step
from sotscope.health.watch import HealthWatch, check_monitors, make_monitors
from sotscope.parameters import check_parameters

SETTLED = 200
"""Tokens after a recovery without a new alarm of its kind that make it a success."""
CALLED = 24
"""Tokens that a recovery which a person asked for takes back."""


@dataclass
class _Trial:
    """A recovery that is being tried, and until which position it must hold."""

    alarm: Alarm
    policy: str
    attempt: int
    keep: int


class Monitoring:
    """Watches the sequence that is decoded; ``trouble`` is the alarm that waits for a recovery.

    ``has`` are the optional fields of rows there are. ``tell(kind, **fields)`` writes an event. Raises HealthError for
    settings that cannot be met; ``left_out`` says which monitors cannot judge this model.
    """

    def __init__(
        self,
        settings: HealthConfig,
        subject: Subject,
        has: Iterable[str],
        tell: Callable[..., None],
    ) -> None:
        self._settings, self._subject, self._has = settings, subject, frozenset(has)
        self._tell = tell
        self._wanted = monitors_of(settings)
        self._recoveries = make_recoveries(settings)
        self._places = [subject.layers.index(layer) for layer in subject.watched]
        self._watch, self.left_out = self._made(0)
        self._trial: _Trial | None = None
        self._spent: dict[str, int] = {}
        self._latest = 0
        self._called: dict[str, Recovery] = {}
        self.trouble: Alarm | None = None

    def _made(self, episodes: int) -> tuple[HealthWatch, list[str]]:
        monitors, left_out = make_monitors(self._wanted, self._subject, self._has)
        return HealthWatch(monitors, episodes), left_out

    @property
    def names(self) -> list[str]:
        """The monitors that watch."""
        return list(self._watch.monitors)

    # -- watching ----------------------------------------------------------------------------------------------

    def observe(
        self, step: Step, scalars: Mapping[str, NDArray[Any]], present: NDArray[np.bool_], resid: NDArray[np.float32]
    ) -> list[Alarm | AlarmEnd]:
        """What begins and ends with the rows of ``step``; ``resid`` is [row, layer, dim] of the recorded layers."""
        states = resid[:, self._places] if self._places else None
        found: list[Alarm | AlarmEnd] = []
        for row in rows_of_step(step, scalars, present, states):
            found += self._watch.observe(row)
            self._latest = row.pos
        for event in found:
            if isinstance(event, Alarm):
                self._note(event)
        if self._trial is not None and self._latest >= self._trial.keep + SETTLED:
            self._settle("recovered")
        return found

    def _note(self, alarm: Alarm) -> None:
        if self._recoveries and alarm.kind in self._settings.recover_on and self.trouble is None:
            self.trouble = alarm
            if self._trial is not None and self._trial.alarm.kind == alarm.kind:
                self._settle("again")

    def restart(self, rows: Iterable[Row]) -> None:
        """Another sequence: its first rows are ``rows``, judged already."""
        self._watch, _ = self._made(self._watch.episodes)
        self._watch.prime(rows)
        self._latest, self.trouble = -1, None

    def close(self, *, over: bool) -> list[AlarmEnd]:
        """The sequence ends, and with it what is open. ``over``: no other goes on from it, so a recovery that held
        until now is a success."""
        if over and self._trial is not None:
            self._settle("recovered" if self._latest > self._trial.keep else "unknown")
        return self._watch.close()

    def call(self, policy: str, ids: Sequence[int], prompt_length: int) -> None:
        """Somebody asks for a recovery: from the alarm that goes on, or back to before the last ``CALLED`` tokens.

        Raises HealthError for an unknown policy, or where nothing is written yet.
        """
        names = [policy] if policy else list(self._recoveries) or ["rollback"]
        if len(ids) <= prompt_length:
            raise HealthError("nothing is written yet that could be recovered.")
        self._called = {name: self._recoveries.get(name) or RECOVERIES.get(name)() for name in names}
        most = self._settings.attempts * len(names) - 1
        self._spent["called"] = min(self._spent.get("called", 0), most)  # a person may ask as often as they like
        going = [alarm for alarm in self._watch.going if alarm.kind in self._settings.recover_on]
        first = min(going, key=lambda alarm: alarm.onset, default=None)
        onset = max(prompt_length, len(ids) - CALLED) if first is None else first.onset
        evidence = {} if first is None else first.data  # of a loop its cycle, which a rollback bans
        self.trouble = Alarm("called", "a recovery was asked for", evidence, "warning", onset, len(ids) - 2, -1)

    # -- recovering --------------------------------------------------------------------------------------------

    def plan(self, ids: Sequence[int], prompt_length: int) -> Action | None:
        """What to do about ``trouble``, which is then taken care of. None: nothing more is tried.

        Every recovery gets ``attempts`` attempts, in the order of the settings; after ``SETTLED`` quiet tokens they
        count from the beginning.
        """
        alarm, self.trouble = self.trouble, None
        if alarm is None:
            return None
        known = ids[: alarm.pos + 2]  # rows after the alarmed one do not count, however wide the step was
        recoveries = self._called if alarm.kind == "called" else self._recoveries
        limit, names = self._settings.attempts, list(recoveries)
        while (spent := self._spent.get(alarm.kind, 0)) < limit * len(names):
            self._spent[alarm.kind] = spent + 1
            name, attempt = names[spent // limit], spent % limit
            action = recoveries[name].plan(Trouble(alarm, known, prompt_length, attempt))
            if action is not None:
                self._trial = None if action.stop else _Trial(alarm, name, attempt, max(action.keep, 0))
                self._tell(
                    "recovery", policy=name, attempt=attempt + 1, alarm=alarm.kind, episode=alarm.episode,
                    action=action.note, keep=action.keep, retracted=max(0, len(ids) - action.keep) if action.keep >= 0
                    else 0,
                )  # fmt: skip
                return action
        self._tell("recovery_outcome", alarm=alarm.kind, episode=alarm.episode, outcome="given up", attempts=spent)
        return None

    def _settle(self, outcome: str) -> None:
        trial, self._trial = self._trial, None
        assert trial is not None
        if outcome == "recovered":
            self._spent.pop(trial.alarm.kind, None)
        self._tell(
            "recovery_outcome", policy=trial.policy, attempt=trial.attempt + 1, alarm=trial.alarm.kind,
            episode=trial.alarm.episode, outcome=outcome, tokens=max(0, self._latest + 1 - trial.keep),
        )  # fmt: skip


def monitors_of(settings: HealthConfig) -> dict[str, dict[str, Any]]:
    """The monitors that settings ask for, with their parameters; ``non_finite`` always watches."""
    wanted: dict[str, dict[str, Any]] = {"non_finite": {}}
    if settings.monitor:
        wanted.update({name: {} for name in MONITORS})
    if settings.recover:
        wanted.update({name: {} for name in settings.recover_on})
    return {**wanted, **settings.monitors}


def check_health(settings: HealthConfig) -> None:
    """Raises HealthError in one line for an unknown monitor or recovery, or a parameter that it does not have."""
    check_monitors(monitors_of(settings))
    make_recoveries(settings)


def make_recoveries(settings: HealthConfig) -> dict[str, Recovery]:
    """The recoveries of ``settings``, the first to be tried first. Raises HealthError in one line."""
    for name, options in settings.recover.items():
        check_parameters(RECOVERIES, name, options, error=HealthError)
    return {name: RECOVERIES.get(name)(**options) for name, options in settings.recover.items()}
