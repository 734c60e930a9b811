"""What became of the tokens that were drafted in view: by slot, by reason, and how near predicted states came."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pandas as pd

from sotscope.plain import plain, ranges
from sotscope_dashboards import style
from sotscope_dashboards.panels import parts
from sotscope_dashboards.panels.contract import Panel
from sotscope_dashboards.scene import Scene

UNSEEN = ("after_miss", "after_end")
"""Drafts that the model did not look at."""
REASONS = {
    "accepted": "accepted",
    "believed": "believed (lossy)",
    "first_slot_miss": "wrong in the first slot",
    "later_slot_miss": "wrong in a later slot",
    "outside_vocabulary": "true token unknown to drafter",
    "near_tie": "near tie",
    "processor": "logits processor",
    "after_miss": "after a miss, not looked at",
    "after_end": "after the end, not looked at",
}
LEAST = 5
"""Bars that there is room for, at least, so that one is no slab."""
COUNTED = 16
"""Slots up to which counts are written on the bars."""
QUARTILES = (25, 50, 75)


class Drafts(Panel):
    name: ClassVar[str] = "drafts"
    title: ClassVar[str] = "Drafts"
    shows: ClassVar[str] = (
        "Of the tokens drafted in view: how many the model accepted in each slot, and why it refused."
    )
    look_for: ClassVar[str] = "The slot where acceptance falls: a window beyond it costs more than it gives."
    not_meant: ClassVar[str] = "A refused draft is no error: under the exact policy the text is what ar would write."

    @parts.figure(parts.EMPTY)
    def draw(self, scene: Scene) -> dict[str, Any]:
        drafts, steps = _drafts(scene)
        slots, reasons = by_slot(drafts), by_reason(drafts)
        unseen, slots = slots[slots.judged == 0], slots[slots.judged > 0]
        theme = scene.look.theme
        note, margin = parts.headline([_title(drafts, steps), _unseen(unseen)], theme)
        picture = style.layout(
            theme,
            290 + margin,
            margin={"t": margin},
            annotations=[note],
            uirevision=parts.uirevision(scene),
            bargap=0.25,
        )
        seen = slots[slots.states > 0]
        domains = [(0.0, 0.34), (0.56, 1.0)] if not len(seen) else [(0.0, 0.27), (0.49, 0.7), (0.78, 1.0)]
        last = int(slots.slot.max()) if len(slots) else 0
        whole = {"range": [-0.6, max(last, LEAST - 2) + 0.6], "tickvals": list(range(0, last + 1, 1 + last // 8))}
        first = parts.pane(
            picture, 0, domains[0], "slot of the draft", "accepted of those looked at (%)", xaxis=whole,
            yaxis={"range": [0, 112], "tickvals": [0, 25, 50, 75, 100]},
        )  # fmt: skip
        second = parts.pane(
            picture, 1, domains[1], "drafts", "",
            xaxis={"range": [0, float(reasons.drafts.max()) * 1.18], "nticks": 5},
            yaxis={"tickvals": list(range(len(reasons))), "range": [max(len(reasons), LEAST) - 0.4, -0.6],
                   "showgrid": False, "ticktext": [style.escaped(REASONS.get(name, name)) for name in reasons.reason]},
        )  # fmt: skip
        data = [_slot_bars(slots, first, theme), _reason_bars(reasons, second, theme)]
        if len(seen):
            low = min(0.0, float(seen.cosine_p25.min()))
            third = parts.pane(
                picture, 2, domains[2], "slot of the draft", "cosine, predicted to true", xaxis=whole,
                yaxis={"range": [low * 1.05, 1.02]},
            )  # fmt: skip
            data.append(_cosines(seen, third, theme))
        return {"data": data, "layout": plain(picture)}

    @parts.columns("slot", "drafted", "judged", "accepted", "acceptance_of_judged", "per_position_acceptance_rate")
    def table(self, scene: Scene) -> pd.DataFrame:
        drafts, _ = _drafts(scene)
        reasons = by_reason(drafts).rename(columns={"drafts": "drafted"})
        return pd.concat([by_slot(drafts), reasons], ignore_index=True)


def by_slot(drafts: pd.DataFrame) -> pd.DataFrame:
    """Acceptance by slot: of the drafts that were looked at there, and of all steps with drafts (as vLLM counts); and
    quartiles of the cosine of predicted to true states."""
    slot, cosine = drafts.slot.to_numpy(), drafts.cosine.to_numpy()
    taken, seen = drafts.accepted.to_numpy(bool), ~drafts.reason.isin(UNSEEN).to_numpy(bool)
    steps, lines = len(np.unique(drafts.step)), []
    for one in np.unique(slot):
        here = slot == one
        known = cosine[here & np.isfinite(cosine)]
        judged, accepted = int(seen[here].sum()), int(taken[here].sum())
        quartiles = np.percentile(known, QUARTILES) if len(known) else np.full(3, np.nan)
        line: dict[str, float] = {"slot": int(one), "drafted": int(here.sum()), "judged": judged, "accepted": accepted}
        line |= {"acceptance_of_judged": accepted / judged if judged else np.nan}
        line |= {"per_position_acceptance_rate": accepted / steps}
        line |= {f"cosine_p{level}": value for level, value in zip(QUARTILES, quartiles, strict=True)}
        lines.append(line | {"states": len(known)})
    return pd.DataFrame(lines)


def by_reason(drafts: pd.DataFrame) -> pd.DataFrame:
    """How many drafts ended for each reason, in the order of ``REASONS``; others after them."""
    counts = drafts.reason.value_counts()
    order = [*(name for name in REASONS if name in counts), *(name for name in counts.index if name not in REASONS)]
    return pd.DataFrame({"reason": order, "drafts": [int(counts[name]) for name in order]})


def _drafts(scene: Scene) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Drafts of the steps in view, and those steps. Raises NothingError where there are none."""
    steps = parts.steps_in_view(scene)
    assert scene.run is not None
    drafts = parts.of_steps(scene.run.drafts_between, steps.step.to_numpy())
    if not len(drafts):
        raise parts.NothingError(_without(steps))
    return drafts, steps


