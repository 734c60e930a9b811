"""What the early-warning score is fitted to: features of texts row by row, and how far each row is from a loop."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sotscope.capture.plan import make_plan
from sotscope.errors import TrainingError
from sotscope.health.contracts import Row
from sotscope.health.early import HORIZON, LEAST, Features
from sotscope.health.early_model import feature_names
from sotscope.health.loops import loop_start
from sotscope.health.rows import watched_layers
from sotscope.models.load import Loaded, fingerprint
from sotscope.training.corpus import Sample
from sotscope.training.recipe import Watcher
from sotscope.training.rows import text_rows

HEALTHY = 2
"""Healthy texts for each one that loops."""
HELD_OUT = 5
"""One prompt in so many is held out, where the data hold out none."""


@dataclass(frozen=True)
class Looks:
    """Looks at texts: ``features`` [look, feature]; ``left`` [look], tokens until the text loops (-1: it does not);
    ``text`` [look]; of each text, its ``weight`` (how many it stands for) and whether it is in the ``test`` part."""

    features: NDArray[np.float64]
    left: NDArray[np.int64]
    text: NDArray[np.int64]
    weight: NDArray[np.float64]
    test: NDArray[np.bool_]

    @property
    def soon(self) -> NDArray[np.bool_]:
        """Whether the text loops within the next ``HORIZON`` tokens."""
        return (self.left >= 0) & (self.left <= HORIZON)

    def part(self, *, test: bool) -> Looks:
        """The looks at texts of one part."""
        keep = self.test[self.text] == test
        return Looks(self.features[keep], self.left[keep], self.text[keep], self.weight, self.test)


def choose(samples: Sequence[Sample], texts: int, seed: int) -> tuple[list[Sample], list[float]]:
    """Greedy texts to train on, ``texts`` at most, and to test on; of each, how many like it there are.

    Of the training part all that loop are taken and ``HEALTHY`` times as many that do not; the test part stays as it
    is. A prompt is in one part only. Raises TrainingError where nothing loops, or everything does.
    """
    greedy = [sample for sample in samples if sample.greedy and len(sample.new_ids) > LEAST]
    tests = {_key(sample.prompt_ids) for sample in greedy if sample.split == "test"}
    tests = tests or {_key(sample.prompt_ids) for sample in greedy if int(_key(sample.prompt_ids), 16) % HELD_OUT == 0}
    test = [sample for sample in greedy if _key(sample.prompt_ids) in tests]
    train = [sample for sample in greedy if _key(sample.prompt_ids) not in tests]
    order = random.Random(seed)
    looping = [sample for sample in train if loop_start(sample.new_ids) is not None]
    healthy = [sample for sample in train if loop_start(sample.new_ids) is None]
    seen = {loop_start(sample.new_ids) is None for sample in test}
    if not looping or not healthy or len(seen) < 2:
        raise TrainingError(
            f"{len(looping)} of {len(train)} texts to train on loop, and of {len(test)} to test on "
            f"{sum(loop_start(s.new_ids) is not None for s in test)}; there must be some of both in both: give more "
            "prompts, or longer texts (--max-new-tokens)."
        )
    parts = []
    for part, share in ((looping, 1 / (1 + HEALTHY)), (healthy, HEALTHY / (1 + HEALTHY))):
        order.shuffle(part)
        kept = part[: min(max(1, round(texts * share)), len(looping) * (1 if part is looping else HEALTHY))]
        parts.append((kept, [len(part) / len(kept)] * len(kept)))
    (loops, loop_weights), (others, other_weights) = parts
    return [*loops, *others, *test], [*loop_weights, *other_weights, *([0.0] * len(test))]


def collect(loaded: Loaded, samples: Sequence[Sample], weights: Sequence[float], work: Path, watcher: Watcher) -> Looks:
    """The looks at ``samples``; those with weight 0 are the test part. Features of a text are kept in ``work``.

    Rows from which the text loops already are left out; so are the last ``HORIZON`` of a text that was cut off, because
    nobody knows how it went on.
    """
    plan = make_plan(loaded.model, [])
    ends = loaded.model.generation_config.eos_token_id
    stop = set(ends if isinstance(ends, list) else [ends])
    names = ",".join(feature_names(len(watched_layers(plan.layers))))
    folder = work / f"early-{fingerprint(loaded.model)}-{_key([*names.encode()])}"
    folder.mkdir(parents=True, exist_ok=True)
    watcher.stage("states", len(samples))
    features, left, text = [], [], []
    for number, sample in enumerate(samples):
        path = folder / f"{_key([len(sample.prompt_ids), *sample.ids])}.npy"
        if not path.is_file():
            np.save(path, table(text_rows(plan, sample.prompt_ids, sample.new_ids)))
        found = np.load(path)
        start = loop_start(sample.new_ids)
        written = found[:, 0].astype(np.int64) + 2 - len(sample.prompt_ids)
        last = len(sample.new_ids) - (0 if sample.new_ids[-1] in stop else HORIZON)
        keep = written < start if start is not None else written <= last
        features.append(found[keep, 1:])
        left.append(start - written[keep] if start is not None else np.full(int(keep.sum()), -1))
        text.append(np.full(int(keep.sum()), number))
        watcher.progress(number + 1)
    return Looks(
        np.concatenate(features), np.concatenate(left), np.concatenate(text),
        np.array(weights), np.array(weights) == 0,
    )  # fmt: skip


def table(rows: Iterable[Row]) -> NDArray[np.float64]:
    """[look, 1 + feature]: position and features of every look at a text."""
    features = Features()
    found, width = [], 0
    for row in rows:
        seen = features.observe(row)
        width = width or 1 + len(feature_names(0 if row.states is None else len(row.states)))
        if seen is not None:
            found.append([row.pos, *seen])
    return np.array(found, np.float64).reshape(-1, width)


def _key(numbers: Sequence[int]) -> str:
    return hashlib.sha256(np.array(numbers, np.int64).tobytes()).hexdigest()[:20]
