"""The draft head: some rows of the base's own lm_head, and any token of the context besides."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SPARE = 1024
"""How many tokens of one context can be added."""


class DraftHead:
    """Logits of a reduced vocabulary. Names and words of the prompt are added as they come, so that a draft can
    say them too.

    ``weight [vocab, dim]`` (and ``bias [vocab]``, if there is one) are the base's; ``words`` are the ids that are
    always in. Kept in ``dtype``: a head is read once a slot, so its bytes are what it costs.
    """

    def __init__(self, weight: Tensor, words: Tensor, dtype: torch.dtype, bias: Tensor | None = None) -> None:
        self._base = weight
        self._base_bias = bias
        self._fixed = len(words)
        self._count = len(words)
        self._weight = torch.zeros(len(words) + SPARE, weight.shape[1], dtype=dtype, device=weight.device)
        self._weight[: len(words)] = weight[words].to(dtype)
        self._bias = None if bias is None else torch.zeros(len(self._weight), device=weight.device)
        if self._bias is not None and bias is not None:
            self._bias[: len(words)] = bias[words].float()
        self.words = torch.zeros(len(self._weight), dtype=torch.long)
        self.words[: len(words)] = words
        self._always = frozenset(words.tolist())
        self._added: dict[int, None] = {}

    def __contains__(self, token: int) -> bool:
        return token in self._always or token in self._added

    def __len__(self) -> int:
        return self._count

    def forget(self) -> None:
        """Only the fixed words again: another text begins."""
        self._count = self._fixed
        self._added.clear()

    def add(self, tokens: Iterable[int]) -> None:
        """Let ``tokens`` be drafted too, as long as there is room."""
        fresh = [t for t in dict.fromkeys(tokens) if t not in self][: len(self._weight) - self._count]
        if not fresh:
            return
        ids = torch.tensor(fresh)
        part = slice(self._count, self._count + len(fresh))
        self._weight[part] = self._base[ids].to(self._weight.dtype)
        self.words[part] = ids
        if self._bias is not None and self._base_bias is not None:
            self._bias[part] = self._base_bias[ids].float()
        self._count += len(fresh)
        self._added.update(dict.fromkeys(fresh))

    def logits(self, states: Tensor) -> Tensor:
        """[slot, word] in float32 for ``states [slot, dim]``; word j is token ``words[j]``."""
        out = torch.nn.functional.linear(states.to(self._weight.dtype), self._weight[: self._count]).float()
        return out if self._bias is None else out + self._bias[: self._count]