def _without(steps: pd.DataFrame) -> str:
    """What it means that nothing was drafted."""
    decode = steps[steps["mode"] != "prompt"]
    modes = [*dict.fromkeys(decode["mode"])]
    if not modes:
        return "Only the prompt is in view: it was given, so nothing was drafted."
    if modes == ["ar"]:
        return "No drafts here: mode ar writes one token a forward. Switch to sot, dmtd or lookup to see drafts."
    gated = int((decode.reason == "gated").sum())
    held = f" A gate held drafting back in {gated} of {len(decode)} steps." if gated else ""
    found = " (lookup drafts only where the text repeats itself)" if "lookup" in modes else ""
    return f"No drafts here: in mode {' and '.join(modes)} every step in view was a plain one{found}.{held}"


def _title(drafts: pd.DataFrame, steps: pd.DataFrame) -> str:
    accepted, tried = int(drafts.accepted.sum()), drafts.step.nunique()
    decode = int((steps["mode"] != "prompt").sum())
    lossy = int((drafts.reason == "believed").sum())
    believed = f" {lossy} of them were believed: this text is not what ar would have written." if lossy else ""
    return (
        f"{accepted:,} of {parts.count(len(drafts), 'draft')} accepted ({accepted / len(drafts):.0%}) in {tried:,} of "
        f"{parts.count(decode, 'step')} in view; a step with drafts gives {1 + accepted / tried:.2f} tokens.{believed}"
    )


def _unseen(slots: pd.DataFrame) -> str:
    """Slots that were drafted in vain."""
    if not len(slots):
        return ""
    return (
        f"No bar for slot{'s' if len(slots) > 1 else ''} {ranges(slots.slot.tolist())}: "
        f"{parts.count(int(slots.drafted.sum()), 'draft')} there, none looked at, "
        "because one before was refused."
    )


def _lines(table: pd.DataFrame) -> list[Any]:
    return list(table.itertuples(index=False))


def _slot_bars(slots: pd.DataFrame, axes: dict[str, str], theme: str) -> dict[str, Any]:
    bar: dict[str, Any] = {
        "type": "bar", **axes, "name": "acceptance", "x": style.typed(slots.slot),
        "y": style.typed(100 * slots.acceptance_of_judged), "marker": {"color": style.THEMES[theme]["accent"]},
        "hovertext": [
            f"slot {one.slot}: {one.accepted} accepted, {one.judged} looked at, {one.drafted} drafted<br>"
            f"{one.per_position_acceptance_rate:.0%} of the steps with drafts" for one in _lines(slots)
        ],
        "hovertemplate": "%{hovertext}<extra></extra>",
    }  # fmt: skip
    if len(slots) <= COUNTED:
        bar["text"] = [f"{one.accepted}/{one.judged}" for one in _lines(slots)]
        bar |= {
            "textposition": "outside",
            "textangle": 0 if len(slots) <= 6 else -90,
            "cliponaxis": False,
            "constraintext": "none",
        }
    return bar


def _reason_bars(reasons: pd.DataFrame, axes: dict[str, str], theme: str) -> dict[str, Any]:
    colours = style.THEMES[theme]
    by_kind = [
        colours["accent"] if name == "accepted" else colours["blank"] if name in UNSEEN else colours["warm"]
        for name in reasons.reason
    ]
    return {
        "type": "bar", "orientation": "h", **axes, "name": "reasons", "x": style.typed(reasons.drafts),
        "y": style.typed(np.arange(len(reasons))), "marker": {"color": by_kind}, "textposition": "outside",
        "text": [f"{count:,}" for count in reasons.drafts], "cliponaxis": False, "hoverinfo": "skip",
    }  # fmt: skip


def _cosines(seen: pd.DataFrame, axes: dict[str, str], theme: str) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "markers+lines", **axes, "name": "cosine", "x": style.typed(seen.slot),
        "y": style.typed(seen.cosine_p50), "line": {"color": style.THEMES[theme]["accent"], "width": 1.5},
        "error_y": {"type": "data", "symmetric": False, "thickness": 1, "width": 3,
                    "array": style.typed(seen.cosine_p75 - seen.cosine_p50),
                    "arrayminus": style.typed(seen.cosine_p50 - seen.cosine_p25)},
        "hovertext": [
            f"slot {one.slot}: median {one.cosine_p50:.3f} of {one.states} states<br>"
            f"half of them {one.cosine_p25:.3f} to {one.cosine_p75:.3f}" for one in _lines(seen)
        ],
        "hovertemplate": "%{hovertext}<extra></extra>",
    }  # fmt: skip
