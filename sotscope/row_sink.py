"""What a decode loop tells, put into a run: rows with their states, alarms, commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from sotscope.capture.intervening import Intervening
from sotscope.capture.measure import EFFECTS
from sotscope.capture.tap import Captured, Tap
from sotscope.events import Alarm, AlarmEnd, Branch, Command, Step
from sotscope.models.prompt import Segmenter, segment_codes
from sotscope.monitoring import Monitoring
from sotscope.store.dtypes import cast
from sotscope.store.layout import RunSpec
from sotscope.store.writer import Rows, RunWriter


class RowSink:
    """The Sink of a recording, for all its sequences. ``begin`` says which sequence comes.

    ``measured``: steps have the effect of the interventions; ``prompt_logits``: prompt rows have logit scalars.
    """

    writer: RunWriter
    monitoring: Monitoring
    """Both are set before the first step."""

    def __init__(
        self,
        tap: Tap,
        spec: RunSpec,
        intervening: Intervening,
        segmenter: Segmenter,
        *,
        measured: bool,
        prompt_logits: bool,
        on_alarm: Callable[[Alarm], None] | None,
        lossy: Callable[[], bool],
    ) -> None:
        self.alarms: list[Alarm] = []
        self.new_tokens = self.believed = 0
        self.was_lossy = False
        self._tap, self._spec, self._intervening = tap, spec, intervening
        self._measured, self._prompt_logits = measured, prompt_logits
        self._on_alarm, self._lossy = on_alarm, lossy
        self._segmenter = segmenter
        self._segments: list[str] = []
        self._branch = Branch(0, 0)
        self._steps = 0
        self._process = psutil.Process()

    def begin(self, branch: Branch, prompt: Sequence[int], segments: Iterable[str], written: Sequence[int]) -> None:
        """``branch`` is decoded from now on: ``prompt`` with its ``segments``, then what is ``written``."""
        self._branch = branch
        self._segmenter.start(prompt)
        self._segments = [*segments, *(self._segmenter.add(token) for token in written)]

    # -- what the loop tells -----------------------------------------------------------------------------------

    def on_step(self, step: Step) -> None:
        start = time.perf_counter_ns()
        captured = self._tap.take(step.rows, step.next_ids, logits=step.reason != "prefill" or self._prompt_logits)
        if step.pos + step.rows <= self._branch.parent_pos:
            return  # a branch's prefill: these rows are its parent's
        step = replace(step, index=self._steps)
        self._steps += 1
        for found in self.monitoring.observe(step, captured.scalars, captured.present, captured.resid):
            self.note(found)
        if step.mode != "prompt":
            self._segments += [self._segmenter.add(token) for token in step.next_ids if token >= 0]
        captured.scalars.update(self._changes_of(step))
        rows = Rows(
            states=self._stored(captured, step),
            scalars=captured.scalars,
            present=captured.present,
            top_id=captured.top_id,
            top_logprob=captured.top_logprob,
            segments=segment_codes(self._segments[step.pos : step.pos + step.rows]),
        )
        self.writer.commit(
            step,
            rows,
            capture_ns=time.perf_counter_ns() - start,
            rss=self._process.memory_info().rss,
            device_bytes=_device_bytes(self._tap.plan.anatomy.model),
        )
        # a Ctrl-C before this has left no row
        self.new_tokens += sum(token >= 0 for token in step.next_ids) if step.mode != "prompt" else 0
        self.believed += sum(draft.reason == "believed" for draft in step.drafts)

    def on_command(self, command: Command) -> None:
        self.was_lossy |= self._lossy()
        self.tell("command", id=command.id, changes=dict(command.changes), step=command.step, pos=command.pos)

    def on_alarm(self, alarm: Alarm) -> None:
        # one of a kind says it all, but every refused command is news to somebody
        if alarm.kind == "command" or all(known.kind != alarm.kind for known in self.alarms):
            self.raise_alarm(alarm)
            self.tell("alarm", alarm=alarm.kind, message=alarm.message, **alarm.data)

    # -- what becomes events -----------------------------------------------------------------------------------

    def tell(self, kind: str, **fields: Any) -> None:
        """Write an event."""
        self.writer.event(kind, **fields)

    def note(self, found: Alarm | AlarmEnd) -> None:
        """An episode of a monitor begins or ends."""
        if isinstance(found, AlarmEnd):
            self.tell("alarm_end", alarm=found.kind, episode=found.episode, pos=found.pos)
            return
        self.raise_alarm(found)
        self.tell("alarm", alarm=found.kind, message=found.message, severity=found.severity, onset=found.onset,
                  pos=found.pos, episode=found.episode, seq=self._branch.seq, **found.data)  # fmt: skip

    def raise_alarm(self, alarm: Alarm) -> None:
        """Whoever listens hears of it; it is no event yet (a failing disk has none)."""
        self.alarms.append(alarm)
        if self._on_alarm is not None:
            self._on_alarm(alarm)

    # -- rows --------------------------------------------------------------------------------------------------

    def _changes_of(self, step: Step) -> dict[str, NDArray[Any]]:
        """[row] which interventions changed each row, and what they did to the first one, where that is measured."""
        positions = range(step.pos, step.pos + step.rows)
        found: dict[str, NDArray[Any]] = {
            "intervened": np.array([self._intervening.active(pos) for pos in positions], np.int32)
        }
        if self._measured:
            found |= {f"effect_{name}": np.full(step.rows, np.nan, np.float32) for name in EFFECTS}
            for name, value in (step.effect or {}).items():
                found[f"effect_{name}"][0] = value
        return found

    def _stored(self, captured: Captured, step: Step) -> dict[str, NDArray[Any]]:
        """States in the type they are stored in. A cast that overflows raises an alarm; it is never silent."""
        out: dict[str, NDArray[Any]] = {}
        for site in self._spec.sites:
            out[site.name], lost = cast(captured.states[site.name], site.native)
            if len(lost):
                row, count = step.pos + int(lost[0]), len(lost)
                text = f"{count} values of {site.name} (from position {row} on) overflow {site.dtype}; stored as inf"
                self.on_alarm(Alarm("overflow", text, {"site": site.name, "position": row, "count": count}))
        return out


def _device_bytes(model: Any) -> int:
    if model.device.type == "cuda":
        return int(torch.cuda.memory_allocated(model.device))
    return 0
