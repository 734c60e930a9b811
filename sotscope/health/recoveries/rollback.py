"""`rollback`: go on from before the trouble began, with what makes it unlikely to come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from sotscope.errors import HealthError
from sotscope.health.contracts import Action, Recovery, Trouble

AS_IT_WAS = ("non_finite", "norms")
"""Alarms after which the first attempt changes nothing: what was wrong for one moment does not come back."""
SHORT = 4
"""Longest n-gram of a cycle that is banned: longer ones would let the cycle run on for that many tokens."""


class Rollback(Recovery):
    """Retracts the text from where the alarm began and decodes on from there as a new sequence.

    Of a token cycle the first turn is kept; in the next ``hold`` tokens no n-gram of the cycle may be completed again
    (as transformers' `no_repeat_ngram_size`, for this cycle only), and half of the repetition ``penalty`` holds (Keskar
    et al. 2019, arXiv 1909.05858). The second attempt goes back to before the first turn with all of it; each one after
    that goes back ``further`` tokens more and draws tokens at ``temperature``. Draws are a function of the position,
    so the outcome repeats. After a NaN or an explosion, the first attempt goes on from before it as if it had not been.

    Raises HealthError for a ``penalty`` below 1, a ``temperature`` of 0 or less, or a ``hold`` below 1.
    """

    name: ClassVar[str] = "rollback"

    def __init__(self, hold: int = 128, penalty: float = 1.2, temperature: float = 0.8, further: int = 16) -> None:
        if not (hold >= 1 and penalty >= 1 and temperature > 0 and further >= 0):
            raise HealthError(
                f"recovery rollback needs hold >= 1, penalty >= 1, temperature > 0, further >= 0; got {hold}, "
                f"{penalty:g}, {temperature:g}, {further}."
            )
        self._hold, self._penalty, self._temperature, self._further = hold, penalty, temperature, further

    def plan(self, trouble: Trouble) -> Action | None:
        alarm, attempt = trouble.alarm, trouble.attempt
        cycle = tuple(int(token) for token in alarm.data.get("cycle", ()))
        turn = len(cycle) if attempt == 0 else 0  # one turn of a cycle is no loop yet
        keep = alarm.onset + turn - self._further * max(0, attempt - 1)
        # of the prompt, only rows that went wrong are computed again
        keep = min(max(keep, trouble.prompt_length if cycle else 1), len(trouble.ids))
        again = alarm.kind in AS_IT_WAS and attempt == 0
        penalty = self._penalty if attempt else 1.0 if again else 1 + (self._penalty - 1) / 2
        temperature = self._temperature if attempt > 1 else 0.0
        how = [
            *([f"a ban of the cycle of {len(cycle)}"] if cycle else []),
            *([f"a repetition penalty of {penalty:g}"] if penalty > 1 else []),
            *([f"a temperature of {temperature:g}"] if temperature else []),
        ]
        with_what = f" with {' and '.join(how)} for {self._hold} tokens" if how else ""
        return Action(
            f"go on from token {keep}{with_what}",
            keep, self._hold, _ngrams(cycle), penalty, temperature,
        )  # fmt: skip


def _ngrams(cycle: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """The n-grams of a cycle, around its end too; n is its length, ``SHORT`` at most."""
    size = min(len(cycle), SHORT)
    around = [*cycle, *cycle]
    return tuple(dict.fromkeys(tuple(around[i : i + size]) for i in range(len(cycle))))
