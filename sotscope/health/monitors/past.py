"""What is normal for some numbers of a row: in the model's baseline, and in the run's own past."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sotscope.errors import HealthError
from sotscope.robust import MAD_TO_SIGMA

WARM = 16
"""Looks at a run before its own past counts."""
_LEAST = 0.02
"""Spread below which numbers are taken to be as even as this (they are logarithms: 2 %)."""


def check_options(name: str, needs: str, *, fits: bool, got: tuple[float, ...]) -> None:
    """Raises HealthError in one line unless it ``fits``; ``needs`` says what must hold."""
    if not (fits and all(math.isfinite(value) for value in got)):
        raise HealthError(f"monitor {name} needs {needs}; got {', '.join(f'{value:g}' for value in got)}.")


class Normal:
    """Tells how far numbers are from what is normal for them, in units of what is allowed.

    Allowed is a distance of ``far`` spreads, and at least ``least``: very even numbers must not make alarms of little.
    There are two measures: the baseline's ``middle`` and ``spread`` (any shape; None: there is no baseline), and the
    run's own. Those are a median of the first ``WARM`` looks, and from then on means in which one look counts for
    ``rate``, with distances beyond 3 spreads cut (Huber 1964): neither a sink nor the beginning of trouble moves them.
    """

    def __init__(
        self,
        far: float,
        least: float,
        middle: NDArray[np.float64] | None = None,
        spread: NDArray[np.float64] | None = None,
        rate: float = 0.03,
    ) -> None:
        self._far, self._least, self._rate = far, least, rate
        self._first: list[NDArray[np.float64]] = []
        self._own_spread: NDArray[np.float64] | None = None
        self._known = middle, spread
        self._middle = self._per_limit = np.zeros(0)
        if middle is not None:
            self._begin(np.full(middle.shape, np.nan))

    @property
    def ready(self) -> bool:
        """Whether there is anything to compare with."""
        return len(self._middle) > 0

    def off(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """[2, ...] the signed distance from the baseline's middle and from the run's own, 1 being the limit; NaN where
        nobody knows."""
        found: NDArray[np.float64] = (numbers - self._middle) * self._per_limit
        return found

    def factor(self, own: bool, place: int, norm: float) -> float:
        """How many times the normal one ``norm`` at ``place`` is, for logarithms of norms."""
        return norm / float(np.exp(self._middle[int(own)].flat[place]))

    def learn(self, numbers: NDArray[np.float64]) -> None:
        """Make ``numbers`` part of the run's own past."""
        if self._own_spread is None:
            self._first.append(numbers.copy())
            if len(self._first) == WARM:
                self._settle()
            return
        away = numbers - self._middle[1]
        away[np.isnan(away)] = 0.0
        reach = 3 * self._own_spread
        np.clip(away, -reach, reach, out=away)
        self._middle[1] += self._rate * away
        np.abs(away, out=away)
        self._own_spread += self._rate * (MAD_TO_SIGMA * away - self._own_spread)
        self._limit(self._own_spread)

    def _settle(self) -> None:
        seen = np.stack(self._first)
        unknown = np.isnan(seen).all(0)
        seen[:, unknown] = 0.0
        middle = np.nanmedian(seen, 0)
        self._own_spread = np.maximum(MAD_TO_SIGMA * np.nanmedian(np.abs(seen - middle), 0), _LEAST)
        middle[unknown] = np.nan
        if not self.ready:
            self._begin(middle)
        self._middle[1] = middle
        self._limit(self._own_spread)

    def _begin(self, own: NDArray[np.float64]) -> None:
        """Both measures side by side, so that one subtraction compares with both."""
        middle, spread = self._known
        self._middle = np.stack([np.full(own.shape, np.nan) if middle is None else middle, own])
        self._per_limit = np.ones(self._middle.shape)
        if spread is not None:
            self._per_limit[0] = 1 / np.maximum(self._far * spread, self._least)

    def _limit(self, spread: NDArray[np.float64]) -> None:
        np.divide(1, np.maximum(self._far * spread, self._least), out=self._per_limit[1])


def logs(norm: NDArray[np.float32]) -> NDArray[np.float64]:
    """Natural logarithms; of a norm of 0, that of a very small one."""
    found: NDArray[np.float64] = np.log(np.maximum(norm, 1e-30), dtype=np.float64)
    return found
