"""Ratios of interleaved pairs: median and bootstrap interval."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sotscope.events import Alarm, Command, Step

Report = Callable[[str], None]


class Nobody:
    """A sink that does nothing: the decode loop as it is without a recorder."""

    def on_step(self, step: Step) -> None:
        return

    def on_alarm(self, alarm: Alarm) -> None:
        return

    def on_command(self, command: Command) -> None:
        return


def interleave(arms: Mapping[str, Callable[[], float]], rounds: int, report: Report) -> dict[str, list[float]]:
    """Measure every arm once a round, in a new order each round (a fixed seed), so that drift hits all alike."""
    order = random.Random(0)
    found: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(rounds):
        names = list(arms)
        order.shuffle(names)
        for name in names:
            report(f"round {number + 1} of {rounds}: {name}")
            found[name].append(arms[name]())
    return found


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> dict[str, Any]:
    """Median of the rounds' ratios with a 95 % bootstrap interval (2,000 resamples, seed 0)."""
    ratios = np.array(numerator) / np.array(denominator)
    generator = np.random.default_rng(0)
    medians = np.median(generator.choice(ratios, (2000, len(ratios))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return {
        "median": round(float(statistics.median(ratios)), 4),
        "low": round(float(low), 4),
        "high": round(float(high), 4),
        "rounds": len(ratios),
    }
