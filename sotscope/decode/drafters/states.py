"""Drafters that predict states: what `sot` and `dmtd` share.

The predictor rolls the lm_head's input forward from the states of the committed rows; the draft head reads tokens from
it. Predicted states never enter the model's cache or the record of rows: they only suggest tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sotscope.config import DraftConfig
from sotscope.decode.contracts import Context, Drafter, Proposal
from sotscope.decode.predictors.bundle import Bundle
from sotscope.decode.predictors.head import DTYPES, DraftHead
from sotscope.errors import DecodeError
from sotscope.events import Step


class StateDrafter(Drafter):
    """A trained predictor on a base model. ``mode`` is the word written into the run.

    Raises DecodeError where the predictor does not fit the model.
    """

    def __init__(self, mode: str, model: Any, bundle: Bundle, settings: DraftConfig | None = None) -> None:
        self.mode = mode
        self.settings = settings or DraftConfig()
        config = bundle.predictor.config
        self.layers = config.layers
        self.context_rows = config.context_rows
        self.window = config.slots
        head = model.get_output_embeddings()
        embed = model.get_input_embeddings().weight
        if head is None or head.weight.shape[1] != config.dim or embed.shape[1] != config.dim:
            raise DecodeError(f"the drafter predicts states of {config.dim} numbers; this model's are of another size.")
        words = bundle.vocabulary
        if not len(words) or int(words.min()) < 0 or int(words.max()) >= len(head.weight):
            raise DecodeError("the drafter's vocabulary is empty or another model's; train or copy it again.")
        count = int(model.config.get_text_config().num_hidden_layers)
        if config.layers and max(config.layers) >= count:
            raise DecodeError(f"the drafter reads layer {max(config.layers)}; this model has {count}.")
        self._dtype = draft_dtype(self.settings.dtype, model.device)
        self._embed = embed
        self._head = DraftHead(head.weight, words, self._dtype, head.bias)
        self._predictor = bundle.predictor.to(device=model.device, dtype=self._dtype)
        self._context: Context | None = None
        self._memory: Any = None
        self._absorbed = -1
        self._known = 0
        self._bias = torch.zeros(config.slots, config.dim, device=model.device)
        self._last: Proposal = Proposal()

    def knows(self, token: int) -> bool:
        return token in self._head

    def propose(self, context: Context, window: int) -> Proposal:
        self._last = Proposal()
        if window < 1 or not self._absorb(context):
            return self._last
        if self._predictor.feedback:
            self._last = self._one_by_one(context, window)
        else:
            self._last = self._all_at_once(context, window)
        return self._last

    def observe(self, context: Context, step: Step, truth: Tensor | None) -> None:
        """Average the errors of the states whose truth is known now."""
        weight = self.settings.correction
        if not weight or truth is None or self._last.states is None:
            return
        count = min(len(truth), len(self._last.states), len(step.drafts))
        for slot in range(count):
            w = weight * step.drafts[slot].probability
            raw = self._last.states[slot] - self._bias[slot]
            self._bias[slot] = (1 - w) * self._bias[slot] + w * (truth[slot].float() - raw)

    # -- what the predictor knows ------------------------------------------------------------------------------

    def _absorb(self, context: Context) -> bool:
        """Take in the rows that were committed since; False while there are none that end where drafting begins."""
        history = context.history
        fed = len(context.ids) - 1
        if history is None or history.end != fed or history.start == history.end:
            return False
        if context is not self._context or not history.start <= self._absorbed <= fed:
            self._context = context
            self._memory, self._absorbed, self._known = None, history.start, 0
            self._head.forget()
        self._head.add(context.ids[self._known :])
        self._known = len(context.ids)
        if self._absorbed < fed or self._memory is None:
            begin = min(self._absorbed, fed - 1)
            states = history.since(begin)
            following = torch.tensor(context.ids[begin + 1 : fed + 1], device=self._embed.device)
            embeds = self._embed[following].to(self._dtype)
            self._memory = self._predictor.absorb(self._memory, states.to(self._dtype), embeds)
            self._absorbed = fed
        return True

    # -- drafting ----------------------------------------------------------------------------------------------

    def _one_by_one(self, context: Context, window: int) -> Proposal:
        read = _Reading(self, context)
        state, carry = self._predictor.first(self._memory)
        for slot in range(min(window, self.window)):
            if slot:
                state, carry = self._predictor.then(carry, self._embed[read.ids[-1]].to(self._dtype))
            found = self.corrected(state[None], slot)
            read.read(slot, found[0], self._head.logits(found)[0])
            if read.sure <= self.settings.floor:
                break
        return read.proposal()

    def _all_at_once(self, context: Context, window: int) -> Proposal:
        state, carry = self._predictor.first(self._memory)
        states = [state]
        for _ in range(1, min(window, self.window)):
            state, carry = self._predictor.then(carry, state)
            states.append(state)
        found = self.corrected(torch.stack(states), 0)
        read = _Reading(self, context)
        for slot, logits in enumerate(self._head.logits(found)):
            read.read(slot, found[slot], logits)
            if read.sure <= self.settings.floor:
                break
        return read.proposal()

    def corrected(self, states: Tensor, slot: int) -> Tensor:
        """``states [slot, dim]`` from ``slot`` on, with the mean of past errors added."""
        found = states.float()
        return found + self._bias[slot : slot + len(found)] if self.settings.correction else found


class _Reading:
    """Tokens read from predicted states, slot after slot."""

    def __init__(self, drafter: StateDrafter, context: Context) -> None:
        self._drafter = drafter
        self._context = context
        self._head = drafter._head
        self.sure = 1.0
        """The drafter's estimate that all tokens so far are right."""
        self.ids: list[int] = []
        self._probabilities: list[float] = []
        self._entropies: list[float] = []
        self._states: list[Tensor] = []
        self._full: list[np.ndarray[Any, Any]] = []

    def read(self, slot: int, state: Tensor, logits: Tensor) -> None:
        """Add the token of ``slot``, from its state [dim] and its logits [word]."""
        heat = self._drafter.settings.temperature
        sampled = self._context.draw is not None
        log_p = torch.log_softmax(logits / (heat * (self._context.temperature if sampled else 1.0)), -1)
        p = log_p.exp()
        if self._context.draw is None:
            word = int(p.argmax())
        else:
            u = self._context.draw(len(self._context.ids) + slot)
            word = min(int(torch.searchsorted(p.double().cumsum(0), u, right=True)), len(p) - 1)
            full = np.zeros(len(self._drafter._embed), np.float32)
            full[self._head.words[: len(p)].numpy()] = p.cpu().numpy()
            self._full.append(full)
        token = int(self._head.words[word])
        self.sure *= float(p[word])
        self.ids.append(token)
        self._probabilities.append(float(p[word]))
        self._entropies.append(float(-(p * log_p).sum()))
        self._states.append(state)

    def proposal(self) -> Proposal:
        return Proposal(
            ids=self.ids,
            probabilities=self._probabilities,
            entropies=self._entropies,
            distributions=np.stack(self._full) if self._full else None,
            states=torch.stack(self._states),
        )


def draft_dtype(name: str, device: torch.device) -> torch.dtype:
    """The type a drafter computes in. "auto" is float32 on a CPU, where products of a single row are not faster in
    half precision (docs/log.md), else bfloat16.

    Raises DecodeError for a name that is none of the settings'.
    """
    if name != "auto" and name not in DTYPES:
        raise DecodeError(f"draft dtype {name!r} is not one of auto, {', '.join(DTYPES)}.")
    auto = torch.float32 if device.type == "cpu" else torch.bfloat16
    return auto if name == "auto" else DTYPES[name]
