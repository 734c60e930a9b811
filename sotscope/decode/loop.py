"""The one decode loop: draft, forward, accept, commit. It knows neither capture nor store; it tells a Sink.

Row j of a step fed token j of the block and chose the token after it. The last prompt token is fed by the first step,
so the prompt and every later step are treated alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from sotscope.decode.accept import Believe, Draws, Exact, Policy, Slot
from sotscope.decode.cache import CachedModel, refusal
from sotscope.decode.contracts import Context, Drafter, Gate, Proposal
from sotscope.decode.sampling import Sampler
from sotscope.decode.text import TextStream
from sotscope.errors import DecodeError
from sotscope.events import Alarm, Draft, Outcome, Sink, Step

UNLIMITED = 1 << 30
"""The context of a model that has no limit."""


class Decoder:
    """Decodes one sequence. ``run`` is a generator of committed steps; ``outcome`` is set when it ends.

    ``stop`` are strings that end the text (kept in it, as transformers does), ``last_row`` also feeds the last token.
    """

    def __init__(
        self,
        model: Any,
        drafter: Drafter,
        sampler: Sampler,
        *,
        sink: Sink,
        gates: Sequence[Gate] = (),
        tokenizer: Any = None,
        seed: int = 0,
        stop: Sequence[str] = (),
        max_new_tokens: int = 128,
        context_length: int = UNLIMITED,
        prefill_block: int = 256,
        prompt_logits: bool = False,
        last_row: bool = False,
        seq: int = 0,
    ) -> None:
        self.cached = CachedModel(model)
        self.drafter = drafter
        self.sampler = sampler
        self.sink = sink
        self.gates = list(gates)
        self.text = TextStream(tokenizer)
        self.stop = tuple(stop)
        if self.stop and (tokenizer is None or "" in self.stop):
            raise DecodeError("stop strings need a tokenizer and at least one character each.")
        self.outcome: Outcome | None = None
        self._policy: Policy = (
            Believe() if drafter.policy == "forced" else Exact(sample=sampler.sample, draws=Draws(seed))
        )
        self._limits = (max_new_tokens, context_length)
        self._context = Context([], 0, *self._limits, seq=seq)
        self._started = self._prefilled = time.perf_counter()
        self.prefill_block = prefill_block
        self._prompt_logits = prompt_logits
        self._last_row = last_row
        self._seq = seq
        self._finish = ""
        self._detail = ""
        self.decode_steps = 0
        """Forwards that chose tokens: neither the prefill's nor the last row's."""

    @torch.inference_mode()  # as a decorator: inside a generator, a with block would leak into whoever iterates
    def run(self, prompt: Sequence[int]) -> Iterator[Step]:
        """Decode after ``prompt``; yields each step once it is committed (and told to the sink)."""
        context = self._context = Context(list(prompt), len(prompt), *self._limits, seq=self._seq)
        self._refuse(context)
        self._started = self._prefilled = time.perf_counter()
        yield from self._prefill(context)
        self._prefilled = time.perf_counter()
        self._finish = "" if context.remaining > 0 else "prompt_only"
        while not self._finish:
            yield self._step(context)
        if self._finish == "prompt_only" or (self._last_row and self._can_feed_last(context)):
            yield self._feed_last(context)
        self.text.finish()
        self.outcome = self.so_far(self._finish)

    def so_far(self, finish_reason: str) -> Outcome:
        """What has been decoded until now, as the outcome it would be if it ended here."""
        context = self._context
        return Outcome(
            finish_reason=finish_reason,
            prompt_tokens=context.prompt_length,
            new_tokens=context.new_tokens,
            text=self.text.text,
            steps=context.step,
            prefill_s=self._prefilled - self._started,
            decode_s=time.perf_counter() - self._prefilled,
            detail=self._detail,
        )

    def _refuse(self, context: Context) -> None:
        if not context.ids:
            raise DecodeError("the prompt has no tokens; decoding needs at least one.")
        if len(context.ids) > context.context_length:
            raise DecodeError(
                f"the prompt has {len(context.ids)} tokens, the model's context holds {context.context_length}; "
                "shorten the prompt."
            )

    def _prefill(self, context: Context) -> Iterator[Step]:
        before = time.perf_counter_ns()
        for start, part in self.cached.prefill(context.ids[:-1], self.prefill_block, all_logits=self._prompt_logits):
            forward_ns = time.perf_counter_ns() - before
            following = context.ids[start + 1 : start + 1 + len(part)]
            yield self._tell(
                context,
                Step(
                    context.step, self._seq, "prompt", start, tuple(part), tuple(following),
                    reason="prefill", forward_ns=forward_ns,
                ),
            )  # fmt: skip
            before = time.perf_counter_ns()

    def _step(self, context: Context) -> Step:
        t0 = time.perf_counter_ns()
        window = min([self.drafter.window, *(gate.window(context) for gate in self.gates)])
        if not self.cached.croppable:
            if self.cached.croppable is False and self.drafter.may_reject:
                raise DecodeError(refusal(self.cached.model))
            window = 0  # recurrent: one token at a time; or not known before the first forward (a one-token prompt)
        proposal = self.drafter.propose(context, window)
        t1 = time.perf_counter_ns()
        block = [context.ids[-1], *proposal.ids]
        logits = self.cached.forward(block)
        if len(proposal) and self.cached.croppable and not all(_finite(logits)):
            # behind a causal mask 0 * NaN is NaN: a bad draft spoils the rows before it, so decide without drafts
            self.cached.keep(len(block))
            window, block = 0, block[:1]
            proposal = self.drafter.propose(context, 0)
            logits = self.cached.forward(block)
        t2 = time.perf_counter_ns()
        tokens, accepted, text = self._accept(context, logits, proposal)
        # where the logits were not finite the row stays, as evidence, but no token was chosen
        next_ids = [*tokens, -1] if self._finish == "non_finite" else tokens
        self.cached.keep(len(block) - len(next_ids))
        pos = len(context.ids) - 1
        drafts = tuple(_drafts(proposal, tokens, accepted, pos + 1))
        step = Step(
            context.step, self._seq, self.drafter.mode, pos, tuple(block[: len(next_ids)]), tuple(next_ids),
            text=text, window=window, accepted=accepted, drafts=drafts,
            reason="drafted" if len(proposal) else ("gated" if window < self.drafter.window else "plain"),
            draft_ns=t1 - t0, forward_ns=t2 - t1, accept_ns=time.perf_counter_ns() - t2,
        )  # fmt: skip
        context.ids.extend(tokens)
        self.decode_steps += 1
        self._tell(context, step)
        if self._finish == "non_finite":  # after the step: whoever looks at its states can say more
            self.sink.on_alarm(Alarm("non_finite", self._detail, {"position": step.pos + step.rows - 1}))
        return step

    def _accept(self, context: Context, logits: Tensor, proposal: Proposal) -> tuple[list[int], int, str]:
        """Tokens to commit (at least one), how many of them were drafts, and the text they completed."""
        tokens: list[int] = []
        accepted = 0
        text = ""
        for slot, finite in enumerate(_finite(logits)):
            position = len(context.ids) + slot
            if not finite:
                self._finish = "non_finite"
                self._detail = f"the logits at position {position - 1} are not finite"
                break
            draft = proposal.ids[slot] if slot < len(proposal) else proposal.then
            distribution = None if proposal.distributions is None or slot >= len(proposal) else proposal.distributions
            scores = self.sampler.scores(context.ids + tokens if self.sampler.processors else [], logits[slot])
            token, taken = self._policy.decide(
                Slot(scores, self._seq, position, draft, None if distribution is None else distribution[slot])
            )
            tokens.append(token)
            accepted += taken and slot < len(proposal)
            fresh = self.text.add(token)
            text += fresh
            self._finish = self._ended(context, token, len(tokens), fresh)
            if self._finish or not taken:
                break
        return tokens, accepted, text

    def _ended(self, context: Context, token: int, count: int, fresh: str) -> str:
        """Why the sequence ends with ``token``, or empty. Every committed token is asked for, also inside a block."""
        total = context.new_tokens + count
        if self.drafter.mode == "forced":
            return "end_of_text" if total >= context.max_new_tokens else self._out_of_context(context, count)
        if token in self.sampler.eos:
            return "eos"
        if any(stop in self.text.text[-(len(stop) + len(fresh)) :] for stop in self.stop):
            return "stop_string"
        if total >= context.max_new_tokens:
            return "max_new_tokens"
        return self._out_of_context(context, count)

    def _out_of_context(self, context: Context, count: int) -> str:
        return "context_limit" if len(context.ids) + count > context.context_length else ""

    def _can_feed_last(self, context: Context) -> bool:
        """Whether the last token has no row yet, and fits."""
        return self._finish != "non_finite" and len(context.ids) <= context.context_length

    def _feed_last(self, context: Context) -> Step:
        t0 = time.perf_counter_ns()
        last = context.ids[-1]
        self.cached.forward([last])
        return self._tell(
            context,
            Step(
                context.step, self._seq, self.drafter.mode if context.new_tokens else "prompt", len(context.ids) - 1,
                (last,), (-1,), reason="last_row", forward_ns=time.perf_counter_ns() - t0,
            ),
        )  # fmt: skip

    def _tell(self, context: Context, step: Step) -> Step:
        context.step += 1
        self.sink.on_step(step)
        return step


def _finite(logits: Tensor) -> list[bool]:
    """Of every row, whether a token can be chosen from it."""
    found: list[bool] = logits.amax(-1).isfinite().tolist()
    return found


def _drafts(proposal: Proposal, tokens: list[int], accepted: int, first: int) -> Iterator[Draft]:
    """What became of every drafted token; ``first`` is the position the first one was drafted for."""
    for slot, token in enumerate(proposal.ids):
        if slot < accepted:
            reason = "accepted"
        elif slot >= len(tokens):
            # nobody looked at it: an earlier slot missed, or the sequence ended on an accepted token
            reason = "after_miss" if len(tokens) > accepted else "after_end"
        else:
            reason = "first_slot_miss" if slot == 0 else "later_slot_miss"
        yield Draft(
            slot=slot,
            target=first + slot,
            token=int(token),
            probability=float(proposal.probabilities[slot]) if len(proposal.probabilities) else math.nan,
            entropy=float(proposal.entropies[slot]) if len(proposal.entropies) else math.nan,
            reason=reason,
        )
