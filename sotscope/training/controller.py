"""Training the LSTM window controller: what became of drafts in runs with a fixed window teaches it what to expect."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from sotscope.capture.watch import StateWatch
from sotscope.config import DecodeConfig
from sotscope.decode.gates.lstm import CARD, SLOTS, WEIGHTS, SurvivalNet, facts
from sotscope.decode.loop import Decoder
from sotscope.decode.sampling import Sampler
from sotscope.events import Alarm, Command, Step
from sotscope.models.load import Loaded
from sotscope.parts import PartsMaker
from sotscope.training.corpus import own_text
from sotscope.training.recipe import Watcher, fast_copy, fingerprints

PASSES = 300
NEW_TOKENS = 128


class _Steps:
    """A sink that keeps the steps."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def on_step(self, step: Step) -> None:
        if step.reason not in ("prefill", "last_row"):
            self.steps.append(step)

    def on_alarm(self, alarm: Alarm) -> None: ...

    def on_command(self, command: Command) -> None: ...


def train_controller(
    loaded: Loaded, out: Path, watcher: Watcher, *, tokens: int = 20_000, seed: int = 0, mode: str = "sot",
    drafter: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Decode about ``tokens`` with ``mode`` at its full window and fit the net to what was taken. Returns the card.

    Raises DecodeError where there is no trained drafter for ``mode``.
    """
    began = time.time()
    maker = PartsMaker(loaded, DecodeConfig(mode=mode, drafter=drafter, controller="none", guard=False))
    maker.parts()  # what is missing is said before the model writes prompts
    runs = list(_runs(loaded, maker, tokens, seed, watcher))
    split = max(1, len(runs) // 10)
    torch.manual_seed(seed)
    net = SurvivalNet()
    train, test = _stack(runs[split:]), _stack(runs[:split])
    watcher.stage("fitting", PASSES)
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    for number in range(PASSES):
        loss = _loss(net, *train)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watcher.progress(number + 1, f"loss {float(loss.detach()):.3f}")
    with torch.no_grad():
        held_out, constant = float(_loss(net, *test)), _constant(train[1], test[1])
    out.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: value.to(torch.float16).contiguous() for name, value in net.state_dict().items()}, str(out / WEIGHTS)
    )
    card = {
        "mode": "controller", "drafter": mode, "base": {"name": loaded.name, **fingerprints(loaded.model)},
        "data": {"runs": len(runs), "steps": sum(map(len, runs))}, "settings": {"tokens": tokens, "seed": seed},
        "figures": {"held_out_loss": round(held_out, 4), "loss_of_constant_rates": round(constant, 4)},
        "minutes": round((time.time() - began) / 60, 1),
    }  # fmt: skip
    (out / CARD).write_text(json.dumps(card, indent=1) + "\n")
    return card


def _runs(loaded: Loaded, maker: PartsMaker, tokens: int, seed: int, watcher: Watcher) -> Iterator[list[Step]]:
    watcher.stage("decoding", tokens)
    done = 0
    fast = fast_copy(loaded)
    for sample in own_text(fast, tokens, seed=seed + 1, new_tokens=1, batch=32):
        sink = _Steps()
        sampler = Sampler(loaded.model, len(sample.prompt_ids), overrides={"do_sample": False})
        decoder = Decoder(
            loaded.model, None, sampler, sink=sink, parts=maker.parts(), watch=StateWatch(loaded.model),
            max_new_tokens=NEW_TOKENS,
        )  # fmt: skip
        for _ in decoder.run(sample.prompt_ids):
            pass
        if len(sink.steps) > 1:
            yield sink.steps
        done += sum(step.rows for step in sink.steps)
        watcher.progress(min(done, tokens))
        if done >= tokens:
            return


def _stack(runs: list[list[Step]]) -> tuple[Tensor, Tensor]:
    """Inputs [run, step, INPUTS] and, for the step after each, what became of its drafts [run, step, SLOTS]: 1 right,
    0 wrong, -1 not looked at."""
    longest = max(map(len, runs)) - 1
    inputs = torch.zeros(len(runs), longest, len(facts(runs[0][0])))
    fate = torch.full((len(runs), longest, SLOTS), -1.0)
    for row, steps in enumerate(runs):
        for at, (step, following) in enumerate(pairwise(steps)):
            inputs[row, at] = torch.tensor(facts(step))
            for draft in following.drafts[:SLOTS]:
                if draft.reason not in ("after_miss", "after_end"):
                    fate[row, at, draft.slot] = float(draft.accepted)
    return inputs, fate


def _loss(net: SurvivalNet, inputs: Tensor, fate: Tensor) -> Tensor:
    logits, _ = net(inputs)
    known = fate >= 0
    return torch.nn.functional.binary_cross_entropy_with_logits(logits[known], fate[known])


def _constant(train: Tensor, test: Tensor) -> float:
    """The loss of knowing nothing but how often each slot is right: what the net must beat."""
    rates = torch.stack(
        [slot[slot >= 0].mean() if (slot >= 0).any() else torch.tensor(0.5) for slot in train.unbind(-1)]
    )
    known = test >= 0
    spread = rates.clamp(1e-3, 1 - 1e-3).expand_as(test)
    return float(torch.nn.functional.binary_cross_entropy(spread[known], test[known]))
