"""How fast each mode decodes, next to our own plain loop (`ar`) and to transformers' ``generate``, on the same weights.

Greedy, policy exact, one process. For every prompt and round the arms take turns, each between two runs of `ar`:
``ar a ar b ar``, the next time in another order. An arm is compared only with the mean of its two neighbours, because
a shared machine is half as fast in one minute as in the next.

What is timed: the tokens after the first block an arm delivers, to the end of the text (eos counts, nothing after it
does). The time to the first block (prefill and first choice) is ``ttft_ms`` and in no ratio. An arm's clock thus runs
from the arrival of its first block to that of its last; `ar` is timed over those very tokens, from the arrival of the
last token of the arm's first block. That is the same for our loop, whose first step feeds the last prompt token, for
``generate``, whose prefill chooses the first token, and for a first block of several tokens, which then counts for
nobody. Arrival is when the step is committed (ours) or when the streamer is given the tokens (``generate``). Where an
output differs from that of `ar`, only whole blocks of the common beginning are timed.

A prompt's figure is the median of its rounds, a kind's the median of its prompts, the overall one the geometric mean of
the kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sotscope.bench.decode_arms import PEERS, Arm, Decoded, MakeDrafter, Ours, Peer
from sotscope.bench.decode_prompts import bench_prompts, first_of_each_kind
from sotscope.bench.decode_report import Sample, conditions, figures
from sotscope.bench.stats import Report
from sotscope.capture.plan import anatomy
from sotscope.catalog import DRAFTERS
from sotscope.checking import Verdict, compare
from sotscope.config import PromptConfig, RunConfig
from sotscope.decode.sampling import Sampler
from sotscope.errors import DecodeError, SotscopeError
from sotscope.models.load import Loaded, load
from sotscope.models.prompt_file import PromptLine
from sotscope.preparation import make_prompt

MODES = ("lookup", "sot", "dmtd", "combine")
"""What is measured beside `ar` where nothing else is asked for."""
WARM_UP = 8
"""Tokens of the run that warms an arm up, and shows whether it can be had at all."""
Advance = Callable[[int, int], None]
"""Told how many runs are done, and of how many."""


@dataclass(frozen=True)
class Task:
    """A prompt of the bench with its token ids."""

    kind: str
    ids: list[int]


def run(
    report: Report = lambda text: None,
    *,
    model: str | Loaded = "smollm2",
    prompts: Path | None = None,
    quick: bool = False,
    tokens: int | None = None,
    rounds: int = 1,
    modes: Sequence[str] = MODES,
    drafters: Mapping[str, MakeDrafter] | None = None,
    advance: Advance = lambda done, total: None,
) -> dict[str, Any]:
    """Figures of ``bench decode``; ``decode_report.figures`` says what each key means.

    ``tokens`` (128, quick: 48) are decoded of each prompt in each of ``rounds`` (1); ``quick`` takes two
    prompts a kind. ``drafters`` are arms of your own: a name, and what makes the drafter for the ids of a prompt.
    Modes that this model has no trained drafter for are left out with a note. Raises PromptError for a bad prompts
    file, DecodeError for an unknown mode or prompts that are all too long.
    """
    tokens = tokens or (48 if quick else 128)
    wanted = [mode for mode in dict.fromkeys(modes) if mode != "ar"]
    _refuse(wanted)
    chosen = bench_prompts(prompts)
    loaded = load(model, report=report) if isinstance(model, str) else model
    tasks, notes = _tasks(loaded, first_of_each_kind(chosen, 2) if quick else chosen, tokens)
    bench = _Bench(loaded, tasks, tokens, notes, report)
    bench.prepare(wanted, drafters or {})
    for number in range(rounds):
        for index in range(len(tasks)):
            report(f"round {number + 1} of {rounds}: prompt {index + 1} of {len(tasks)} ({tasks[index].kind})")
            bench.turn(number, index)
            advance(number * len(tasks) + index + 1, rounds * len(tasks))
    kinds = list(dict.fromkeys(task.kind for task in tasks))
    ours = ["ar", *(name for name in bench.arms if name not in PEERS)]
    counts = {kind: sum(task.kind == kind for task in tasks) for kind in kinds}
    about = conditions(loaded, bench.samples, tokens=tokens, rounds=rounds, prompts=counts, notes=bench.notes)
    return {**figures(bench.samples, kinds, ours, [name for name in bench.arms if name in PEERS]), "conditions": about}


class _Bench:
    """The arms that are left, and what they did."""

    def __init__(self, loaded: Loaded, tasks: list[Task], tokens: int, notes: list[str], report: Report) -> None:
        self._loaded, self._tasks, self._tokens = loaded, tasks, tokens
        self.notes = notes
        self._report = report
        self._ar = Ours(loaded, "ar", tokens)
        self.arms: dict[str, Arm] = {}
        self.samples: list[Sample] = []
        self._references: dict[int, Decoded] = {}
        self._verdicts: dict[tuple[int, tuple[int, ...]], Verdict] = {}

    def prepare(self, modes: Sequence[str], drafters: Mapping[str, MakeDrafter]) -> None:
        """Warm every arm up; one that cannot decode here is left out, with a note."""
        ids = self._tasks[0].ids
        Ours(self._loaded, "ar", WARM_UP)(ids)

        def arms(tokens: int) -> dict[str, Arm]:
            made: dict[str, Arm] = {mode: Ours(self._loaded, mode, tokens) for mode in modes}
            made |= {name: Ours(self._loaded, name, tokens, make) for name, make in drafters.items()}
            return made | {name: Peer(self._loaded, tokens, options) for name, options in PEERS.items()}

        self.arms = arms(self._tokens)
        for name, short in arms(WARM_UP).items():
            self._report(f"warming up {name}")
            self._decode(name, short, ids)

    def turn(self, number: int, index: int) -> None:
        """All arms on one prompt, each between two runs of `ar`, beginning with another one each time."""
        task, names = self._tasks[index], list(self.arms)
        first = (number + index) % max(1, len(names))
        before = self._ar(task.ids)
        self._references.setdefault(index, before)
        self._add(index, "ar", before, ())
        for name in names[first:] + names[:first]:
            found = self._decode(name, self.arms[name], task.ids)
            after = self._ar(task.ids)
            self._add(index, "ar", after, ())
            if found is not None:
                self._add(index, name, found, (before, after))
            before = after

    def _decode(self, name: str, arm: Arm, ids: Sequence[int]) -> Decoded | None:
        try:
            return arm(ids)
        except SotscopeError as error:
            why = str(error)
        except Exception as error:
            if name not in PEERS:
                raise
            why = f"{type(error).__name__}: {error}"  # what transformers refuses for this model
        del self.arms[name]
        self.samples = [sample for sample in self.samples if sample.arm != name]
        self.notes.append(f"{name} is left out: {why}")
        self._report(self.notes[-1])
        return None

    def _add(self, index: int, arm: str, decoded: Decoded, neighbours: tuple[Decoded, ...]) -> None:
        task, truth = self._tasks[index], self._references[index].tokens
        key = (index, decoded.tokens)
        if key not in self._verdicts:  # costs some forwards; there is seldom more than one answer to a prompt
            sampler = Sampler(self._loaded.model, len(task.ids), overrides={"do_sample": False})
            self._verdicts[key] = compare(
                self._loaded.model, task.ids, decoded.tokens, truth, steps=decoded.steps, sampler=sampler
            )
        verdict = self._verdicts[key]
        self.samples.append(
            Sample(task.kind, index, arm, decoded, neighbours, verdict.kind, verdict.index, verdict.margin)
        )


def _refuse(modes: Sequence[str]) -> None:
    for mode in modes:
        DRAFTERS.get(mode)
        if mode == "forced":
            raise DecodeError("mode forced decodes a given text; there is nothing to measure.")


def _tasks(loaded: Loaded, prompts: Sequence[PromptLine], tokens: int) -> tuple[list[Task], list[str]]:
    """The prompts that fit, and notes on those that do not."""
    room = anatomy(loaded.model).context_length
    tasks, long = [], 0
    for entry in prompts:
        given = PromptConfig(prompt=entry.prompt, messages=entry.messages, system=entry.system, raw=entry.raw)
        ids = make_prompt(loaded, RunConfig(input=given)).ids
        if room is not None and len(ids) + tokens > room:
            long += 1
        else:
            tasks.append(Task(entry.kind, ids))
    if not tasks:
        raise DecodeError(
            f"no prompt fits into the model's context of {room} with {tokens} tokens; take fewer --tokens."
        )
    return tasks, [
        f"{long} prompts are left out: too long for the context of {room} with {tokens} tokens"
    ] if long else []
