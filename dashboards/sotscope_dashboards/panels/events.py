"""What happened in the run besides rows: commands, alarms, recoveries, interventions, sequences, how it ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar

import pandas as pd

from sotscope.plain import plain
from sotscope_dashboards import style
from sotscope_dashboards.panels import parts
from sotscope_dashboards.panels.contract import Panel
from sotscope_dashboards.scene import POSITIONS, Scene, position_of

NEWEST = 1000
"""Events that are listed, at most."""
LONG = 300
"""Letters of one event that are shown."""
COLUMNS = [
    {"field": "after_s", "headerName": "after (s)", "type": "numericColumn", "width": 100},
    {"field": "kind", "headerName": "kind", "width": 110},
    {"field": "position", "headerName": "position", "type": "numericColumn", "width": 100},
    {"field": "what", "headerName": "what happened", "flex": 1, "minWidth": 260, "wrapText": True, "autoHeight": True,
     "tooltipField": "what"},
]  # fmt: skip


class Events(Panel):
    name: ClassVar[str] = "events"
    title: ClassVar[str] = "Events"
    kind = "grid"
    shows: ClassVar[str] = "Commands, alarms, warnings and sequences of the run, and how it ended, in order of time."
    look_for: ClassVar[str] = "An alarm, and the command or position just before it."
    not_meant: ClassVar[str] = "No alarm is no proof of health: only what a monitor looks at can raise one."

    @parts.grid
    def draw(self, scene: Scene) -> dict[str, Any]:
        lines = _lines(scene)
        alarms = sum(line["alarm"] for line in lines)
        note = f"{len(lines):,} events, {alarms:,} {'alarm' if alarms == 1 else 'alarms'}"
        if len(lines) > NEWEST:
            note += f"; the newest {NEWEST:,} are listed, all are in the CSV"
        shown = [{key: line[key] for key in ("after_s", "kind", "position", "alarm")} for line in lines[-NEWEST:]]
        for line, made in zip(lines[-NEWEST:], shown, strict=True):
            text = style.visible(line["what"])
            made["what"] = text if len(text) <= LONG else text[:LONG] + "… (all of it in the CSV)"
        return {"columns": COLUMNS, "rows": plain(shown), "note": note + "."}

    @parts.columns("time", "after_s", "kind", "position", "what", "alarm")
    def table(self, scene: Scene) -> pd.DataFrame:
        return pd.DataFrame(_lines(scene), columns=["time", "after_s", "kind", "position", "what", "alarm"])


def _lines(scene: Scene) -> list[dict[str, Any]]:
    """One a fact, in the order of the run's events. Sequences that no event tells of have no time; they stand before
    the first outcome."""
    if scene.run is None:
        raise parts.NothingError(scene.why)
    events = scene.events()
    times = [time for event in events if (time := _number(event.get("time"))) is not None]
    found = [line for event in events for line in _said(event, times[0] if times else 0.0)]
    told = {event.get("seq") for event in events if event.get("kind") == "branch"}
    at = next((i for i, line in enumerate(found) if line["kind"] == "outcome"), len(found))
    return found[:at] + _sequences(scene, told) + found[at:]


def _number(value: object) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and value == value
    return float(value) if known and abs(float(value)) < 1e12 else None  # type: ignore[arg-type]


def _said(event: Mapping[str, Any], begin: float) -> list[dict[str, Any]]:
    """The lines of an event: a setting's warnings are one each."""
    kind, time = str(event.get("kind", "")), _number(event.get("time"))
    base = {
        "time": None if time is None else datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds"),
        "after_s": None if time is None else round(time - begin, 3),
        "position": position_of(event), "alarm": kind == "alarm",
    }  # fmt: skip
    data = {key: value for key, value in event.items() if key not in ("kind", "time")}
    word = "ALARM" if kind == "alarm" else kind
    lines = [{**base, "kind": word, "what": SAY.get(kind, _data)(data)}]
    warnings = data.get("warnings") if kind == "config" else None
    for warning in warnings if isinstance(warnings, list) else []:
        lines.append({**base, "kind": "warning", "what": str(warning)})
    return lines


def _data(data: Mapping[str, Any]) -> str:
    """Data as a person reads it: name value, name value."""
    return ", ".join(f"{name} {_value(value)}" for name, value in data.items())


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)


