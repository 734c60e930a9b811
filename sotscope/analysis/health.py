"""`health`: what monitors find wrong, what recoveries and interventions did, in one lane over the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from numpy.typing import NDArray

from sotscope.analysis import figures
from sotscope.analysis.contracts import Analyzer, Pool
from sotscope.analysis.report import Report, Severity
from sotscope.analysis.view import View
from sotscope.health.diagnose import ALWAYS, Found, diagnose

SEVERITY: dict[str, Severity] = {"critical": "alarm", "warning": "warning"}
EFFECTS = {"effect_kl": "KL (nats)", "effect_top1_changed": "another likeliest token", "effect_state_distance": "state"}
_RECOVERY = ("policy", "attempt", "alarm", "action", "keep", "retracted")


class Health(Analyzer):
    """Runs every monitor over the sequences of the view's run (``sotscope diagnose``), whatever monitored it while it
    was decoded, and keeps the alarms that touch the view. Sources: see each monitor."""

    name: ClassVar[str] = "health"
    title: ClassVar[str] = "Health: alarms, recoveries, interventions"
    scalars: ClassVar[tuple[str, ...]] = ALWAYS

    def analyze(self, view: View, params: Any, pool: Pool) -> Report:
        report = Report(self.name, self.title)
        tokens = view.tokens
        seen = set(zip(tokens.seq.tolist(), tokens.pos.tolist(), strict=True))
        found = diagnose(view.run)
        shown = [
            (one.seq, alarm)
            for one in found.sequences
            for alarm in one.alarms
            if any((one.seq, pos) in seen for pos in range(alarm.onset, alarm.end + 1))
        ]
        report.left_out += found.left_out
        alarms = report.tables["alarms"] = _alarms(shown)
        for seq, alarm in shown:
            where = f"sequence {seq}, " if len(found.sequences) > 1 else ""
            message = alarm.message[0].upper() + alarm.message[1:]
            text = f"{message} ({alarm.kind}; {where}position {alarm.onset} to {alarm.end})"
            report.find(
                f"{text}. To try: {alarm.advice}.", SEVERITY[alarm.severity], onset=alarm.onset, **alarm.evidence
            )
        if not shown:
            report.find(f"Healthy: {len(found.monitors)} monitors found nothing in {len(view)} rows.")
        _tell_recoveries(report, view)
        if shown:
            report.figures["lane"] = partial(_lane, alarms)
        _effects(report, view)
        return report


def _alarms(shown: Sequence[tuple[int, Found]]) -> pd.DataFrame:
    columns = ("kind", "severity", "onset", "pos", "end", "message", "words")
    rows = [{"seq": seq, **{name: getattr(alarm, name) for name in columns}} for seq, alarm in shown]
    return pd.DataFrame(rows, columns=["seq", *columns])


def _tell_recoveries(report: Report, view: View) -> None:
    events = view.run.events("recovery")
    report.tables["recoveries"] = pd.DataFrame([{name: e.get(name) for name in _RECOVERY} for e in events],
                                               columns=list(_RECOVERY))  # fmt: skip
    outcomes = [event["outcome"] for event in view.run.events("recovery_outcome")]
    if events:
        said = ", ".join(f"{outcomes.count(one)} {one}" for one in dict.fromkeys(outcomes)) or "outcome unknown"
        report.find(f"{len(events)} recoveries were tried while it was decoded: {said}.")


def _lane(alarms: pd.DataFrame) -> go.Figure:
    """One bar an episode, from its onset to its end; the letter says how severe it is, not the colour alone."""
    made = figures.figure("Alarms", "position", "", height=140 + 34 * alarms.kind.nunique())
    for severity, colour in (("critical", figures.COLOURS[5]), ("warning", figures.COLOURS[1])):
        part = alarms[alarms.severity == severity]
        if len(part):
            made.add_bar(
                x=part.end - part.onset + 1, y=part.kind, base=part.onset, orientation="h", name=severity,
                marker={"color": colour, "opacity": 0.75}, text=[severity[0].upper()] * len(part),
                customdata=np.stack([part.seq, part.onset, part.end, part.message], -1),
                hovertemplate="%{customdata[3]}<br>sequence %{customdata[0]}, position %{customdata[1]} to "
                "%{customdata[2]}<extra></extra>",
            )  # fmt: skip
    made.update_layout(barmode="overlay")
    return made


def _effects(report: Report, view: View) -> None:
    """What interventions did, where that was recorded."""
    run, rows = view.run, view.rows
    if "intervened" not in run.scalar_names:
        return
    mask = run.scalars_at("intervened", rows)
    if mask.any():
        events = run.events("interventions")
        names = events[-1]["names"] if events else []
        report.find(
            f"States of {np.count_nonzero(mask)} rows were changed on purpose ({', '.join(names)}): this is not the "
            "model's own text.", "warning",
        )  # fmt: skip
    measured: dict[str, NDArray[Any]] = {
        label: run.scalars_at(name, rows) for name, label in EFFECTS.items() if name in run.scalar_names
    }
    if measured:
        report.tables["effects"] = pd.DataFrame({"intervened": mask, **measured})
        report.figures["effects"] = partial(
            figures.lines, measured, "Direct effect of the interventions on each step", "token (position in this view)",
            "effect",
        )  # fmt: skip
