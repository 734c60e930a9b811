"""The model's cache: prefill in blocks, forward of a block, roll-back. The one file that knows transformers' caches."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from sotscope.errors import DecodeError


class CachedModel:
    """A model with the cache of one sequence. Logits are [token, vocab]; nothing here keeps a graph."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.device = model.device
        self.cache: Any = DynamicCache(config=model.config)
        self.length = 0
        """How many tokens have been fed and kept."""
        self.croppable: bool | None = None
        """Whether rejected tokens can be rolled back; None before the first forward."""
        self.vocab = int(model.get_input_embeddings().weight.shape[0])
        takes = inspect.signature(model.forward).parameters
        self._keeps_few = "logits_to_keep" in takes
        self._takes_positions = "position_ids" in takes

    @classmethod
    def holding(cls, model: Any, cache: Any, length: int) -> CachedModel:
        """A model with ``cache``, which holds ``length`` tokens already."""
        made = cls(model)
        made.cache, made.length = cache, length
        made._look()
        return made

    def prefill(
        self, ids: Sequence[int], block: int, *, all_logits: bool, cut: int = 0
    ) -> Iterator[tuple[int, Sequence[int]]]:
        """Feed what of ``ids`` is not in the cache yet, in blocks; yields (position, ids) after each one, so that its
        rows can be committed. A block ends at ``cut``.

        A recurrent layer that is given several tokens begins anew, whatever its cache holds (transformers 5.24), so
        only its first block is a wide one.
        """
        start = self.length
        block = block if not start or self.cache.is_croppable else 1
        while start < len(ids):
            part = ids[start : min(start + block, cut if start < cut else len(ids))]
            self.forward(part, all_logits=all_logits)
            yield start, part
            start += len(part)
            block = block if self.cache.is_croppable else 1
        self._look()

    def rewind(self, length: int) -> None:
        """Keep the first ``length`` tokens: cut the rest off where every layer has its full history, else forget all
        (what is missing is fed again by ``prefill``)."""
        if length >= self.length:
            return
        whole = all(type(layer) is DynamicLayer for layer in self.cache.layers)
        if whole and length > 0:
            self.cache.crop(length - self.length)
            self.length = length
        else:
            self.cache, self.length, self.croppable = DynamicCache(config=self.model.config), 0, None

    def forward(self, ids: Sequence[int], *, all_logits: bool = True) -> Tensor:
        """Feed ``ids`` after what the cache holds; logits of all of them, or of the last one only."""
        options: dict[str, Any] = {} if all_logits or not self._keeps_few else {"logits_to_keep": 1}
        inputs = torch.tensor([list(ids)], dtype=torch.long, device=self.device)
        if self._takes_positions:  # as generate() does: some models count from 0 whatever their cache holds
            last = self.length + len(ids)
            options["position_ids"] = torch.arange(self.length, last, device=self.device)[None]
        output = self.model(inputs, cache=self.cache, use_cache=True, **options)
        self.length += len(ids)
        logits: Tensor = output.logits[0]
        return logits

    def keep(self, rejected: int) -> None:
        """Roll the last ``rejected`` tokens back (0 also trims sliding windows to their size).

        Raises DecodeError when the model's cache cannot forget (a recurrent state).
        """
        self._look()
        if self.croppable:
            self.cache.crop(-rejected)
        elif rejected:
            raise DecodeError(refusal(self.model))
        self.length -= rejected

    def _look(self) -> None:
        """Once something was fed: can this cache roll back? From then on sliding windows keep what they would drop."""
        if self.length and self.croppable is None:
            self.croppable = bool(self.cache.is_croppable)
            if self.croppable:
                self.cache.activate_past_recording()


def refusal(model: Any) -> str:
    """Why a model that cannot roll back is not decoded with drafts."""
    return (
        f"{model.config.model_type} keeps a recurrent state that cannot be rolled back, so rejected drafts would stay "
        "in it; use --mode ar."
    )
