"""The head of a run's model, read without torch: final norm and lm_head, saved by ``sotscope.head_file``.

The weight is a memory map and is used in blocks of the vocabulary, so that a head of any size fits; the file holds it
in the model's own type, exactly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from sotscope.cache import cache_folder
from sotscope.errors import AnalysisError
from sotscope.store.reader import Run
from sotscope.store.tokens import Pieces

FILE = "head.safetensors"
FORMAT = "1"
AGAIN = "delete it and record anything with that model again"
BLOCK = 4096
"""Words whose logits are computed at a time."""
TYPES: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
NORMS = ("rms", "rms_plus_one", "layer", "none", "unknown")
"""RMS as in Llama; RMS times 1 + weight as in Gemma; LayerNorm; no norm at all; one that could not be rebuilt."""


def cached(fingerprint: str) -> Path:
    """Where the head of the model with this fingerprint is kept for all runs. Raises AnalysisError for no fingerprint
    (it may come from somebody else's run, and names a folder)."""
    if not re.fullmatch(r"[0-9a-f]{8,64}", fingerprint):
        raise AnalysisError(f"{fingerprint!r} is not the fingerprint of a model.")
    return cache_folder() / "heads" / fingerprint / FILE


def load_head(run: Run) -> Head | None:
    """The head of the model that wrote ``run``: from the run's folder, else from the cache; None where neither has it.

    Raises AnalysisError for a file that cannot be read, or that is of another model.
    """
    fingerprint = _fingerprint(run)
    if not fingerprint:
        return None
    for path in (run.path / FILE, cached(fingerprint)):
        if path.is_file():
            head = Head(path)
            if head.fingerprint != fingerprint:
                raise AnalysisError(f"{path} is the head of another model ({head.fingerprint}, not {fingerprint}).")
            return head
    return None


def missing(run: Run) -> str:
    """What a report says where ``load_head`` gave None: how to get the head."""
    model = run.attributes.get("model", {}).get("name") or "MODEL"
    return (
        f"the final norm and lm_head of {model} are not here; any recording with that model on this machine keeps them "
        f"(sotscope record hi -n 1 --model {model}), and --embed-head puts them into the run."
    )


def _fingerprint(run: Run) -> str:
    return str(run.attributes.get("model", {}).get("fingerprint") or "")


class Head:
    """Final norm and lm_head. Sent to another process, it is opened there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with safe_open(path, framework="numpy") as file:  # checks sizes and offsets
                facts: dict[str, str] = file.metadata() or {}
                small = {name: file.get_tensor(name) for name in file.keys() if name not in ("weight", "pieces")}  # noqa: SIM118
            self.weight: NDArray[Any] = _mapped(path, "weight")
            """[vocab, final_dim] a memory map, in the model's own type."""
            self.fingerprint = facts["fingerprint"]
            self.norm = facts["norm"]
            self.layers = int(facts["layers"])
            """How many layers the model has (a run may have recorded some of them only)."""
            self._eps, self._softcap, self._scale = (float(facts[name]) for name in ("eps", "softcap", "scale"))
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise AnalysisError(
                f"{path} is not a head that this version of sotscope can read ({error}); {AGAIN}."
            ) from error
        if facts.get("format") != FORMAT or self.norm not in NORMS or self.weight.ndim != 2:
            raise AnalysisError(f"{path} was written by another version of sotscope; {AGAIN}.")
        self._bias: NDArray[np.float32] | None = small.get("bias")
        self._norm_weight: NDArray[np.float32] | None = small.get("norm_weight")
        self._norm_bias: NDArray[np.float32] | None = small.get("norm_bias")
        self._project: NDArray[np.float32] | None = small.get("project")

    def __reduce__(self) -> tuple[Any, ...]:
        return Head, (self.path,)

    @property
    def vocab(self) -> int:
        return int(self.weight.shape[0])

    @property
    def dim(self) -> int:
        """Width of the states that ``normed`` takes; 0: any."""
        for vector in (self._norm_weight, self._project, None if self.norm == "layer" else self.weight):
            if vector is not None:
                return int(vector.shape[-1])
        return 0

    @property
    def has_words(self) -> bool:
        """Is the text of the vocabulary known?"""
        return len(_mapped(self.path, "pieces")) > 0

    @cached_property
    def pieces(self) -> Pieces:
        """Pieces of the whole vocabulary; empty for a model that was recorded without a tokenizer."""
        found = Pieces()
        for token, (raw, data, special) in enumerate(json.loads(_mapped(self.path, "pieces").tobytes() or b"[]")):
            found.raw[token], found.data[token] = raw, bytes.fromhex(data)
            if special:
                found.special.add(token)
        return found

    def label(self, token: int) -> str:
        """One word of the vocabulary as a person reads it; ``#7`` where its text is not known."""
        return self.pieces.label(token) if token in self.pieces.raw else f"#{token}"

    def normed(self, resid: NDArray[Any]) -> NDArray[np.float32]:
        """[..., final_dim] what the lm_head is given for raw outputs of the last block ``resid [..., dim]``.

        Raises AnalysisError where the norm could not be rebuilt (``norm`` is "unknown").
        """
        if self.norm == "unknown":
            raise AnalysisError("the final norm of this model is of a kind that sotscope does not know.")
        states = np.asarray(resid, np.float32)
        with np.errstate(all="ignore"):  # NaN rows stay NaN
            states = apply_norm(states, self.norm, self._eps, self._norm_weight, self._norm_bias)
            return states if self._project is None else states @ self._project.T

    def blocks(self, final: NDArray[Any], size: int = BLOCK) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """(first word, logits [n, word]) of ``final [n, final_dim]``, ``size`` words at a time."""
        states = np.asarray(final, np.float32)
        for start in range(0, self.vocab, size):
            words = slice(start, start + size)
            with np.errstate(all="ignore"):
                yield start, self._finish(states @ self._rows(words).T, words)

    def logits(self, final: NDArray[Any]) -> NDArray[np.float32]:
        """[n, vocab] of ``final [n, final_dim]``: for few rows; ``blocks`` for many."""
        out = np.empty((len(final), self.vocab), np.float32)
        for start, part in self.blocks(final):
            out[:, start : start + part.shape[1]] = part
        return out

    def of(self, final: NDArray[Any], words: NDArray[np.int64]) -> NDArray[np.float32]:
        """[..., n] the logit of ``words [n]``, one a row, for ``final [..., n, final_dim]``."""
        with np.errstate(all="ignore"):
            found = np.einsum("...nd,nd->...n", np.asarray(final, np.float32), self._rows(words))
            return self._finish(found, words)

    def _rows(self, words: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        return np.asarray(self.weight[words]).astype(np.float32, copy=False)

    def _finish(self, logits: NDArray[np.float32], words: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        """Bias, scale and soft cap, in place."""
        if self._bias is not None:
            logits += self._bias[words]
        if self._scale != 1:
            logits *= np.float32(self._scale)
        if self._softcap:
            np.tanh(np.divide(logits, self._softcap, out=logits), out=logits)
            logits *= np.float32(self._softcap)
        return logits


def apply_norm(
    states: NDArray[np.float32],
    kind: str,
    eps: float,
    weight: NDArray[np.float32] | None = None,
    bias: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """``states [..., dim]`` through a norm of one of ``NORMS``; means in float64."""
    if kind == "none":
        return states
    if kind == "layer":
        states = states - states.mean(-1, keepdims=True, dtype=np.float64).astype(np.float32)
    square = np.mean(np.square(states, dtype=np.float64), -1, keepdims=True)
    out: NDArray[np.float32] = states * (1 / np.sqrt(square + eps)).astype(np.float32)
    if weight is not None:
        out = out * (weight + np.float32(kind == "rms_plus_one"))
    return out if bias is None else out + bias


def _mapped(path: Path, name: str) -> NDArray[Any]:
    """One tensor of a safetensors file as a memory map. The library itself hands out copies only."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    if name not in header:
        return np.empty(0, np.uint8)
    entry = header[name]
    begin, _ = entry["data_offsets"]
    dtype = np.dtype(TYPES.get(entry["dtype"], np.uint8))
    return np.memmap(path, dtype, "r", 8 + length + begin, tuple(entry["shape"]))
