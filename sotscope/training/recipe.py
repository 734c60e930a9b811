"""How a drafter for a model is made, from text to a folder: corpus, features, fit, card."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from sotscope.capture.plan import anatomy
from sotscope.catalog import PREDICTORS
from sotscope.decode.predictors.bundle import CARD, Bundle, load_bundle, make_predictor
from sotscope.decode.predictors.contracts import Predictor, PredictorConfig
from sotscope.decode.sampling import end_ids
from sotscope.errors import TrainingError
from sotscope.models.load import Loaded, fingerprint
from sotscope.models.pieces import special_ids
from sotscope.training.corpus import Sample, own_text, read_corpus, write_corpus
from sotscope.training.features import Features, collect, open_features
from sotscope.training.fit import Basis, FitSettings, Report, fit
from sotscope.training.loss import native_dtype

KINDS = {"sot": "gru", "dmtd": "heads"}
"""The architecture a mode is trained with, unless another is asked for."""
CHECKPOINT = "checkpoint.pt"
SMALLEST = 4
"""Samples without which there is nothing to train on, or to hold out."""


@dataclass(frozen=True)
class TrainSettings:
    """One training. ``tokens`` of the model's own text are generated on top of ``data``; ``kind`` "" is the mode's."""

    mode: str
    kind: str = ""
    data: tuple[Path, ...] = ()
    tokens: int = 0
    slots: int = 5
    vocabulary: int = 8192
    start: Path | None = None
    """Folder of a drafter whose weights are gone on from."""
    fit: FitSettings = field(default_factory=FitSettings)


class Watcher(Protocol):
    """Is told how training goes: ``stage`` with how much there is to do, ``progress`` with how much is done."""

    def stage(self, name: str, total: int) -> None: ...

    def progress(self, done: int, note: str = "") -> None: ...

    def report(self, report: Report) -> None: ...


def train(
    loaded: Loaded, settings: TrainSettings, out: Path, work: Path, watcher: Watcher, *, resume: bool = False
) -> Bundle:
    """Train a drafter and save it in ``out``; text and features are kept in ``work`` and used again.

    Deterministic with the seed on one machine. Raises DecodeError for an unknown kind, TrainingError for too little
    text or a checkpoint of another training.
    """
    began = time.time()
    PREDICTORS.get(settings.kind or KINDS[settings.mode])  # before anything that takes long
    fast = fast_copy(loaded)
    samples, sources = gather(fast, settings, work, watcher)
    config = predictor_config(loaded.model, settings)
    features = _features(fast, samples, config.layers, work, watcher)
    del fast
    basis = make_basis(loaded, features, settings.vocabulary)
    torch.manual_seed(settings.fit.seed)
    predictor = make_predictor(config)
    predictor.start_from(*_last_block(loaded.model))
    if settings.start is not None:
        basis = _go_on_from(settings.start, predictor, loaded, basis)
    card: dict[str, Any] = {
        "mode": settings.mode,
        "base": {"name": loaded.name, **fingerprints(loaded.model)},
        "data": {"sources": sources, **_counts(features)},
        "start": _origin(settings.start),
        "settings": {**vars(settings.fit), "vocabulary": len(basis.vocabulary)},
        "versions": {name: version(name) for name in ("sotscope", "torch", "transformers")},
        "threads": torch.get_num_threads(),
        "parameters": sum(p.numel() for p in predictor.parameters()),
        "epochs": [],
    }
    bundle = Bundle(predictor, basis.vocabulary, card)
    out.mkdir(parents=True, exist_ok=True)
    _fit(bundle, features, basis, settings.fit, out, watcher, resume)
    card["minutes"] = round((time.time() - began) / 60, 1)
    bundle.save(out)
    (out / CHECKPOINT).unlink(missing_ok=True)
    return bundle


def _fit(
    bundle: Bundle, features: Features, basis: Basis, settings: FitSettings, out: Path, watcher: Watcher, resume: bool
) -> None:
    """Fit, with a checkpoint and a figure an epoch."""
    start, optimizer, file = 0, None, out / CHECKPOINT
    identity = _hash(
        [bundle.card["base"], bundle.card["data"], bundle.card["settings"], bundle.predictor.config.as_dict()]
    )
    if resume:
        start, optimizer = _restore(bundle, file, identity)
    total = math.ceil(settings.epochs * 1000)
    watcher.stage("fitting", total)

    def save(step: int, state: torch.optim.Optimizer) -> None:
        torch.save(
            {"identity": identity, "step": step, "weights": bundle.predictor.state_dict(),
             "optimizer": state.state_dict(), "epochs": bundle.card["epochs"]},
            file,
        )  # fmt: skip

    for report in fit(
        bundle.predictor, features, basis, settings, start_step=start, optimizer_state=optimizer,
        on_step=lambda step, steps, loss: watcher.progress(total * step // steps, f"loss {loss:.3f}"), on_epoch=save,
    ):  # fmt: skip
        bundle.card["epochs"].append(vars(report))
        watcher.report(report)


def _restore(bundle: Bundle, file: Path, identity: str) -> tuple[int, dict[str, Any] | None]:
    if not file.is_file():
        raise TrainingError(f"there is no checkpoint to resume from ({file}); leave out --resume.")
    kept = torch.load(file, weights_only=True)
    if kept["identity"] != identity:
        raise TrainingError(f"{file} belongs to a training with other data or settings; leave out --resume.")
    bundle.predictor.load_state_dict(kept["weights"])
    bundle.card["epochs"].extend(kept["epochs"])
    return int(kept["step"]), kept["optimizer"]


# -- text and features -------------------------------------------------------------------------------------------


def gather(
    loaded: Loaded, settings: TrainSettings, work: Path, watcher: Watcher
) -> tuple[list[Sample], list[dict[str, Any]]]:
    """Samples of all files and of the model's own text, and what came from where.

    Own text is kept in ``work`` and used again. Raises TrainingError where there is too little.
    """
    samples: list[Sample] = []
    sources: list[dict[str, Any]] = []
    for path in settings.data:
        found = read_corpus(path)
        samples += found
        sources.append({"file": path.name, "samples": len(found), "sha256": _file_hash(path)})
    if settings.tokens:
        seed = settings.fit.seed
        kept = work / f"text-{fingerprint(loaded.model)}-{settings.tokens}-{seed}.jsonl.gz"
        if not kept.is_file():
            watcher.stage("writing text", settings.tokens)
            work.mkdir(parents=True, exist_ok=True)
            part = kept.with_name("part-" + kept.name)
            write_corpus(part, own_text(loaded, settings.tokens, seed=seed, progress=watcher.progress))
            part.replace(kept)
        found = read_corpus(kept)
        samples += found
        sources.append({"own": settings.tokens, "seed": seed, "samples": len(found)})
    vocab = int(loaded.model.get_input_embeddings().weight.shape[0])
    samples = [sample for sample in samples if len(sample.new_ids) > 2]
    if any(not 0 <= token < vocab for sample in samples for token in sample.ids):
        raise TrainingError("the text has token ids that this model does not know; was it made by another model?")
    samples = _with_test(samples)
    if sum(s.split == "train" for s in samples) < SMALLEST or not any(s.split == "test" and s.greedy for s in samples):
        raise TrainingError(f"{len(samples)} samples are too few to train on and hold some out; give more --tokens.")
    return samples, sources


def _with_test(samples: list[Sample]) -> list[Sample]:
    """Every twelfth greedy sample is held out where nothing is."""
    if any(sample.split == "test" and sample.greedy for sample in samples):
        return samples
    greedy = [i for i, sample in enumerate(samples) if sample.greedy][::12]
    return [replace(s, split="test") if i in greedy else s for i, s in enumerate(samples)]


def _features(
    loaded: Loaded, samples: Sequence[Sample], layers: Sequence[int], work: Path, watcher: Watcher
) -> Features:
    key = _hash([fingerprint(loaded.model), list(layers), [(s.ids, len(s.prompt_ids), s.split) for s in samples]])
    folder = work / f"features-{key}"
    try:
        return open_features(folder)
    except TrainingError:
        watcher.stage("collecting states", sum(len(sample.ids) for sample in samples))
        return collect(loaded, samples, layers, folder, watcher.progress)


def fast_copy(loaded: Loaded) -> Loaded:
    """The model in bfloat16 where the processor multiplies that natively: several times faster for text and states."""
    kind = native_dtype(loaded.model.device)
    if kind != torch.bfloat16 or loaded.model.dtype == kind:
        return loaded
    return replace(loaded, model=copy.deepcopy(loaded.model).to(kind))


def _go_on_from(folder: Path, predictor: Predictor, loaded: Loaded, basis: Basis) -> Basis:
    """Put the weights of an earlier drafter in; its vocabulary is kept. Raises TrainingError for another shape."""
    earlier = load_bundle(folder, fingerprint=fingerprint(loaded.model), base=loaded.name)
    if earlier.predictor.config != predictor.config:
        raise TrainingError(f"the drafter in {folder} has another shape; go on with its kind, slots and layers.")
    predictor.load_state_dict(earlier.predictor.state_dict())
    head = loaded.model.get_output_embeddings().weight.detach()
    return Basis(basis.embed, head[earlier.vocabulary].to(basis.head.dtype), earlier.vocabulary)


def _origin(folder: Path | None) -> dict[str, Any] | None:
    """What the card says of the drafter that was gone on from."""
    if folder is None:
        return None
    earlier = json.loads((folder / CARD).read_text())
    return {name: earlier.get(name) for name in ("settings", "epochs", "minutes", "start")}


# -- shapes ------------------------------------------------------------------------------------------------------


def predictor_config(model: Any, settings: TrainSettings) -> PredictorConfig:
    """The shapes of a predictor for ``model``."""
    config = model.config.get_text_config()
    kind = settings.kind or KINDS[settings.mode]
    count, dim = config.num_hidden_layers, config.hidden_size
    heads = getattr(config, "num_attention_heads", None) or max(1, dim // 64)
    rope = getattr(config, "rope_parameters", None) or {}
    architecture: type[Predictor] = PREDICTORS.get(kind)
    return PredictorConfig(
        kind=kind,
        dim=dim,
        layers=tuple(sorted({(count - 1) // 3, (2 * count - 1) // 3})),
        slots=settings.slots,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or dim // heads,
        inner=architecture.inner_size(dim, getattr(config, "intermediate_size", None) or 4 * dim),
        rope_theta=float(rope.get("rope_theta", 10_000.0)),
        context_rows=architecture.looks_back,
    )


def make_basis(loaded: Loaded, features: Features, size: int) -> Basis:
    """The base's embeddings and the head rows of the commonest tokens of the train split, special ones always in."""
    embed = loaded.model.get_input_embeddings().weight.detach().float()
    head = loaded.model.get_output_embeddings().weight.detach()
    seen: Counter[int] = Counter()
    for i in np.flatnonzero(~features.test):
        seen.update(features.ids[features.rows(int(i))][features.prompt[i] :].tolist())
    ranked = [token for token, _ in seen.most_common()]
    known = set(ranked)
    ranked += [token for token in range(len(embed)) if token not in known]  # low ids are common in most vocabularies
    words = set(ranked[:size]) | _always(loaded)
    vocabulary = torch.tensor(sorted(words))
    return Basis(embed, head[vocabulary].to(native_dtype(torch.device("cpu"))), vocabulary)


