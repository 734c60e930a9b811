"""`lstm`: a window controller that learns by example: a small LSTM guesses from the last steps how far drafts will do.

Like `cost` it weighs that guess against what a forward of each width costs. Trained by ``sotscope train controller``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from sotscope.decode.contracts import UNLIMITED, Context, Gate
from sotscope.decode.gates.clock import Clock, best_window
from sotscope.errors import DecodeError
from sotscope.events import Step

SLOTS = 8
INPUTS = 6
HIDDEN = 24
WEIGHTS = "model.safetensors"
CARD = "card.json"


class SurvivalNet(nn.Module):
    """From what happened in the steps so far [batch, step, INPUTS] to the logits [batch, step, SLOTS] that draft k of
    the next step is right, given that those before it were."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(INPUTS, HIDDEN, batch_first=True)
        self.out = nn.Linear(HIDDEN, SLOTS)

    def forward(
        self, steps: Tensor, memory: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        hidden, memory = self.lstm(steps, memory)
        return self.out(hidden), memory


class WindowLstm(Gate):
    """``widths`` as for `cost`; ``folder`` holds the trained net. Raises DecodeError where it does not."""

    name: ClassVar[str] = "lstm"

    def __init__(self, widths: Mapping[int, float], folder: str | Path) -> None:
        self.clock = Clock(widths)
        self._net = load_net(Path(folder))
        self._memory: tuple[Tensor, Tensor] | None = None
        self._survival: list[float] = []
        self._slot_ms = 0.0

    def window(self, context: Context) -> int:
        if not self._survival:
            return UNLIMITED
        return best_window(self._survival, self.clock, slot_ms=self._slot_ms)

    def observe(self, context: Context, step: Step) -> None:
        self.clock.observe(step)
        if step.drafts:
            self._slot_ms += 0.1 * (step.draft_ns / 1e6 / len(step.drafts) - self._slot_ms)
        logits, self._memory = self._net(torch.tensor([[facts(step)]]), self._memory)
        self._survival = torch.sigmoid(logits[0, 0]).cumprod(0).tolist()


def facts(step: Step) -> list[float]:
    """What the net is told of a step [INPUTS]: how many were taken, drafted, and how sure the drafter was."""
    sure = [draft.probability for draft in step.drafts if math.isfinite(draft.probability)]
    entropy = [draft.entropy for draft in step.drafts if math.isfinite(draft.entropy)]
    return [
        step.accepted / SLOTS,
        len(step.drafts) / SLOTS,
        float(step.accepted == len(step.drafts)),
        sure[0] if sure else 0.0,
        math.prod(sure) if sure else 0.0,
        sum(entropy) / len(entropy) if entropy else 0.0,
    ]


def load_net(folder: Path) -> SurvivalNet:
    net = SurvivalNet()
    try:
        json.loads((folder / CARD).read_text())
        net.load_state_dict({k: v.float() for k, v in load_file(str(folder / WEIGHTS)).items()})
    except (OSError, ValueError, SafetensorError, RuntimeError) as error:
        raise DecodeError(
            f"there is no window controller in {folder} ({error}); see: sotscope train controller."
        ) from error
    return net.eval().requires_grad_(False)
