"""`drafts`: what became of drafted tokens, where acceptance is lost, and how far the drafter may be believed.

Names and formulas of rates are vLLM's (``vllm/v1/spec_decode/metrics.py``): acceptance rate = accepted / drafted, mean
acceptance length = 1 + accepted / steps with drafts, per-position acceptance rate = accepted in a slot / steps with
drafts. Expected calibration error: Guo et al. 2017 (arXiv 1706.04599); Brier score: Brier 1950.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import Field

from sotscope.analysis import figures
from sotscope.analysis.contracts import Analyzer, Params, Pool
from sotscope.analysis.drafts_figures import reliability, shares
from sotscope.analysis.drafts_say import say
from sotscope.analysis.head import load_head
from sotscope.analysis.report import Report
from sotscope.analysis.steps import CLASSES, steps_of, word_class
from sotscope.analysis.view import View
from sotscope.errors import AnalysisError
from sotscope.store.tokens import Pieces

UNSEEN = ("after_miss", "after_end")
"""Drafts that nobody looked at."""
ENTROPY_EDGES = (0.0, 0.5, 1.0, 2.0, 3.0, np.inf)
"""Bins of the true distribution's entropy, in nats."""
POSITIONS = 10
"""Bins of the position in the text."""


class DraftParams(Params):
    bins: int = Field(default=10, ge=2, le=100)
    """Bins of the drafter's confidence, of equal width."""


class Drafts(Analyzer):
    name: ClassVar[str] = "drafts"
    title: ClassVar[str] = "Where drafts are accepted and where they are lost"
    Params: ClassVar[type[Params]] = DraftParams

    def analyze(self, view: View, params: DraftParams, pool: Pool) -> Report:
        report = Report(self.name, self.title)
        steps = steps_of(view)
        drafts = _annotated(view, steps)
        if not len(drafts):
            modes = ", ".join(mode for mode in dict.fromkeys(view.tokens.modes) if mode != "prompt")
            report.find(f"No tokens were drafted here ({f'mode {modes}' if modes else 'prompt'}).", steps=len(steps))
            return report
        judged = drafts[drafts.judged]
        report.tables = {
            "by_mode": _by_mode(drafts, steps),
            "by_slot": _by_slot(drafts),
            "by_reason": _by_reason(drafts),
            **{f"by_{name}": _by(judged, name) for name in ("class", "segment", "position", "entropy")},
            "calibration": _calibration(judged, params.bins),
            "confidence": _confidence(judged, params.bins),
            "drafts": drafts.drop(columns=["judge"]),
        }
        say(report)
        report.figures = _figures(report.tables)
        return report


def _annotated(view: View, steps: pd.DataFrame) -> pd.DataFrame:
    """The drafts of ``steps`` [draft], each with its mode and with the row whose distribution judged it."""
    run = view.run
    found: pd.DataFrame = run.drafts
    at = pd.Index(steps.step).drop_duplicates()
    place = at.get_indexer(pd.Index(found.step))
    found, place = found[place >= 0].reset_index(drop=True), place[place >= 0]
    step = steps.drop_duplicates("step").iloc[place].reset_index(drop=True)
    found["mode"] = step["mode"]
    found["judged"] = ~found.reason.isin(UNSEEN)
    has_row = (found.slot < step.rows).to_numpy()
    judge = np.where(has_row, np.minimum(step["first"] + found.slot, len(run) - 1), -1).astype(np.int64)
    found["judge"] = judge
    tokens, pieces = run.tokens, _pieces(view)
    true = np.where(has_row, tokens.next_ids[judge], np.where(found.accepted, found.token, -1))
    before = np.where(has_row, tokens.ids[judge], -1)
    found["text"] = [_label(pieces, int(token)) for token in found.token]
    found["true_text"] = [_label(pieces, int(token)) for token in true]
    found["class"] = [
        word_class(pieces, int(token), int(front)) if token >= 0 else "unknown"
        for token, front in zip(true, before, strict=True)
    ]
    found["segment"] = _segments(tokens, judge, found.target.to_numpy())
    if "entropy" in run.scalar_names:
        true_entropy = np.where(has_row, run.scalars("entropy")[judge], np.nan)
    else:
        true_entropy = np.full(len(found), np.nan)
    found["true_entropy"] = true_entropy
    found["entropy_bin"] = pd.cut(found.true_entropy, list(ENTROPY_EDGES), right=False, labels=_entropy_names())
    found["position"] = _position_bins(found.target.to_numpy())
    return found


