"""The one decode loop: draft, forward, accept, commit. It knows neither capture nor store; it tells a Sink.

Row j of a step fed token j of the block and chose the token after it. The last prompt token is fed by the first step,
so the prompt and every later step are treated alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sotscope.decode import verdict
from sotscope.decode.accept import DRAFT, Draws, Slot, make_policy
from sotscope.decode.cache import CachedModel, refusal
from sotscope.decode.contracts import UNLIMITED as UNLIMITED
from sotscope.decode.contracts import Context, Drafter, Effects, Gate, Parts, Proposal, StateSource
from sotscope.decode.controls import Controls
from sotscope.decode.drafters.ar import Plain
from sotscope.decode.ending import Ending, StopWhen
from sotscope.decode.history import History
from sotscope.decode.sampling import Sampler
from sotscope.decode.text import TextStream
from sotscope.errors import DecodeError, SotscopeError
from sotscope.events import Alarm, Command, Outcome, Sink, Step

Rebuild = Callable[[Mapping[str, Any]], Parts]
"""Makes the parts anew from what a command changes."""


class Decoder:
    """Decodes one sequence. ``run`` is a generator of committed steps; ``outcome`` is set when it ends.

    ``parts`` (or ``drafter``, ``gates`` and ``policy``) decide each step; with ``controls`` and ``rebuild`` they can
    be changed while it decodes. ``watch`` is where drafters that read states get them from. ``stop`` are strings that
    end the text (kept in it, as transformers does), ``stop_when`` ends it by a rule of its own, ``last_row`` also feeds
    the last token, ``keep_predicted`` hands predicted states on to the sink, ``draw_drafts`` lets drafters draw tokens
    where the text is sampled. ``cached`` is a cache that holds the first of the tokens already (``Snapshot.restore``),
    ``history`` the states of the last of those. No prefill block reaches over ``first_row``.
    ``effects`` measures interventions.
    """

    def __init__(
        self,
        model: Any,
        drafter: Drafter | None,
        sampler: Sampler,
        *,
        sink: Sink,
        gates: Sequence[Gate] = (),
        policy: str = "exact",
        parts: Parts | None = None,
        controls: Controls | None = None,
        rebuild: Rebuild | None = None,
        watch: StateSource | None = None,
        tokenizer: Any = None,
        seed: int = 0,
        stop: Sequence[str] = (),
        stop_when: StopWhen | None = None,
        max_new_tokens: int = 128,
        context_length: int = UNLIMITED,
        prefill_block: int = 256,
        prompt_logits: bool = False,
        last_row: bool = False,
        keep_predicted: bool = False,
        draw_drafts: bool = False,
        cached: CachedModel | None = None,
        history: History | None = None,
        first_row: int = 0,
        effects: Effects | None = None,
        seq: int = 0,
    ) -> None:
        self.cached = cached or CachedModel(model)
        self.sampler = sampler
        self.sink = sink
        self.text = TextStream(tokenizer)
        self._ending = Ending(stop, stop_when, tokenizer)
        self.outcome: Outcome | None = None
        self.controls = controls or Controls()
        self._rebuild = rebuild
        self._watch = watch
        self._draws = Draws(seed)
        self._limits = (max_new_tokens, context_length)
        self.context = Context([], 0, *self._limits, seq=seq)
        """Where it is: all tokens so far, the last of which has not been fed."""
        self._history = history
        self._first_row = first_row
        self._effects = effects
        self._started = self._prefilled = time.perf_counter()
        self.prefill_block = prefill_block
        self._prompt_logits = prompt_logits
        self._last_row = last_row
        self._keep_predicted = keep_predicted
        self._draw_drafts = draw_drafts
        self._seq = seq
        self._finish = ""
        self._detail = ""
        self._failed: Drafter | None = None
        self._watched: tuple[int, ...] | None = None
        self.decode_steps = 0
        """Forwards that chose tokens: neither the prefill's nor the last row's."""
        self._use(parts or Parts(drafter or Plain(), policy, gates))

    def _use(self, parts: Parts) -> None:
        """Decode with ``parts`` from the next step on."""
        self.parts = parts
        self._policy = make_policy(parts.judge, sample=self.sampler.sample, draws=self._draws, **parts.options)
        self._needs_logprobs = any(gate.needs_logprobs for gate in parts.gates)

    @property
    def drafter(self) -> Drafter:
        return self.parts.drafter

    def run(self, prompt: Sequence[int], written: Sequence[int] = ()) -> Generator[Step]:
        """Decode after ``prompt``; yields each step once it is committed (and told to the sink).

        ``written`` tokens were chosen earlier: they count as new ones, for limits, processors and the text.
        """
        try:
            yield from self._run(prompt, written)
        finally:
            if self._watch is not None:
                self._watch.close()

    @torch.inference_mode()  # as a decorator: inside a generator, a with block would leak into whoever iterates
    def _run(self, prompt: Sequence[int], written: Sequence[int]) -> Generator[Step]:
        context = self.context = Context([*prompt, *written], len(prompt), *self._limits, seq=self._seq)
        for token in written:
            self.text.add(token)
        if self.sampler.sample and self._draw_drafts:
            context.draw = lambda position: self._draws.uniform(self._seq, position, DRAFT)
            context.temperature = float(self.sampler.config.temperature or 1.0)
        self._refuse(context)
        self._look_at_states(context)
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
        context = self.context
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

    # -- parts -------------------------------------------------------------------------------------------------

    def _look_at_states(self, context: Context) -> None:
        """Watch the layers that the drafter reads; a drafter that reads others starts with an empty history."""
        layers = self.drafter.layers
        if layers is None or layers == self._watched:
            return  # what is watched stays so: another switch may need it
        if self._watch is None:
            raise DecodeError(f"mode {self.drafter.mode} reads states; give the decoder a watch.")
        self._watch.open(layers)
        self._watched = layers
        known = context.history or self._history
        context.history = known if known and known.layers == layers else History(self.drafter.context_rows, layers)

    def _obey(self, context: Context) -> None:
        """Apply what was asked for since the last step. What cannot be done is an alarm; decoding goes on as it was."""
        command = self.controls.take()
        if command is None:
            return
        try:
            if self._rebuild is None:
                raise DecodeError("this decoder takes no commands.")
            before = self.parts
            parts = self._rebuild(command.changes)
            if parts.drafter is self._failed and "mode" not in command.changes:
                parts = replace(parts, drafter=Plain())  # only who asks for it by name gets it again
            self._use(parts)
            try:
                self._look_at_states(context)
            except SotscopeError:
                self._use(before)
                raise
        except SotscopeError as error:
            self.sink.on_alarm(Alarm("command", f"a change was refused: {error}", {"changes": dict(command.changes)}))
            return
        self.sink.on_command(Command(command.id, command.changes, context.step, len(context.ids) - 1))

    def _drafting_off(self, context: Context, why: str) -> None:
        mode, self._failed = self.drafter.mode, self.drafter
        self._use(Parts(Plain(), self.parts.policy, self.parts.gates, options=self.parts.options))
        message = f"drafting is off: {mode} {why}; the text goes on one token at a time"
        self.sink.on_alarm(Alarm("drafter", message, {"mode": mode, "position": len(context.ids)}))

    def _propose(self, context: Context) -> tuple[int, Proposal]:
        """The window of this step, and what is drafted and worth a look. A drafter that fails is switched off."""
        window = min([self.drafter.window, self.parts.window, *(gate.window(context) for gate in self.parts.gates)])
        if not self.cached.croppable:
            if self.cached.croppable is False and self.drafter.may_reject:
                raise DecodeError(refusal(self.cached.model))
            window = 0  # recurrent: one token at a time; or not known before the first forward (a one-token prompt)
        try:
            proposal = self.drafter.propose(context, window)
            proposal.check(window, self.cached.vocab)
        except Exception as error:
            if not self.drafter.may_reject:
                raise  # a given text: without it there is nothing to decode
            self._drafting_off(context, f"failed ({type(error).__name__}: {error})")
            return 0, Proposal()
        if len(proposal):
            proposal = replace(proposal, mode=proposal.mode or self.drafter.mode)  # gates learn by who proposed
            proposal = proposal.first(max(0, min([window, *(g.trim(context, proposal) for g in self.parts.gates)])))
        return window, proposal

    # -- steps -------------------------------------------------------------------------------------------------

    def _prefill(self, context: Context) -> Iterator[Step]:
        before = time.perf_counter_ns()
        blocks = self.cached.prefill(
            context.ids[:-1], self.prefill_block, all_logits=self._prompt_logits, cut=self._first_row
        )
        for start, part in blocks:
            forward_ns = time.perf_counter_ns() - before
            self._remember(context, start, len(part))
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
        self._obey(context)
        t0 = time.perf_counter_ns()
        window, proposal = self._propose(context)
        t1 = time.perf_counter_ns()
        if self._effects is not None:
            self._effects.without(len(context.ids) - 1, lambda: self._once(context.ids[-1]))
        block = [context.ids[-1], *proposal.ids]
        logits = self.cached.forward(block)
        if len(proposal) and self.cached.croppable and not all(_finite(logits)):
            # behind a causal mask 0 * NaN is NaN: a bad draft spoils the rows before it, so decide without drafts
            self.cached.keep(len(block))
            window, block = 0, block[:1]
            proposal = Proposal() if self.drafter.may_reject else self.drafter.propose(context, 0)
            logits = self.cached.forward(block)
        t2 = time.perf_counter_ns()
        verdicts = self._accept(context, logits, proposal)
        tokens = verdicts.tokens
        # where the logits were not finite the row stays, as evidence, but no token was chosen
        next_ids = [*tokens, -1] if self._finish == "non_finite" else tokens
        self.cached.keep(len(block) - len(next_ids))
        pos = len(context.ids) - 1
        truth = self._remember(context, pos, len(next_ids))
        accept_ns = time.perf_counter_ns() - t2
        step = Step(
            context.step, self._seq, proposal.mode or self.drafter.mode, pos, tuple(block[: len(next_ids)]),
            tuple(next_ids), text=verdicts.text, window=window, accepted=verdicts.accepted,
            drafts=tuple(
                verdict.drafts(
                    proposal, tokens, verdicts.accepted, pos + 1, frozenset(verdicts.believed), verdicts.refused, truth
                )
            ),
            reason="drafted" if len(proposal) else ("gated" if window < self.drafter.window else "plain"),
            draft_ns=t1 - t0, forward_ns=t2 - t1, accept_ns=accept_ns,
            predicted=proposal.states if self._keep_predicted else None,
            effect=None if self._effects is None else self._effects.effect(logits),
        )  # fmt: skip
        context.ids.extend(tokens)
        self.decode_steps += 1
        self._learn(context, step, logits, truth)
        self._tell(context, step)
        if self._finish == "non_finite":  # after the step: whoever looks at its states can say more
            self.sink.on_alarm(Alarm("non_finite", self._detail, {"position": step.pos + step.rows - 1}))
        return step

    def _once(self, token: int) -> Tensor:
        """Logits [1, vocab] of one more token, which is taken back."""
        if self.cached.croppable is False:
            raise DecodeError(f"{self.cached.model.config.model_type} cannot take a token back; leave out --measure.")
        logits = self.cached.forward([token])
        self.cached.keep(1)
        return logits

    def _remember(self, context: Context, pos: int, rows: int) -> Tensor | None:
        """Keep the states of committed rows for the drafters; the true lm_head inputs [row, dim] among them."""
        if context.history is None or self._watch is None:
            return None
        states = self._watch.rows(rows)
        context.history.add(pos, states)
        return states[:, -1]

    def _learn(self, context: Context, step: Step, logits: Tensor, truth: Tensor | None) -> None:
        """Let gates and drafter see a step that has been decided."""
        context.text = self.text.text
        if self._needs_logprobs:
            chosen = torch.tensor([token for token in step.next_ids if token >= 0], device=logits.device)
            log_p = torch.log_softmax(logits[: len(chosen)].float(), -1)
            context.logprobs += log_p.gather(-1, chosen[:, None])[:, 0].tolist()
        for gate in self.parts.gates:
            gate.observe(context, step)
        try:
            self.drafter.observe(context, step, truth)
        except Exception as error:  # noqa: BLE001 - as in _propose
            self._drafting_off(context, f"failed ({type(error).__name__}: {error})")

    def _accept(self, context: Context, logits: Tensor, proposal: Proposal) -> verdict.Verdicts:
        """Tokens to commit (at least one, unless nothing is finite), and what became of the drafts among them."""
        found = verdict.Verdicts()
        for slot, finite in enumerate(_finite(logits)):
            position = len(context.ids) + slot
            if not finite:
                self._finish = "non_finite"
                self._detail = f"the logits at position {position - 1} are not finite"
                break
            drafted = slot < len(proposal)
            draft = proposal.ids[slot] if drafted else proposal.then
            distribution = proposal.distributions[slot] if drafted and proposal.distributions is not None else None
            scores = self.sampler.scores(context.ids + found.tokens if self.sampler.processors else [], logits[slot])
            place = Slot(scores, self._seq, position, draft, distribution)
            token, taken = self._policy.decide(place)
            found.tokens.append(token)
            found.accepted += taken and drafted
            if self.parts.lossy and taken and drafted and self._policy.choose(place) != token:
                found.believed.append(slot)
            if draft is not None and not taken:
                found.refused = verdict.why_refused(self.drafter, draft, token, logits[slot], scores)
            fresh = self.text.add(token)
            found.text += fresh
            self._finish = self._ending.reason(
                context, found.tokens, self.text.text, fresh,
                eos=self.sampler.eos, given=self.drafter.mode == "forced",
            )  # fmt: skip
            if self._finish or not taken:
                break
        return found

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