def _always(loaded: Loaded) -> set[int]:
    """Ids that no reduced vocabulary may drop: what ends a text, and what structures it."""
    special = special_ids(loaded.tokenizer) if loaded.tokenizer is not None else set()
    return {*end_ids(loaded.model.generation_config), *special}


def _last_block(model: Any) -> tuple[Any, Any]:
    """What an architecture may copy its first weights from: the base's last block and its final norm."""
    body = anatomy(model)
    return body.blocks[-1], getattr(model.base_model, "norm", None)


# -- the card ----------------------------------------------------------------------------------------------------


def fingerprints(model: Any) -> dict[str, Any]:
    """Of a model in the type it is in, and (``also``) in the others it may be loaded in."""
    mark = fingerprint(model)
    others = [fingerprint(copy.deepcopy(model).to(kind)) for kind in (torch.float32, torch.bfloat16, torch.float16)]
    return {"fingerprint": mark, "also": sorted(set(others) - {mark})}


def _counts(features: Features) -> dict[str, Any]:
    lengths = np.diff(features.starts) - features.prompt
    groups = Counter[str]()
    for group, length, test in zip(features.group, lengths, features.test, strict=True):
        groups[f"{group}/{'test' if test else 'train'}"] += int(length)
    return {"tokens": dict(sorted(groups.items())), "samples": int(features.samples)}


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _file_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
