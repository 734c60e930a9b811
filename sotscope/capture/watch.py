"""A light watch on the states that drafters read: a few hooks, no record. The tap records; this one only looks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from sotscope.capture.contracts import unwrap
from sotscope.capture.plan import anatomy
from sotscope.errors import CaptureError


class StateWatch:
    """Keeps a copy of the states of the last forward: output of some blocks, and the lm_head's input."""

    def __init__(self, model: Any) -> None:
        self._body = anatomy(model)
        self._handles: list[RemovableHandle] = []
        self._kept: dict[int, Tensor] = {}
        self._order: tuple[int, ...] = ()

    def open(self, layers: Sequence[int]) -> None:
        """Watch the output of these blocks. Raises CaptureError for a layer the model does not have."""
        self.close()
        blocks = self._body.blocks
        for layer in layers:
            if not 0 <= layer < len(blocks):
                raise CaptureError(f"the drafter reads layer {layer}; this model has {len(blocks)}.")
            self._handles.append(blocks[layer].register_forward_hook(self._keep(layer, unwrap)))
        head_input = self._keep(-1, lambda output: output.last_hidden_state)
        self._handles.append(self._body.model.base_model.register_forward_hook(head_input))
        self._order = (*layers, -1)

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._kept.clear()

    def rows(self, count: int) -> Tensor:
        """[row, state, dim] of the first ``count`` rows of the last forward."""
        if not self._kept:
            raise CaptureError("no forward of the model has been seen; the drafter has no states.")
        device = self._kept[-1].device
        return torch.stack([self._kept[layer][:count].to(device) for layer in self._order], 1)

    def _keep(self, layer: int, pick: Callable[[Any], Tensor]) -> Callable[[Any, Any, Any], None]:
        def hook(module: Any, args: Any, output: Any) -> None:
            self._kept[layer] = pick(output)[0].detach().clone()

        return hook
