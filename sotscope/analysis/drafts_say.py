"""`drafts` in sentences."""

from __future__ import annotations

from typing import Any

from scipy.stats import binomtest

from sotscope.analysis.report import Report

FEW = 10
"""Groups of fewer judged drafts are no evidence."""
CHANCE = 0.01
"""How likely a difference may be by chance (two-sided binomial test) and still deserve a sentence ..."""
DIFFERENCE = 0.1
"""... and how large it must be, as a share."""
WORDS = {
    "class": "where the true token is {}",
    "segment": "in segment {}",
    "position": "at positions {}",
    "entropy": "where the entropy of the true distribution is {} nats",
}
KINDS = {
    "word start": "the start of a word",
    "continuation": "the continuation of a word",
    "number": "a number",
    "punctuation": "punctuation",
    "whitespace": "whitespace",
    "special": "a special token",
    "unknown": "not known",
}


def say(report: Report) -> None:
    """Findings from the tables that are in the report already."""
    _overall(report)
    _lost(report)
    for finding in _groups(report)[:2]:
        report.find(finding[1], **finding[2])
    _states(report)
    _confidence(report)


def _overall(report: Report) -> None:
    table: Any = report.tables["by_mode"]
    whole = table.iloc[-1]
    modes = table["mode"].tolist()[:-1]
    each = ""
    if len(modes) > 1:
        rates = [f"{one.mode} {100 * one.acceptance_rate:.0f} %" for one in table.iloc[:-1].itertuples()]
        each = f" ({', '.join(rates)})"
    mode = "" if len(modes) > 1 else f"Mode {modes[0]}: "
    report.find(
        f"{mode}{whole.accepted} of {whole.drafted} drafted tokens were accepted, an acceptance rate of "
        f"{100 * whole.acceptance_rate:.0f} %{each}; a step with drafts gives {whole.mean_acceptance_length:.2f} "
        f"tokens (mean acceptance length, {whole.steps_with_drafts} of {whole.steps} steps).",
        acceptance_rate=whole.acceptance_rate, mean_acceptance_length=whole.mean_acceptance_length,
        drafted=whole.drafted, accepted=whole.accepted,
    )  # fmt: skip
    if whole.believed:
        report.find(
            f"{whole.believed} drafts were believed although the model would have chosen another token: this text is "
            "not what ar would have written.",
            "warning", believed=whole.believed,
        )  # fmt: skip


def _lost(report: Report) -> None:
    """By reason and slot, refusals only; what followed a refusal was never looked at."""
    reasons: Any = report.tables["by_reason"]
    counts = dict(zip(reasons.reason, reasons.drafts, strict=True))
    drafts: Any = report.tables["drafts"]
    refused = drafts[drafts.judged & ~drafts.accepted]
    if not len(refused):
        return
    first = int((refused.slot == 0).sum())
    unseen = int(counts.get("after_miss", 0))
    lost = f", and with the refused ones {unseen} later drafts were lost unseen" if unseen else ""
    outside = int(counts.get("outside_vocabulary", 0))
    words = f"; {outside} times the true token is outside the drafter's vocabulary" if outside else ""
    report.find(
        f"{first} of {len(refused)} refusals ({100 * first / len(refused):.0f} %) fall on the first slot{lost}{words}.",
        "warning" if outside > len(refused) / 2 else "note",
        first_slot=first, refused=len(refused), unseen=unseen, outside_vocabulary=outside,
    )  # fmt: skip


def _groups(report: Report) -> list[tuple[float, str, dict[str, Any]]]:
    """For each property, the group that loses most against the average; the surest first."""
    found = []
    for name, words in WORDS.items():
        table: Any = report.tables[f"by_{name}"]
        if not len(table):
            continue
        overall = float(table.accepted.sum() / table.judged.sum())
        excess = (overall - table.acceptance) * table.judged
        for at in excess.sort_values(ascending=False).index[:1]:
            one = table.loc[at]
            chance = binomtest(int(one.accepted), int(one.judged), overall).pvalue
            if one.judged < FEW or overall - one.acceptance < DIFFERENCE or chance > CHANCE:
                continue
            where = words.format(KINDS.get(one[name], one[name]))
            text = (
                f"Acceptance is lost {where}: {100 * one.acceptance:.0f} % of {one.judged} drafts against "
                f"{100 * overall:.0f} % on average; {100 * one.share_of_refusals:.0f} % of all refusals are there."
            )
            numbers = {name: one[name], "acceptance": one.acceptance, "average": overall, "p_value": chance}
            found.append((float(chance), text, numbers))
    return sorted(found, key=lambda finding: finding[0])


def _states(report: Report) -> None:
    slots: Any = report.tables["by_slot"]
    known = slots[slots.states > 0]
    if not len(known):
        return
    first, last = known.iloc[0], known.iloc[-1]
    then = f", {last.cosine_median:.2f} in slot {int(last.slot)}" if len(known) > 1 else ""
    report.find(
        f"Predicted states have a median cosine of {first.cosine_median:.2f} to the true ones in slot {int(first.slot)}"
        f"{then}; their error is {first.relative_error_median:.2f} times the true norm.",
        cosine=known.cosine_median.to_numpy(), relative_error=known.relative_error_median.to_numpy(),
    )  # fmt: skip


def _confidence(report: Report) -> None:
    table: Any = report.tables["confidence"]
    for one in table[table.drafts >= FEW].itertuples():
        error, gap = one.expected_calibration_error, one.confidence - one.right
        how = "about as sure as it is right"
        if abs(gap) >= DIFFERENCE / 2:
            how = "too sure of itself" if gap > 0 else "less sure than it could be"
        many = one.drafts >= 5 * FEW
        report.find(
            f"The drafter of {one.mode} is {how}: mean confidence {one.confidence:.2f}, right in {one.right:.2f} of "
            f"{one.drafts} drafts (expected calibration error {error:.2f}, Brier score {one.brier:.2f}).",
            "warning" if many and error > 2 * DIFFERENCE else "note",
            mode=one.mode, expected_calibration_error=error, brier=one.brier, confidence=one.confidence,
            right=one.right,
        )  # fmt: skip
