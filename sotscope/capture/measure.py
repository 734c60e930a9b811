"""What interventions do to one row: the same token on the same cache, with them and without."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from sotscope.capture.contracts import unwrap
from sotscope.capture.intervening import Intervening

EFFECTS = {"kl": "nats", "top1_changed": "", "state_distance": ""}
"""What is measured, with its unit."""


def effect(logits_with: Tensor, logits_without: Tensor, state_with: Tensor, state_without: Tensor) -> dict[str, float]:
    """The direct effect on a row: KL(with || without) of the next token's distribution (nats), whether the likeliest
    token is another one (0 or 1), and the distance of the states relative to the norm of the unchanged one.

    ``logits [vocab]``, ``state [dim]``. NaN where something is not finite.
    """
    log_p, log_q = (torch.log_softmax(logits.double(), -1) for logits in (logits_with, logits_without))
    p = log_p.exp()
    kl = torch.where(p > 0, p * (log_p - log_q), p).sum().clamp(min=0)
    finite = bool(logits_with.isfinite().all() and logits_without.isfinite().all())
    changed = float(logits_with.argmax() != logits_without.argmax()) if finite else float("nan")
    distance = (state_with.double() - state_without.double()).norm() / state_without.double().norm()
    return {"kl": kl.item(), "top1_changed": changed, "state_distance": distance.item()}


class Measure:
    """Measures the first row of steps: ``without`` before the step's forward, ``effect`` after it.

    Hooks are there between enter and exit; enter it after the interventions. The state is the last block's output.
    """

    def __init__(self, engine: Intervening) -> None:
        self._engine = engine
        self._handle: RemovableHandle | None = None
        self._state: Tensor | None = None
        self._without: tuple[Tensor, Tensor] | None = None

    def __enter__(self) -> Measure:
        self._handle = self._engine.body.blocks[-1].register_forward_hook(
            lambda module, args, output: setattr(self, "_state", unwrap(output)[0, 0].detach().clone())
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._handle.remove()

    def without(self, position: int, forward: Callable[[], Tensor]) -> None:
        """Run the row at ``position`` without interventions. ``forward`` feeds its token alone, takes it back from the
        cache and returns the logits [1, vocab]; it is not called where no intervention would change the row."""
        self._without = None
        if self._engine.active(position):
            with self._engine.off():
                logits = forward()[0]
            assert self._state is not None
            self._without = logits, self._state

    def effect(self, logits: Tensor) -> dict[str, float]:
        """The effect on the first row of the forward that gave ``logits [row, vocab]``; zeros where none was active."""
        if self._without is None or self._state is None:
            return dict.fromkeys(EFFECTS, 0.0)
        return effect(logits[0], self._without[0], self._state, self._without[1])
