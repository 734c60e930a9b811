"""From texts and alarms to figures: what was found, what was a false alarm, how early. Knows no model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sotscope.health.early import HORIZON
from sotscope.health.loops import loop_start
from sotscope.training.early_fit import auc, warned
from sotscope.training.early_rows import Looks

FAR = 128
"""Tokens before a loop from which on an alarm is about that loop, and before which it is a false one."""


@dataclass(frozen=True)
class Judged:
    """One text: how many tokens its prompt has, what was written, whether it ended by itself, and what was said of it
    (``health_replay.Replay``)."""

    prompt: int
    written: Sequence[int]
    ended: bool
    said: Mapping[str, Any]

    @property
    def start(self) -> int | None:
        """Generated tokens after which it loops."""
        return loop_start(self.written)

    def seen(self, alarm: Mapping[str, Any]) -> int:
        """Generated tokens that were known at an alarm."""
        return int(alarm["pos"]) + 2 - self.prompt

    def about_the_loop(self, alarm: Mapping[str, Any]) -> bool:
        start = self.start
        return start is not None and self.seen(alarm) > start - FAR


def detection(texts: Sequence[Judged]) -> dict[str, Any]:
    """Recall, precision, false alarms per 1,000 healthy tokens and the median lead of critical alarms.

    A text that loops is found where a critical alarm is raised at most ``FAR`` tokens before it loops, or later; every
    other critical alarm is a false one. Healthy tokens are those of texts that never loop, and in the others those
    before the loop. ``by_monitor`` counts, of warnings too, the texts that loop which it found, and false alarms.
    """
    looping = [text for text in texts if text.start is not None]
    healthy = sum(len(text.written) if text.start is None else text.start for text in texts)
    critical = [[alarm for alarm in text.said["alarms"] if alarm["severity"] == "critical"] for text in texts]
    leads = []
    for text, alarms in zip(texts, critical, strict=True):
        about = [text.seen(alarm) for alarm in alarms if text.about_the_loop(alarm)]
        if about and text.start is not None:
            leads.append(text.start - min(about))
    false = [alarm for text, alarms in zip(texts, critical, strict=True) for alarm in alarms
             if not text.about_the_loop(alarm)]  # fmt: skip
    wrong = sum(
        bool(alarms) and not any(map(text.about_the_loop, alarms)) for text, alarms in zip(texts, critical, strict=True)
    )
    return {
        "recall": _share(len(leads), len(looping)),
        "precision": _share(len(leads), len(leads) + wrong),
        "false_alarms_per_1000": round(1000 * len(false) / healthy, 3) if healthy else None,
        "lead_median": float(np.median(leads)) if leads else None,
        "texts": len(texts), "looping": len(looping), "healthy_tokens": healthy,
        "by_monitor": _by_monitor(texts),
    }  # fmt: skip


def _by_monitor(texts: Sequence[Judged]) -> dict[str, dict[str, int]]:
    found, false = Counter[str](), Counter[str]()
    for text in texts:
        about = {alarm["kind"] for alarm in text.said["alarms"] if text.about_the_loop(alarm)}
        found.update(about)
        false.update(alarm["kind"] for alarm in text.said["alarms"] if not text.about_the_loop(alarm))
    return {name: {"loops": found[name], "false": false[name]} for name in sorted({*found, *false})}


def early(texts: Sequence[Judged], threshold_rows: float, threshold_texts: float) -> dict[str, Any] | None:
    """What the early-warning score is worth: the area under its ROC curve (is the text looping within the next 32
    tokens?), that of the score from tokens only, and lead at ``threshold_rows``, at which one look in twenty at healthy
    text was to be above; ``at_threshold_texts``: the same where one healthy text in twenty was ever to be.

    None where nothing was said, or nothing loops, or everything does.
    """
    looks, chances = _looks(texts)
    if not len(looks.left) or not looks.soon.any() or not (looks.left < 0).any():
        return None
    at_rows = warned(looks, chances[:, 0], threshold_rows)
    return {
        "auc": auc(looks, chances[:, 0]), "auc_tokens_only": auc(looks, chances[:, 1]),
        "lead_median": at_rows["lead_median"], "false_positive_rate": at_rows["of_healthy_rows"],
        "at_threshold_rows": at_rows, "at_threshold_texts": warned(looks, chances[:, 0], threshold_texts),
    }  # fmt: skip


def _looks(texts: Sequence[Judged]) -> tuple[Looks, Any]:
    """Looks without features, and the probabilities [look, score]. As in training, what nobody knows is left out."""
    left, text, chances = [], [], []
    for number, one in enumerate(texts):
        last = len(one.written) - (0 if one.ended else HORIZON)
        for pos, *probabilities in one.said["looks"]:
            seen = int(pos) + 2 - one.prompt
            if (seen <= last) if one.start is None else (seen < one.start):
                left.append(-1 if one.start is None else one.start - seen)
                text.append(number)
                chances.append(probabilities)
    count = len(texts)
    looks = Looks(np.zeros((len(left), 0)), np.array(left, np.int64), np.array(text, np.int64),
                  np.ones(count), np.ones(count, bool))  # fmt: skip
    return looks, np.array(chances)


def _share(some: int, of: int) -> float | None:
    return round(some / of, 4) if of else None
