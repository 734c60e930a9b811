"""`repetition`: the generated tokens go round in a cycle."""

from __future__ import annotations

from collections import defaultdict
from typing import ClassVar

from sotscope.health.contracts import Monitor, Row, Signal, Subject
from sotscope.health.monitors.past import check_options

LONG = 24
"""Periods from here on need fewer turns: a paragraph that comes a third time has cost a hundred tokens."""


class Repetition(Monitor):
    """Alarms where a cycle of 1 to ``longest`` tokens has filled ``repeats`` turns and at least ``tokens`` tokens.

    Cycles of ``LONG`` tokens and more alarm after ``long_repeats`` turns. Tokens must be equal one by one, so a table,
    a numbered list or indented code with other words in each turn is no cycle; and only tokens that the model chose
    count. The period is the shortest that fits (for abcabc: 3, not 6).

    For each period, how long the text has agreed with itself so many tokens earlier is carried along from token to
    token, for the periods at which the newest token occurred before: the work a token is at most ``longest`` steps.

    ``onset`` is the position of the cycle's first token. Evidence: ``period``, ``repeats``, ``covered`` (tokens),
    ``cycle`` (its token ids). Raises HealthError for ``repeats`` or ``long_repeats`` of 1 or less, or ``tokens`` or
    ``longest`` below 1.
    """

    name: ClassVar[str] = "repetition"
    advice: ClassVar[str] = (
        "--recover rollback goes back to before the cycle and bans it; or decode with --repetition-penalty 1.1, or "
        "with a temperature"
    )

    def __init__(
        self, subject: Subject, repeats: float = 3.0, tokens: int = 24, longest: int = 128, long_repeats: float = 2.5
    ) -> None:
        check_options(
            self.name, "repeats > 1, tokens >= 1, longest >= 1, long_repeats > 1",
            fits=repeats > 1 and tokens >= 1 and longest >= 1 and long_repeats > 1,
            got=(repeats, tokens, longest, long_repeats),
        )  # fmt: skip
        short, long = repeats, min(repeats, long_repeats)
        self._longest = longest
        self._enough = [max(tokens, (long if period >= LONG else short) * period) for period in range(longest + 1)]
        self._ids: list[int] = []
        self._seen: dict[int, list[int]] = defaultdict(list)
        self._agree: dict[int, int] = {}
        """Period to how many of the newest tokens equal the one that many places before."""

    def observe(self, row: Row) -> Signal | None:
        if row.given or row.next_id < 0:
            return None
        self._add(row.next_id)
        for period, agree in self._agree.items():  # shortest first
            if agree + period >= self._enough[period]:
                return self._signal(row.pos + 1, period, agree + period)
        return None

    def _add(self, token: int) -> None:
        here = len(self._ids)
        before = self._seen[token]
        while before and here - before[0] > self._longest:
            del before[0]
        agree = self._agree
        self._agree = {here - place: agree.get(here - place, 0) + 1 for place in reversed(before)}
        before.append(here)
        self._ids.append(token)

    def _signal(self, newest: int, period: int, covered: int) -> Signal:
        cycle = self._ids[len(self._ids) - covered :][:period]
        turns = covered / period
        tokens = "1 token" if period == 1 else f"{period} tokens"
        return Signal(
            "critical", f"the last {covered} tokens are a cycle of {tokens}, {turns:.3g} times",
            newest + 1 - covered, {"period": period, "repeats": turns, "covered": covered, "cycle": cycle},
        )  # fmt: skip
