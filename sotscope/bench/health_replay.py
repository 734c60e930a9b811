"""What monitors say of a text that is written already: a forward over it, and its rows through all monitors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sotscope.capture.plan import Plan, anatomy, available, make_plan
from sotscope.config import HealthConfig
from sotscope.events import Alarm
from sotscope.health.contracts import Subject
from sotscope.health.early import Features, Scorer
from sotscope.health.watch import HealthWatch, make_monitors
from sotscope.models.load import Loaded
from sotscope.preparation import fields_of, subject_of
from sotscope.training.rows import text_rows

SCORES = ("all", "tokens")
"""The early-warning scores that are asked."""


class Replay:
    """Monitors over texts of one model. ``sites`` are those a live recording must have for the same alarms."""

    def __init__(self, loaded: Loaded, monitors: Mapping[str, Mapping[str, Any]]) -> None:
        self.sites = ["resid", *([] if available(anatomy(loaded.model))["head_out"] else ["head_out"])]
        self._plan: Plan = make_plan(loaded.model, self.sites)
        self._monitors = monitors
        self.subject: Subject = subject_of(loaded, self._plan, HealthConfig(monitor=True))
        _, self.left_out = make_monitors(monitors, self.subject, fields_of(self._plan))

    def __call__(self, prompt: Sequence[int], written: Sequence[int]) -> dict[str, Any]:
        """``alarms``: kind, severity, onset, pos and episode of each; ``looks``: position and the probabilities of
        ``SCORES`` (empty where the model has no early-warning score)."""
        watch = HealthWatch(make_monitors(self._monitors, self.subject, fields_of(self._plan))[0])
        early = self.subject.early
        usable = early is not None and tuple(early.layers) == self.subject.watched
        features = Features()
        scorers = [Scorer(early, name) for name in SCORES] if early is not None and usable else []
        alarms: list[dict[str, Any]] = []
        looks: list[list[float]] = []
        for row in text_rows(self._plan, prompt, written):
            alarms += [described(event) for event in watch.observe(row) if isinstance(event, Alarm)]
            seen = features.observe(row) if scorers else None
            if seen is not None:
                looks.append([row.pos, *(scorer.probability(seen) for scorer in scorers)])
        return {"alarms": alarms, "looks": looks}


def described(alarm: Alarm) -> dict[str, Any]:
    """An alarm without its words."""
    return {"kind": alarm.kind, "severity": alarm.severity, "onset": alarm.onset, "pos": alarm.pos,
            "episode": alarm.episode}  # fmt: skip