def _config(data: Mapping[str, Any]) -> str:
    settings = data.get("settings")
    decode, model = (settings.get(name, {}) if isinstance(settings, dict) else {} for name in ("decode", "model"))
    named = [f"mode {_value(decode['mode'])}"] if "mode" in decode else []
    named += [f"model {_value(model['name'])}"] if "name" in model else []
    named += [f"policy {_value(data['policy'])}{' (lossy)' if data.get('lossy') else ''}"] if "policy" in data else []
    return f"recording starts: {', '.join(named)}" if named else "recording starts"


def _command(data: Mapping[str, Any]) -> str:
    changes = data.get("changes")
    if not isinstance(changes, dict):
        return _data(data)
    return "; ".join(f"{name} is now {_value(value)}" for name, value in changes.items()) or "nothing changed"


def _alarm(data: Mapping[str, Any]) -> str:
    said = ("alarm", "message", "severity", "seq", "episode", *POSITIONS)
    evidence = {name: value for name, value in data.items() if name not in said}
    more = f" ({_data(evidence)})" if evidence else ""
    severity = f", {data['severity']}" if data.get("severity") else ""
    began = (
        f", from token {data['onset']} on"
        if "onset" in data and data.get("pos", data["onset"]) != data["onset"]
        else ""
    )
    return f"{data.get('alarm', 'unknown')}{severity}: {data.get('message', '')}{began}{more}"


def _alarm_end(data: Mapping[str, Any]) -> str:
    return f"{data.get('alarm', 'unknown')} is over; the last token that was wrong is {data.get('pos', 'unknown')}"


def _recovery(data: Mapping[str, Any]) -> str:
    named = {name: data.get(name, "unknown") for name in ("policy", "attempt", "alarm", "action")}
    return "{policy} (attempt {attempt}, alarm {alarm}): {action}".format(**named)


def _recovery_outcome(data: Mapping[str, Any]) -> str:
    words = {"recovered": "it recovered", "again": "it came again", "unknown": "the outcome is open"}
    outcome = str(data.get("outcome", "unknown"))
    who = f"{data['policy']} (attempt {data.get('attempt')}), " if "policy" in data else ""
    return f"{who}alarm {data.get('alarm', 'unknown')}: {words.get(outcome, outcome)}"


def _retracted(data: Mapping[str, Any]) -> str:
    named = {name: data.get(name, "unknown") for name in ("tokens", "seq", "pos")}
    return "{tokens} tokens of sequence {seq} are taken back from token {pos} on".format(**named)


def _interventions(data: Mapping[str, Any]) -> str:
    active = [one for one in data.get("active") or [] if isinstance(one, dict)]
    return f"on from here: {', '.join(str(one.get('name') or one.get('kind')) for one in active) or 'none'}"


def _outcome(data: Mapping[str, Any]) -> str:
    names = {"finish_reason": "finish", "new_tokens": "new tokens", "tokens_per_second": "tokens/s",
             "tokens_per_forward": "tokens/forward", "detail": "detail"}  # fmt: skip
    return _data({word: data[name] for name, word in names.items() if data.get(name) not in (None, "")}) or _data(data)


def _branch(data: Mapping[str, Any]) -> str:
    known = {name: data.get(name, "unknown") for name in ("seq", "parent", "pos", "token")}
    return "sequence {seq} continues sequence {parent} from position {pos} with token id {token}".format(**known)


SAY: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "config": _config, "command": _command, "alarm": _alarm, "outcome": _outcome, "branch": _branch,
    "alarm_end": _alarm_end, "recovery": _recovery, "recovery_outcome": _recovery_outcome, "retracted": _retracted,
    "interventions": _interventions,
}  # fmt: skip


def _sequences(scene: Scene, told: Collection[Any]) -> list[dict[str, Any]]:
    """Of each sequence how it begins, unless an event ``told``, and how it ended."""
    assert scene.run is not None
    lines = []
    for one in scene.run.sequences.to_dict("records"):
        seq, branch = int(one["seq_id"]), int(one["parent"]) >= 0
        begin = f"begins with a prompt of {one['prompt_length']} tokens"
        if branch:
            begin = f"continues sequence {one['parent']} from position {one['parent_pos']}"
        words = [] if seq in told else [begin]
        words += [] if one["finish"] == "open" else [f"ended: {str(one['finish']).replace('_', ' ')}"]
        line = (
            {"time": None, "after_s": None, "kind": "sequence", "alarm": False,
             "position": int(one["parent_pos"]) if branch else 0, "what": f"sequence {seq} {', '.join(words)}"}
        )  # fmt: skip
        lines += [line] if words else []
    return lines
