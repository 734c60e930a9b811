"""Recoveries from loops, in real recordings."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sotscope.config import CaptureConfig, DecodeConfig, HealthConfig, PromptConfig, RunConfig
from sotscope.decode.contracts import Context, Drafter, Proposal
from sotscope.health.loops import loop_start
from sotscope.models.load import Loaded
from sotscope.recorder import Recording, recording

AFTER = 200
"""Tokens after a recovery in which there must be no loop."""
ATTEMPTS = {"rollback": HealthConfig().attempts, "refresh": 1, "rescale": 1, "plain": 1}
"""Recoveries that are measured. Those whose second attempt is the first one again get one."""
WINDOW = 63


class Known(Drafter):
    """Proposes the text that is known until the recording leaves it: the way to the alarm costs few forwards, and
    every token is still the model's own choice."""

    mode = "other"
    window = WINDOW

    def __init__(self, written: Sequence[int]) -> None:
        self._written = list(written)

    def propose(self, context: Context, window: int) -> Proposal:
        done = context.ids[context.prompt_length :]
        known = self._written[len(done) : len(done) + window] if done == self._written[: len(done)] else []
        return Proposal(ids=known, probabilities=[1.0] * len(known), entropies=[0.0] * len(known))


def recover(
    loaded: Loaded, given: PromptConfig, written: Sequence[int], policy: str, sites: Sequence[str]
) -> dict[str, Any]:
    """Record a text that loops, with a recovery, until ``AFTER`` tokens after its last attempt, or until it loops and
    no attempt is left.

    ``recovered``: no loop among the tokens after the last attempt (an end by itself counts); ``attempts``; ``kept``
    and ``after``, tokens that stayed and that came after; ``alarmed`` False: no alarm was raised, so nothing was done.
    """
    health = HealthConfig(recover={policy: {}}, attempts=ATTEMPTS[policy])
    settings = settings_of(given, sites, health, len(written) + (1 + health.attempts) * AFTER)
    with tempfile.TemporaryDirectory(prefix="sotscope-") as folder:
        settings = settings.model_copy(update={"out": Path(folder) / "one.sot"})
        with recording(settings, model=loaded, drafter=Known(written)) as recorded:
            kept, attempts = _until_known(recorded, len(written), health.attempts)
            context = recorded.decoder.context
            after = context.ids[kept : kept + AFTER] if kept >= 0 else []
            prompt = context.prompt_length
    return {
        "alarmed": attempts > 0, "recovered": attempts > 0 and loop_start(after) is None, "attempts": attempts,
        "kept": max(kept - prompt, 0), "after": len(after),
    }  # fmt: skip


def _until_known(recorded: Recording, known: int, attempts: int) -> tuple[int, int]:
    """Decode until it is known whether the last recovery helped, or until the alarm must have been raised long ago;
    where the last recovery began (-1: there was none), and how many there were."""
    kept, sequence = -1, 0
    for step in recorded.steps():
        if step.mode == "prompt":
            continue
        context = recorded.decoder.context
        if recorded.sequence != sequence:
            kept, sequence = step.pos + 1, recorded.sequence
        after = context.ids[kept : kept + AFTER] if kept >= 0 else []
        if len(after) == AFTER or (sequence == attempts and loop_start(after) is not None):
            break
        if kept < 0 and context.new_tokens > known:
            break
    return kept, sequence


def settings_of(given: PromptConfig, sites: Sequence[str], health: HealthConfig, tokens: int) -> RunConfig:
    """Greedy, without what goes by the clock."""
    return RunConfig(
        input=given,
        capture=CaptureConfig(sites=list(sites), self_check=False),
        decode=DecodeConfig(max_new_tokens=tokens, do_sample=False, controller="none", guard=False),
        health=health,
    )