def _label(pieces: Pieces, token: int) -> str:
    return pieces.label(token) if token in pieces.raw or token < 0 else f"#{token}"


def _pieces(view: View) -> Pieces:
    """Those of the run know the tokens it used; of refused ones only the head file knows the text."""
    known = view.run.pieces
    try:
        head = load_head(view.run)
    except AnalysisError:  # a broken file is the lens's to report
        return known
    return known if head is None or not head.has_words else head.pieces


def _segments(tokens: Any, judge: NDArray[np.int64], target: NDArray[Any]) -> list[str]:
    """[draft] the segment that the true token is part of: its own row's, or that of the row in front of it."""
    out = []
    for row, position in zip(judge, target, strict=True):
        following = row + 1
        own = row >= 0 and following < len(tokens) and tokens.pos[following] == position
        same = own and tokens.seq[following] == tokens.seq[row]
        out.append("unknown" if row < 0 else tokens.segments[following if same else row])
    return out


def _entropy_names() -> list[str]:
    *finite, _ = ENTROPY_EDGES
    return [f"{low:g}–{high:g}" for low, high in pairwise(finite)] + [f"{finite[-1]:g} or more"]


def _position_bins(target: NDArray[Any]) -> list[str]:
    if not len(target):
        return []
    low = int(target.min())
    width = max(1, -(-(int(target.max()) + 1 - low) // POSITIONS))
    begins = low + (target - low) // width * width
    return [f"{begin}–{begin + width - 1}" if width > 1 else str(begin) for begin in begins]


def _by_mode(drafts: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """vLLM's numbers, by the mode of the step, and of all modes together (steps that drafted nothing included)."""
    lines = []
    modes = [*dict.fromkeys(drafts["mode"])]
    for mode in [*modes, "all"]:
        those = drafts if mode == "all" else drafts[drafts["mode"] == mode]
        with_drafts, accepted = those.step.nunique(), int(those.accepted.sum())
        lines.append(
            {
                "mode": mode,
                "steps": int((steps["mode"] != "prompt" if mode == "all" else steps["mode"] == mode).sum()),
                "steps_with_drafts": with_drafts,
                "drafted": len(those),
                "accepted": accepted,
                "believed": int((those.reason == "believed").sum()),
                "acceptance_rate": accepted / len(those),
                "mean_acceptance_length": 1 + accepted / with_drafts,
            }
        )
    return pd.DataFrame(lines)


def _by_slot(drafts: pd.DataFrame) -> pd.DataFrame:
    """Acceptance by slot: of all steps with drafts (vLLM), and of the drafts that were looked at there. Errors are of
    predicted states against the true ones, medians."""
    groups = drafts.groupby("slot")
    table: pd.DataFrame = pd.DataFrame(
        {
            "drafted": groups.size(),
            "judged": groups.judged.sum(),
            "accepted": groups.accepted.sum(),
            "cosine_median": groups.cosine.median(),
            "relative_error_median": groups.relative_error.median(),
            "states": groups.cosine.count(),
        }
    ).reset_index()
    table.insert(4, "per_position_acceptance_rate", table.accepted / drafts.step.nunique())
    table.insert(5, "acceptance_of_judged", table.accepted / table.judged.where(table.judged > 0))
    return table


def _by_reason(drafts: pd.DataFrame) -> pd.DataFrame:
    counts = drafts.reason.value_counts()
    return pd.DataFrame({"reason": counts.index, "drafts": counts.to_numpy(), "share": counts.to_numpy() / len(drafts)})


def _by(judged: pd.DataFrame, name: str) -> pd.DataFrame:
    """Drafts that were looked at, by a property of the token that was true there."""
    column = "entropy_bin" if name == "entropy" else name
    fixed = {"class": [*CLASSES, "unknown"], "entropy": _entropy_names()}
    # groups of positions are named by where they begin
    found = sorted(judged[column].unique(), key=lambda value: int(value.split("–")[0]) if name == "position" else 0)
    order = fixed.get(name, found)
    refused = int((~judged.accepted).sum())
    lines = []
    for value in order:
        those = judged[judged[column] == value]
        if len(those):
            missed = int((~those.accepted).sum())
            lines.append(
                {
                    name: value,
                    "judged": len(those),
                    "accepted": len(those) - missed,
                    "acceptance": 1 - missed / len(those),
                    "share_of_refusals": missed / refused if refused else np.nan,
                }
            )
    columns = [name, "judged", "accepted", "acceptance", "share_of_refusals"]
    return pd.DataFrame(lines, columns=columns)


def _confident(judged: pd.DataFrame, bins: int) -> pd.DataFrame:
    """Judged drafts whose drafter gave a probability, with the bin it falls in and whether the model agreed."""
    known: pd.DataFrame = judged[np.isfinite(judged.probability)]
    number = np.clip((known.probability.to_numpy(np.float64) * bins).astype(np.int64), 0, bins - 1)
    return known.assign(
        bin=number, right=(known.reason == "accepted").astype(float), probability=known.probability.astype(float)
    )


def _calibration(judged: pd.DataFrame, bins: int) -> pd.DataFrame:
    """The reliability table: per mode and bin of confidence, mean confidence and the share that was right."""
    groups = _confident(judged, bins).groupby(["mode", "bin"], sort=True)
    table: pd.DataFrame = groups.agg(
        drafts=("right", "size"), confidence=("probability", "mean"), right=("right", "mean")
    ).reset_index()
    table.insert(1, "low", table.bin / bins)
    table.insert(2, "high", (table.bin + 1) / bins)
    return table.drop(columns=["bin"])


def _confidence(judged: pd.DataFrame, bins: int) -> pd.DataFrame:
    """Per mode: mean confidence, share right, expected calibration error and Brier score."""
    lines = []
    for mode, those in _confident(judged, bins).groupby("mode", sort=False):
        per_bin = those.groupby("bin")
        gap = (per_bin.right.mean() - per_bin.probability.mean()).abs()
        lines.append(
            {
                "mode": mode,
                "drafts": len(those),
                "confidence": those.probability.mean(),
                "right": those.right.mean(),
                "expected_calibration_error": float((gap * per_bin.size()).sum() / len(those)),
                "brier": float(((those.probability - those.right) ** 2).mean()),
            }
        )
    columns = ["mode", "drafts", "confidence", "right", "expected_calibration_error", "brier"]
    return pd.DataFrame(lines, columns=columns)


def _figures(tables: dict[str, Any]) -> dict[str, Any]:
    slots, reasons = tables["by_slot"], tables["by_reason"]
    rates = {
        "of steps with drafts (vLLM)": slots.per_position_acceptance_rate,
        "of drafts looked at": slots.acceptance_of_judged,
    }
    made = {
        "slots": partial(
            figures.lines, rates, "Acceptance by slot", "slot of the draft", "accepted (share)", at=slots.slot
        ),
        "reasons": partial(
            figures.bars, reasons.reason.tolist(), reasons.drafts, "What became of drafted tokens", "drafts", ""
        ),
    }
    titles = {
        "class": "by kind of word",
        "segment": "by segment",
        "position": "by position in the text (tokens)",
        "entropy": "by entropy of the true distribution (nats)",
    }
    for name, title in titles.items():
        if len(tables[f"by_{name}"]):
            made[name] = partial(shares, tables[f"by_{name}"], name, f"Acceptance {title}")
    if len(tables["calibration"]):
        made["reliability"] = partial(reliability, tables["calibration"])
    if slots.states.sum():
        seen = slots[slots.states > 0]
        series = {"cosine": seen.cosine_median, "relative error (of the norm)": seen.relative_error_median}
        made["states"] = partial(
            figures.lines, series, "Predicted against true states, medians by slot", "slot of the draft",
            "cosine, relative error", at=seen.slot,
        )  # fmt: skip
    return made
