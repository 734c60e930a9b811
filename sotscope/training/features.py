"""Features on disk: the states a drafter reads and the states it must predict, one forward over every sample.

A folder holds ``states.bin`` (bfloat16 [row, state, dim]; the last state is the lm_head's input), ``rows.npz`` (token
ids, where each sample begins, its prompt length, split and kind) and ``features.json`` (base, layers, shapes).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sotscope.capture.contracts import unwrap
from sotscope.capture.plan import anatomy
from sotscope.errors import TrainingError
from sotscope.models.load import Loaded, fingerprint
from sotscope.training.corpus import Sample

BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Features:
    """Opened features; ``states`` is mapped, not read."""

    states: Tensor
    ids: NDArray[np.int32]
    starts: NDArray[np.int64]
    prompt: NDArray[np.int32]
    test: NDArray[np.bool_]
    greedy: NDArray[np.bool_]
    group: NDArray[np.str_]
    meta: dict[str, Any]

    @property
    def samples(self) -> int:
        return len(self.prompt)

    def rows(self, sample: int) -> slice:
        return slice(int(self.starts[sample]), int(self.starts[sample + 1]))


def collect(
    loaded: Loaded,
    samples: Sequence[Sample],
    layers: Sequence[int],
    folder: Path,
    progress: Callable[[int], None] = lambda done: None,
) -> Features:
    """Run every sample through the model once and keep ``resid`` of ``layers`` and ``final``.

    ``loaded`` may be a bfloat16 copy of the base: where the processor multiplies bfloat16 it is several times faster,
    and the states are stored in that type anyway. ``progress`` is told how many tokens are done.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "features.json").unlink(missing_ok=True)  # until it is there again, the folder is not valid
    body = anatomy(loaded.model)
    lengths = [len(sample.ids) for sample in samples]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    shape = (int(starts[-1]), len(layers) + 1, body.geometry.hidden)
    with open(folder / "states.bin", "wb") as file:
        file.truncate(int(np.prod(shape)) * 2)
    out = _mapped(folder, shape)
    done = 0
    for batch in _batches(lengths):
        found = _states(body, [samples[i].ids for i in batch], layers)
        for row, i in enumerate(batch):
            out[starts[i] : starts[i + 1]] = found[row, : lengths[i]]
            done += lengths[i]
        progress(done)
    np.savez(
        folder / "rows.npz",
        ids=np.concatenate([np.array(sample.ids, np.int32) for sample in samples]),
        starts=starts,
        prompt=np.array([len(sample.prompt_ids) for sample in samples], np.int32),
        test=np.array([sample.split == "test" for sample in samples]),
        greedy=np.array([sample.greedy for sample in samples]),
        group=np.array([f"{sample.source}/{sample.kind}" for sample in samples]),
    )
    meta = {"fingerprint": fingerprint(loaded.model), "layers": list(layers), "shape": list(shape)}
    (folder / "features.json").write_text(json.dumps(meta))
    return open_features(folder)


def open_features(folder: Path) -> Features:
    """Raises TrainingError where the folder holds no complete features."""
    try:
        meta = json.loads((folder / "features.json").read_text())
        rows = dict(np.load(folder / "rows.npz"))
        return Features(states=_mapped(folder, tuple(meta["shape"])), meta=meta, **rows)
    except (OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        raise TrainingError(f"{folder} holds no complete features: {error}.") from error


def _mapped(folder: Path, shape: tuple[int, ...]) -> Tensor:
    count = int(np.prod(shape))
    return torch.from_file(str(folder / "states.bin"), shared=True, size=count, dtype=torch.bfloat16).view(shape)


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Samples of like length together, about ``BATCH_TOKENS`` a batch."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if batch and (len(batch) + 1) * lengths[i] > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


@torch.inference_mode()
def _states(body: Any, ids: Sequence[Sequence[int]], layers: Sequence[int]) -> Tensor:
    """[sample, row, state, dim] of one right-padded batch: behind a causal mask the padding is never seen."""
    width = max(map(len, ids))
    inputs = torch.tensor([[*row, *([0] * (width - len(row)))] for row in ids], device=body.model.device)
    kept: dict[int, Tensor] = {}
    handles = [
        body.blocks[layer].register_forward_hook(lambda m, a, o, layer=layer: kept.__setitem__(layer, unwrap(o)))
        for layer in layers
    ]
    try:
        final = body.model.base_model(inputs, use_cache=False).last_hidden_state
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack([*(kept[layer] for layer in layers), final], 2).to("cpu", torch.bfloat16)
