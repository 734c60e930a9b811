"""Text that a drafter is trained on: the model's own, because a drafter must guess what this model will say.

Prompts are invented by the model itself: given the opening of a user's turn it writes the question (Magpie, Xu et al.
2024, arXiv 2406.08464); openings of prose and code come from Python's own documentation and sources.
"""

from __future__ import annotations

import gzip
import json
import random
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch

from sotscope.decode.sampling import end_ids
from sotscope.errors import TrainingError
from sotscope.models.load import Loaded
from sotscope.training.generate import continue_batch

BATCH = 256
SMALLEST_BATCH = 16
PROMPT_TOKENS = 48
"""Longest prompt the model may invent."""
KINDS = {"chat": 0.6, "raw": 0.15, "code": 0.15, "copy": 0.1}
"""Shares of the kinds of text."""
_MARK = "\u2063MARK\u2063"


@dataclass(frozen=True)
class Sample:
    """One prompt and what the model said. ``split`` is train or test; ``greedy`` False: tokens were sampled."""

    kind: str
    prompt_ids: list[int]
    new_ids: list[int]
    split: str = "train"
    greedy: bool = True
    source: str = "own"

    @property
    def ids(self) -> list[int]:
        return [*self.prompt_ids, *self.new_ids]


def read_corpus(path: Path) -> list[Sample]:
    """Samples of a JSON-lines file (gzip by its suffix). Raises TrainingError naming the line that is wrong."""
    opener: Any = gzip.open if path.suffix == ".gz" else open
    samples = []
    number = 0
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                number += 1
                data = json.loads(line)
                known = {name: data[name] for name in Sample.__dataclass_fields__ if name in data}
                sample = Sample(**known)
                if not all(isinstance(i, int) for i in sample.ids) or not sample.prompt_ids:
                    raise TypeError("prompt_ids and new_ids are lists of token ids, the prompt not empty")
                samples.append(sample)
    except OSError as error:
        raise TrainingError(f"cannot read {path}: {error.strerror or error}.") from error
    except (ValueError, TypeError, EOFError) as error:
        raise TrainingError(f"{path}, line {number}: {error}.") from error
    if not samples:
        raise TrainingError(f"{path} holds no samples.")
    return samples


def write_corpus(path: Path, samples: Iterable[Sample]) -> None:
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as out:
        out.writelines(json.dumps(asdict(sample)) + "\n" for sample in samples)


def own_text(
    loaded: Loaded,
    tokens: int,
    *,
    seed: int = 0,
    new_tokens: int = 192,
    greedy_share: float = 0.8,
    test_share: float = 1 / 12,
    batch: int = BATCH,
    progress: Callable[[int], None] = lambda done: None,
) -> Iterator[Sample]:
    """The model's answers to prompts of its own making, about ``tokens`` of them in all.

    Deterministic with ``seed`` (on one machine: batched sums differ between machines). ``progress`` is told how many
    tokens there are.
    """
    chance = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    stop = end_ids(loaded.model.generation_config)
    openings = _Openings(loaded, chance, generator, stop)
    seen: set[tuple[int, ...]] = set()
    done = 0
    while done < tokens:
        # answers are often shorter than they may be, and some invented prompts are dropped
        count = min(batch, max(SMALLEST_BATCH, 2 * (tokens - done) // new_tokens))
        kinds = chance.choices(list(KINDS), list(KINDS.values()), k=count)
        prompts = [(k, p) for k, p in openings.some(kinds) if tuple(p) not in seen]
        seen.update(tuple(p) for _, p in prompts)
        greedy = chance.random() < greedy_share or not done  # what is held out must have some
        answers = continue_batch(
            loaded.model, [p for _, p in prompts], new_tokens, stop,
            temperature=0.0 if greedy else 0.8, generator=generator,
        )  # fmt: skip
        for (kind, prompt), answer in zip(prompts, answers, strict=True):
            split = "test" if chance.random() < test_share else "train"
            yield Sample(kind, prompt, answer, split, greedy)
        done += sum(map(len, answers))
        progress(min(done, tokens))


class _Openings:
    """Prompts of each kind. Without a tokenizer, or without a chat template, all of them are raw."""

    def __init__(self, loaded: Loaded, chance: random.Random, generator: torch.Generator, stop: frozenset[int]) -> None:
        self._loaded = loaded
        self._chance = chance
        self._generator = generator
        self._stop = stop
        self._prose = [text for text in topics.values() if len(text) > 400]
        self._code = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        self._frame = _chat_frame(loaded.tokenizer)

    def some(self, kinds: list[str]) -> Iterator[tuple[str, list[int]]]:
        if self._loaded.tokenizer is None:
            vocab = int(self._loaded.model.config.get_text_config().vocab_size)
            yield from (("raw", [self._chance.randrange(vocab) for _ in range(8)]) for _ in kinds)
            return
        if self._frame is None:
            kinds = ["raw" if kind in ("chat", "copy") else kind for kind in kinds]
        count = kinds.count("chat")
        if count:
            yield from (("chat", prompt) for prompt in self._questions(count))
        for kind in kinds:
            if kind == "copy":
                yield kind, self._copy()
            elif kind != "chat":
                yield kind, self._encode(self._piece(kind, self._chance.randrange(40, 240)))

    def _questions(self, count: int) -> Iterator[list[int]]:
        """Questions the model writes after the opening of a user's turn; those without an end are dropped."""
        assert self._frame is not None
        before, after = self._frame
        temperature = self._chance.choice((0.8, 1.0))
        written = continue_batch(
            self._loaded.model, [before] * count, PROMPT_TOKENS, self._stop,
            temperature=temperature, generator=self._generator,
        )  # fmt: skip
        for tokens in written:
            if len(tokens) > 4 and tokens[-1] in self._stop:
                yield [*before, *tokens[:-1], *after]

    def _copy(self) -> list[int]:
        assert self._frame is not None
        ask = self._chance.choice(
            (
                "Repeat this text word for word:\n\n", "Fix the spelling and return the text:\n\n",
                "Add comments to this code:\n\n", "Rename the variables in this code:\n\n", "Copy the following.\n\n",
                "Translate the comments, keep the code:\n\n", "Print this again, unchanged:\n\n",
            )
        )  # fmt: skip
        text = self._piece(self._chance.choice(("raw", "code")), self._chance.randrange(150, 500))
        before, after = self._frame
        return [*before, *self._encode(ask + text), *after]

    def _piece(self, kind: str, length: int) -> str:
        if kind == "raw":
            text = " ".join(self._chance.choice(self._prose).split())
        else:
            text = self._chance.choice(self._code).read_text(encoding="utf-8", errors="replace")
        begin = self._chance.randrange(max(1, len(text) - length))
        at = text.find("\n" if kind == "code" else ". ", begin)
        begin = at + (1 if kind == "code" else 2) if at >= 0 else begin
        return text[begin : begin + length].strip("\n") or text[:length]

    def _encode(self, text: str) -> list[int]:
        return [int(i) for i in self._loaded.tokenizer(text, add_special_tokens=False)["input_ids"]]


def _chat_frame(tokenizer: Any) -> tuple[list[int], list[int]] | None:
    """Token ids before and after the user's words in the chat template."""
    if not getattr(tokenizer, "chat_template", None):
        return None
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": _MARK}], tokenize=False, add_generation_prompt=True
    )
    before, _, after = text.partition(_MARK)
    first, last = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in (before, after))
    return first, last
