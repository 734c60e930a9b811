"""A recording: model, capture, decode loop, store and health wired together. The only file that does."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sotscope.analysis.head import FILE, cached
from sotscope.capture.intervening import Intervening
from sotscope.capture.measure import Measure
from sotscope.capture.selfcheck import SelfCheck
from sotscope.capture.tap import Tap
from sotscope.capture.watch import StateWatch
from sotscope.config import RunConfig
from sotscope.decode.cache import CachedModel
from sotscope.decode.contracts import Drafter, Parts
from sotscope.decode.controls import Controls
from sotscope.decode.loop import Decoder
from sotscope.decode.remedies import BanNgrams, For, remedies
from sotscope.decode.sampling import Sampler
from sotscope.errors import DecodeError
from sotscope.events import Alarm, Branch, Piece, Step
from sotscope.head_file import save_head
from sotscope.health.contracts import Action
from sotscope.health.rows import rows_of_run, watched_of
from sotscope.models.load import Loaded
from sotscope.models.pieces import PieceTable
from sotscope.models.prompt import Segmenter
from sotscope.monitoring import Monitoring
from sotscope.parts import SAMPLING
from sotscope.preparation import check_ids, fields_of, subject_of, versions
from sotscope.prepared import Prepared
from sotscope.row_sink import RowSink
from sotscope.store.reader import Run, open_run
from sotscope.store.writer import RunWriter
from sotscope.summary import Summary, check_rows, summarise

NOT_RUN = "not run"
INTERVENTIONS = "interventions"
"""The one change of ``Controls`` that is no setting of decoding."""


class Recording:
    """One sequence being decoded into one run. Made by ``recording``."""

    def __init__(
        self,
        loaded: Loaded,
        settings: RunConfig,
        *,
        drafter: Drafter | None = None,
        processors: Sequence[Any] = (),
        report: Callable[[str], None] = lambda text: None,
        on_alarm: Callable[[Alarm], None] | None = None,
    ) -> None:
        self.prepared = Prepared(loaded, settings, drafter=drafter, report=report)
        self.loaded, self.settings, self.path = loaded, settings, self.prepared.path
        self.retracted: list[str] = []
        """What recoveries took back, one line each."""
        self.notices: list[str] = []
        """What did not work and does not matter to the recording."""
        self.check = SelfCheck(skipped=NOT_RUN)
        self.summary: Summary | None = None
        capture, plan, prompt = settings.capture, self.prepared.plan, self.prepared.prompt
        given = self.prepared.given
        self.intervening = Intervening(plan, settings.interventions, given, module_names=capture.modules)
        self.measure = Measure(self.intervening) if settings.measure else None
        self._budget = prompt.written + self.prepared.limit
        """Most new tokens of the current sequence, counted from the end of its prompt."""
        self.tap = Tap(plan, top_k=capture.top_k, max_keys=self.prepared.max_keys)
        self._given = (list(prompt.ids[:given]), list(prompt.segments[:given]))
        """The prompt of the current sequence, and its segments."""
        self._segmenter = Segmenter(loaded.tokenizer)
        self._branch = Branch(0, given)
        """The sequence that is being decoded."""
        self._sequences = 1
        self._remedies: list[For] = []
        self.sink = RowSink(
            self.tap, self.prepared.spec, self.intervening, self._segmenter, measured=settings.measure,
            prompt_logits=capture.prompt_logits, on_alarm=on_alarm, lossy=lambda: self.decoder.parts.lossy,
        )  # fmt: skip
        self.sink.begin(self._branch, *self._given, prompt.ids[given:])
        subject = subject_of(loaded, plan, settings.health)
        self.monitoring = Monitoring(settings.health, subject, fields_of(plan), self.sink.tell)
        self.sink.monitoring = self.monitoring
        self.forwards = 0
        self.decode_s = 0.0
        """Of all sequences: forwards that chose tokens, seconds."""
        self.controls = Controls(self._checked)
        """Changes mode, window, policy, gates, sampling and interventions at the next step: ``controls.set(mode="sot",
        interventions=["prune:k=3"])``. From any thread."""
        self._processors = processors
        self._start()

    def _sampler(self) -> Sampler:
        return Sampler(
            self.loaded.model,
            self._branch.prompt_length,
            overrides=self.prepared.maker.settings.overrides(),
            processors=[*self._processors, *self._remedies],
        )

    def _checked(self, changes: Mapping[str, Any]) -> None:
        """Raises a SotscopeError, in one line, for changes that cannot be made."""
        self.prepared.maker.checked({name: value for name, value in changes.items() if name != INTERVENTIONS})
        if INTERVENTIONS in changes:
            Intervening(self.prepared.plan, changes[INTERVENTIONS], len(self._given[0]))

    def _change(self, changes: Mapping[str, Any]) -> Parts:
        rest = {name: value for name, value in changes.items() if name != INTERVENTIONS}
        parts = self.prepared.maker.change(rest) if rest else self.decoder.parts
        if INTERVENTIONS in changes:
            self._intervene(changes[INTERVENTIONS], len(self.decoder.context.ids) - 1)
        if SAMPLING & rest.keys():
            self.decoder.sampler = self._sampler()
        return parts

    def _intervene(self, configs: Sequence[Any], position: int) -> None:
        """These interventions from ``position`` on; the run says which bit of a row's ``intervened`` is which."""
        self.intervening.set(configs, position)
        self.sink.tell(
            "interventions", pos=position, seq=self._branch.seq, names=self.intervening.names,
            active=[config.model_dump() for config in self.intervening.configs if config.active],
        )  # fmt: skip

    def _decoder(self, parts: Parts, cached: CachedModel | None = None) -> Decoder:
        """The decode loop of the current sequence; ``cached`` holds the first of its tokens already."""
        decode, capture = self.settings.decode, self.settings.capture
        block = max(1, min(decode.prefill_block, (capture.ring_mb << 20) // (2 * max(1, self.prepared.spec.row_bytes))))
        sampler = self._sampler()
        return Decoder(
            self.loaded.model,
            parts.drafter,
            sampler,
            sink=self.sink,
            parts=parts,
            controls=self.controls,
            rebuild=self._change,
            watch=StateWatch(self.loaded.model),
            tokenizer=self.loaded.tokenizer,
            seed=decode.seed,
            stop=[*decode.stop, *sampler.stop],
            max_new_tokens=self._budget,
            context_length=self.prepared.context_length,
            prefill_block=block,
            prompt_logits=capture.prompt_logits,
            last_row=capture.last_row,
            keep_predicted=decode.draft.record_states,
            draw_drafts=decode.draft.sample,
            cached=cached,
            first_row=max(0, self._branch.parent_pos),
            effects=self.measure,
            seq=self._branch.seq,
        )

    def _start(self) -> None:
        """Decoder and writer; the writer last, so that nothing is created when a setting is refused."""
        decode, capture = self.settings.decode, self.settings.capture
        self.decoder = self._decoder(self.prepared.parts)
        sampler = self.decoder.sampler
        self.sink.was_lossy = self.prepared.parts.lossy
        pieces = PieceTable(self.loaded.tokenizer).piece if self.loaded.tokenizer is not None else None
        about = self.loaded.describe()
        self.writer = self.sink.writer = RunWriter(
            self.path,
            self.prepared.spec,
            attributes={"model": about, "family": self.prepared.plan.anatomy.family_name},
            piece_of=pieces,
            ring_bytes=capture.ring_mb << 20,
            durable=capture.durable,
            background=self.loaded.model.device.type != "cpu",
            on_alarm=self.sink.raise_alarm,
        )
        if settings_given := self.settings.interventions:
            self._intervene(settings_given, 0)
        self._keep_head(about["fingerprint"], pieces)
        self.writer.sequence(self._branch)
        self.writer.event(
            "config",
            settings=self.settings.model_dump(mode="json"),
            generation=sampler.settings(),
            sampled=sampler.sample,
            stop=[*decode.stop, *sampler.stop],
            seed=decode.seed,
            policy=self.decoder.parts.judge,
            lossy=self.sink.was_lossy,
            versions=versions(),
            warnings=[*self.prepared.prompt.warnings, *self.settings.notices, *self.notices, *self.monitoring.left_out],
            monitors=self.monitoring.names,
            device=str(self.loaded.model.device),
        )

    def _keep_head(self, fingerprint: str, pieces: Callable[[int], Piece] | None) -> None:
        """Final norm and lm_head, for the lens: in the run, or once a model in the cache."""
        path = self.path / FILE if self.settings.capture.embed_head else cached(fingerprint)
        problem = save_head(self.prepared.plan, path, fingerprint, pieces)
        self.notices += [problem] if problem else []

    # -- decoding ----------------------------------------------------------------------------------------------

    def steps(self) -> Generator[Step]:
        """Decode; yields every step after it has been handed to the store."""
        given, _ = self._given
        return self._decode(self.decoder.run(given, self.prepared.prompt.ids[len(given) :]))

    def branch(self, parent: int, pos: int, token: int) -> Generator[Step]:
        """Go on from position ``pos`` of sequence ``parent`` as a new sequence whose token there is ``token``.

        What is being decoded ends there (``branched``). Raises DecodeError for a position that has no row before it,
        PromptError for a token the model does not have, StoreError for an unknown sequence; then nothing has changed.
        """
        run = self._so_far()
        tokens = run.tokens_of(parent)
        if not 0 < pos <= len(tokens):
            raise DecodeError(f"position {pos} of sequence {parent} cannot be branched at: it has {len(tokens)} rows.")
        ids = [*(int(i) for i in tokens.ids[:pos]), token]
        check_ids(ids, self.prepared.plan)
        self._end_sequence("branched")
        self._remedies, self._budget = [], self.prepared.limit
        self._segmenter.start(ids[:-1])
        self._given = (ids, [*tokens.segments[:pos], self._segmenter.add(token)])
        steps = self._continue(parent, pos, [], self.prepared.maker.parts(), None)
        self.writer.event("branch", seq=self._branch.seq, parent=parent, pos=pos, token=token)
        return self._decode(steps)

    def _continue(
        self, parent: int, first_row: int, written: Sequence[int], parts: Parts, cached: CachedModel | None
    ) -> Generator[Step]:
        """Decode a new sequence: the given prompt and what is written; rows below ``first_row`` are the parent's."""
        given, segments = self._given
        self._branch = Branch(self._sequences, len(given), parent, first_row)
        self._sequences += 1
        if self.intervening.names:  # what was changed later in the parent is not changed here: what holds now holds
            self._intervene(self.intervening.configs, first_row)
        run = self._so_far()
        self.monitoring.restart(rows_of_run(run, run.rows(parent)[:first_row], watched_of(run)))
        self.sink.begin(self._branch, given, segments, written)
        self.decoder = self._decoder(parts, cached)
        self.writer.sequence(self._branch)
        return self.decoder.run(given, written)

    def _so_far(self) -> Run:
        self.writer.flush()
        return open_run(self.path, live=True)

    @property
    def alarms(self) -> list[Alarm]:
        """All that were raised."""
        return self.sink.alarms

    @property
    def rows(self) -> int:
        """How many are committed."""
        return self.writer.rows

    @property
    def sequence(self) -> int:
        """The sequence that is being decoded, or was last."""
        return self._branch.seq

    def _decode(self, steps: Generator[Step]) -> Generator[Step]:
        """Pass steps on; where a recovery is due, those of the sequence that it begins follow."""
        try:
            while (step := next(steps, None)) is not None:
                yield step
                action = self._due()
                if action is not None and action.stop:
                    self._end_sequence("stopped")
                    return
                if action is not None:
                    steps.close()
                    steps = self._carry_out(action)
        finally:
            steps.close()
        if self.decoder.outcome is not None:
            self._end_sequence(self.decoder.outcome.finish_reason)

    # -- recovery ----------------------------------------------------------------------------------------------

    def recover(self, policy: str = "") -> None:
        """Recover at the next step boundary as if an alarm had just been raised (a person saw what no monitor did)."""
        self.monitoring.call(policy, self.decoder.context.ids, self.decoder.context.prompt_length)

    def _due(self) -> Action | None:
        """What a recovery asks for after this step. A given text is recorded as it is."""
        if self.monitoring.trouble is None or self.decoder.drafter.mode == "forced":
            return None
        return self.monitoring.plan(self.decoder.context.ids, self.decoder.context.prompt_length)

    def _carry_out(self, action: Action) -> Generator[Step]:
        """Retract what ``action`` does not keep, and decode on from there as a new sequence."""
        context, cached, parent = self.decoder.context, self.decoder.cached, self._branch.seq
        keep = max(action.keep, context.prompt_length)
        written = context.ids[context.prompt_length : keep]
        first_row = min(keep, max(1, action.keep)) - 1
        lost = len(context.ids) - keep
        self.sink.tell("retracted", seq=parent, pos=keep, tokens=lost)
        self.retracted.append(f"{lost} tokens are taken back; {action.note}")
        self._end_sequence("rolled_back")
        sampled = self.decoder.sampler.sample
        banned = [known for known in self._remedies if isinstance(known.processor, BanNgrams) and known.stop > keep]
        self._remedies = banned + remedies(
            keep, action.hold, ban=action.ban, penalty=action.penalty, temperature=action.temperature, sampled=sampled,
            seed=self.settings.decode.seed, seq=self._sequences,
        )  # fmt: skip
        parts = self.prepared.maker.change({"mode": action.mode}) if action.mode else self.prepared.maker.parts()
        if action.interventions:
            held = [{**more, "tokens": f"{first_row}-{keep + action.hold}"} for more in action.interventions]
            self.intervening.add(held)
            self.check = SelfCheck(skipped="a recovery changed what intervenes")
        # some rows are fed again: drafters look back at them, and a row's cosine is that to the one before it
        fresh = action.fresh or bool(self.intervening.configs)  # they remember rows, but only so many
        cached.rewind(0 if fresh else max(0, first_row - max(1, parts.drafter.context_rows)))
        return self._continue(parent, first_row, written, parts, cached)

    def _end_sequence(self, reason: str) -> None:
        """Note how the current sequence ended, once."""
        if self._branch.finish == "open":
            self._branch = replace(self._branch, finish=reason)
            for ended in self.monitoring.close(over=reason != "rolled_back"):
                self.sink.note(ended)
            self.decode_s += (self.decoder.outcome or self.decoder.so_far(reason)).decode_s
            self.forwards += self.decoder.decode_steps
            self.writer.sequence(self._branch)

    # -- the end -----------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Self-check, outcome, close."""
        outcome = self.decoder.outcome
        if outcome is None and self._branch.finish == "open":  # somebody stopped iterating
            self._end("interrupted", "stopped before the end")
            return
        self.writer.flush()
        wanted = self.settings.capture.self_check and self.check.skipped == NOT_RUN
        if wanted and self.writer.failure is None:
            self.check = check_rows(self)
        self._end(self._branch.finish, outcome.detail if outcome else "")

    def fail(self, error: BaseException) -> None:
        """Keep what is committed and note why it ended (also where that is the self-check)."""
        if self.summary is not None:  # the end was noted already; closing it was what failed
            self.writer.close(complete=False)
            return
        interrupted = isinstance(error, KeyboardInterrupt | GeneratorExit)
        detail = "" if interrupted else f"{type(error).__name__}: {error}"
        self._end("interrupted" if interrupted else "error", detail)

    def _end(self, reason: str, detail: str) -> None:
        self._end_sequence(reason)
        self.writer.flush()
        self.summary = summarise(self, reason)
        outcome = {k: v for k, v in vars(self.summary).items() if k not in ("run", "alarms", "bytes")}
        self.writer.event("outcome", **outcome, detail=detail)
        self.writer.close(complete=reason not in ("interrupted", "error"))
