"""How an early-warning score is made for a model, from texts to a file: texts, features, fit, evaluation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sotscope.capture.plan import make_plan
from sotscope.config import PromptConfig, RunConfig
from sotscope.decode.sampling import end_ids
from sotscope.health.early_model import FILE, EarlyModel, feature_names
from sotscope.health.rows import watched_layers
from sotscope.models.load import Loaded
from sotscope.models.prompt_file import PromptLine
from sotscope.preparation import make_prompt
from sotscope.training.corpus import Sample, own_text, read_corpus, write_corpus
from sotscope.training.early_fit import auc, calibration, feature_groups, fit_score, predict, thresholds, warned
from sotscope.training.early_rows import Looks, choose, collect
from sotscope.training.generate import continue_batch
from sotscope.training.recipe import Watcher, fast_copy, fingerprints

BATCH = 32


@dataclass(frozen=True)
class HealthTraining:
    """One training: on texts of ``data`` files, or on what the model answers greedily to ``prompts``, or on about
    ``tokens`` of its own text. Answers have ``new_tokens``; ``texts`` are trained on at most."""

    data: tuple[Path, ...] = ()
    prompts: tuple[PromptLine, ...] = ()
    tokens: int = 0
    new_tokens: int = 512
    texts: int = 1500
    seed: int = 0


def train_health(loaded: Loaded, settings: HealthTraining, out: Path, work: Path, watcher: Watcher) -> EarlyModel:
    """Fit the score and save it in the folder ``out``; texts and features are kept in ``work`` and used again.

    Raises TrainingError for data that cannot be read, or in which too little loops.
    """
    samples, sources = gather(loaded, settings, work, watcher)
    chosen, weights = choose(samples, settings.texts, settings.seed)
    looks = collect(loaded, chosen, weights, work, watcher)
    layers = watched_layers(make_plan(loaded.model, []).layers)
    found = fit_model(looks, loaded.name, fingerprints(loaded.model), layers, watcher)
    found.figures["data"] = sources
    found.save(out / FILE)
    return found


def fit_model(
    looks: Looks, name: str, marks: dict[str, Any], layers: Sequence[int], watcher: Watcher
) -> EarlyModel:  # fmt: skip
    """All scores, fitted to the training part; thresholds come of what scores fitted to other texts say there."""
    train, test, names = looks.part(test=False), looks.part(test=True), feature_names(len(layers))
    groups = feature_groups(len(layers))
    scores, areas = {}, {}
    watcher.stage("fitting", len(groups))
    for number, (group, features) in enumerate(groups.items()):
        scores[group], inside = fit_score(train, features, names)
        outside = predict(scores[group], test, names)
        areas[group] = {"cross_validated": auc(train, inside), "unseen": auc(test, outside)}
        if group == "all":
            by_rows, by_texts = thresholds(train, inside)
            chance = outside
        watcher.progress(number + 1)
    figures = {
        "auc": areas,
        "unseen": {
            "texts": int(test.test.sum()), "looks": len(test.left), "loop_soon": int(test.soon.sum()),
            **calibration(test, chance),
            "at_threshold_rows": warned(test, chance, by_rows), "at_threshold_texts": warned(test, chance, by_texts),
        },
        "train": {"texts": int((~train.test).sum()), "looks": len(train.left), "loop_soon": int(train.soon.sum())},
    }  # fmt: skip
    return EarlyModel(
        model=name, fingerprint=marks["fingerprint"], also=marks["also"], layers=list(layers), scores=scores,
        threshold_rows=round(by_rows, 5), threshold_texts=round(by_texts, 5), figures=figures,
    )  # fmt: skip


def gather(
    loaded: Loaded, settings: HealthTraining, work: Path, watcher: Watcher
) -> tuple[list[Sample], list[dict[str, Any]]]:
    """The texts, and where they come from."""
    samples: list[Sample] = []
    sources: list[dict[str, Any]] = []
    for path in settings.data:
        found = read_corpus(path)
        samples += found
        mark = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        sources.append({"file": path.name, "samples": len(found), "sha256": mark})
    if settings.prompts or settings.tokens:
        written = _written(loaded, settings, work, watcher)
        samples += written
        sources.append({"own": sum(len(sample.new_ids) for sample in written), "samples": len(written)})
    return samples, sources


def _written(loaded: Loaded, settings: HealthTraining, work: Path, watcher: Watcher) -> list[Sample]:
    """What the model writes, greedily; the same request finds it in ``work``."""
    marks = fingerprints(loaded.model)["fingerprint"]
    request = json.dumps(
        [marks, settings.tokens, settings.new_tokens, settings.seed, [vars(p) for p in settings.prompts]]
    )
    path = work / f"loops-{hashlib.sha256(request.encode()).hexdigest()[:16]}.jsonl.gz"
    if path.is_file():
        return read_corpus(path)
    fast = fast_copy(loaded)
    if settings.prompts:
        samples = _answers(fast, settings, watcher)
    else:
        watcher.stage("writing", settings.tokens)
        samples = list(
            own_text(
                fast, settings.tokens, seed=settings.seed, new_tokens=settings.new_tokens, greedy_share=1.0,
                test_share=0.2, progress=watcher.progress,
            )
        )  # fmt: skip
    work.mkdir(parents=True, exist_ok=True)
    write_corpus(path, samples)
    return samples


def _answers(loaded: Loaded, settings: HealthTraining, watcher: Watcher) -> list[Sample]:
    stop = end_ids(loaded.model.generation_config)
    watcher.stage("writing", len(settings.prompts))
    samples = []
    for start in range(0, len(settings.prompts), BATCH):
        lines = settings.prompts[start : start + BATCH]
        prompts = [make_prompt(loaded, RunConfig(input=given(line))).ids for line in lines]
        answers = continue_batch(loaded.model, prompts, settings.new_tokens, stop)
        samples += [Sample(line.kind or "chat", p, a) for line, p, a in zip(lines, prompts, answers, strict=True)]
        watcher.progress(start + len(lines))
    return samples


def given(line: PromptLine) -> PromptConfig:
    """A line of a prompts file as a recording takes it."""
    return PromptConfig(prompt=line.prompt, messages=line.messages, system=line.system, raw=line.raw)
