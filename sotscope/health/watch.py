"""All monitors of one sequence: each alarm is raised once an episode, at the same row whatever the width of a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sotscope.catalog import MONITORS
from sotscope.errors import HealthError
from sotscope.events import Alarm, AlarmEnd
from sotscope.health.contracts import Monitor, Row, Signal, Subject
from sotscope.parameters import check_parameters

SUPPLIED = ("subject",)
RECORDED_BY = {"states": "--sites resid", "head_norm": "--sites head_out", "attn_entropy": "--attn-entropy"}
"""How the optional fields of a row come into a run."""


@dataclass
class _Episode:
    alarm: Alarm
    last: int


class HealthWatch:
    """Monitors by name, fed with the committed rows of one sequence in order.

    ``episodes`` is the number of the next episode: a new watch of another sequence of the run goes on counting.
    """

    def __init__(self, monitors: Mapping[str, Monitor], episodes: int = 0) -> None:
        self.monitors = dict(monitors)
        self.episodes = episodes
        self._open: dict[str, _Episode] = {}

    def observe(self, row: Row) -> list[Alarm | AlarmEnd]:
        """What begins and what ends with ``row``."""
        found: list[Alarm | AlarmEnd] = []
        for name, monitor in self.monitors.items():
            signal = monitor.observe(row)
            episode = self._open.get(name)
            if signal is not None and episode is None:
                found.append(self._begin(name, signal, row.pos))
            elif signal is not None and episode is not None:
                episode.last = row.pos
            elif episode is not None and row.pos - episode.last >= monitor.calm:
                found.append(self._end(name))
        return found

    @property
    def going(self) -> list[Alarm]:
        """The alarms of the episodes that have not ended."""
        return [episode.alarm for episode in self._open.values()]

    def prime(self, rows: Iterable[Row]) -> None:
        """Let the monitors see rows that were judged already, as another sequence's: nothing is raised for them."""
        for row in rows:
            self.observe(row)
        self._open.clear()

    def close(self) -> list[AlarmEnd]:
        """The sequence is over: what is wrong to the end ends there."""
        return [self._end(name) for name in list(self._open)]

    def _begin(self, name: str, signal: Signal, pos: int) -> Alarm:
        alarm = Alarm(name, signal.message, dict(signal.evidence), signal.severity, signal.onset, pos, self.episodes)
        self.episodes += 1
        self._open[name] = _Episode(alarm, pos)
        return alarm

    def _end(self, name: str) -> AlarmEnd:
        episode = self._open.pop(name)
        return AlarmEnd(name, episode.alarm.episode, episode.alarm.onset, episode.last)


def check_monitors(settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises HealthError in one line for an unknown monitor or a parameter it does not have."""
    for name, options in settings.items():
        check_parameters(MONITORS, name, options, supplied=SUPPLIED, error=HealthError)


def make_monitors(
    settings: Mapping[str, Mapping[str, Any]], subject: Subject, has: Iterable[str] = ()
) -> tuple[dict[str, Monitor], list[str]]:
    """The monitors of ``settings`` (name to parameters), and a line for each one that is left out.

    ``has`` are the optional fields of rows that there are ("states", "head_norm", "attn_entropy"). A monitor that
    needs others is left out. Raises HealthError for what ``check_monitors`` refuses and for values out of range.
    """
    check_monitors(settings)
    made: dict[str, Monitor] = {}
    left_out: list[str] = []
    for name, options in settings.items():
        factory: Any = MONITORS.get(name)
        missing = sorted(factory.needs - set(has))
        if missing:
            how = ", ".join(dict.fromkeys(RECORDED_BY[field] for field in missing))
            left_out.append(f"monitor {name} is left out: it needs {', '.join(missing)}; record with {how}")
            continue
        if why := factory.lacks(subject):
            left_out.append(f"monitor {name} is left out: {why}")
            continue
        made[name] = factory(subject, **options)
    return made, left_out
