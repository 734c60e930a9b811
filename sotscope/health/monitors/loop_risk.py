"""`loop_risk`: the text is likely to go round in a loop soon."""

from __future__ import annotations

from typing import ClassVar

from sotscope.health.contracts import Monitor, Row, Signal, Subject
from sotscope.health.early import HORIZON, Features, Scorer
from sotscope.health.early_model import EarlyModel
from sotscope.health.monitors.past import check_options


class LoopRisk(Monitor):
    """Alarms where the early-warning score is above ``threshold``; 0 stands for the one that one in twenty healthy
    texts ever reaches (the model's ``threshold_texts``; ``threshold_rows`` is lower, and warns earlier and more often).

    One row in 4 is looked at, at positions of the text; between two looks the last one holds. Evidence:
    ``probability`` that the text loops within the next 32 tokens, and ``threshold``. It is no more than a probability:
    lists and tables come near to loops without becoming one. Raises HealthError for a ``threshold`` below 0 or of 1 and
    more.
    """

    name: ClassVar[str] = "loop_risk"
    needs: ClassVar[frozenset[str]] = frozenset({"states"})
    advice: ClassVar[str] = (
        "nothing is wrong yet; watch for repetition, or decode with a temperature or --repetition-penalty 1.1"
    )

    @classmethod
    def lacks(cls, subject: Subject) -> str:
        """Why there is no score for this subject."""
        known = subject.early
        if known is None:
            return "there is no trained score for this model (sotscope train health makes one)"
        if tuple(known.layers) != subject.watched:
            return (
                f"its score reads the states of layers {_listed(known.layers)}, and those of layers "
                f"{_listed(subject.watched)} are watched (record all layers)"
            )
        return ""

    def __init__(self, subject: Subject, threshold: float = 0.0) -> None:
        check_options(self.name, "threshold from 0 to below 1", fits=0 <= threshold < 1, got=(threshold,))
        early = subject.early
        assert early is not None, "lacks() said so"
        self._threshold = threshold or early.threshold_texts
        self._scorer = Scorer(early)
        self._features = Features()
        self._last: Signal | None = None

    def observe(self, row: Row) -> Signal | None:
        features = self._features.observe(row)
        if features is None:
            return None if row.given else self._last
        chance = self._scorer.probability(features)
        self._last = None
        if chance > self._threshold:
            self._last = Signal(
                "warning", f"the text loops within {HORIZON} tokens with a probability of {chance:.2g}", row.pos + 1,
                {"probability": chance, "threshold": self._threshold},
            )  # fmt: skip
        return self._last


def chances(rows: list[Row], early: EarlyModel, name: str = "all") -> list[tuple[int, float]]:
    """Position and probability of every look at a text that one of the scores gives."""
    features, scorer = Features(), Scorer(early, name)
    seen = ((row.pos, features.observe(row)) for row in rows)
    return [(pos, scorer.probability(found)) for pos, found in seen if found is not None]


def _listed(layers: list[int] | tuple[int, ...]) -> str:
    return ", ".join(map(str, layers)) or "none"
