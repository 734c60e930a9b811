"""The tap: hooks that copy states while the model runs, attached on enter and gone on exit.

``take(n)`` hands over the first n rows of the last forward; rows that are not taken (rejected drafts) are forgotten
with the next forward. Values are copied at hook time: what a later in-place operation does to them is not seen.
The tap knows neither the decode loop nor the store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from sotscope.capture.contracts import attention_weights, unwrap
from sotscope.capture.plan import Plan, Point
from sotscope.capture.scalars import attention_entropy, head_norms, layer_scalars, logit_facts, no_logits
from sotscope.errors import CaptureError

_BF16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Captured:
    """The rows of one step: ``states[site] [row, ...]`` in the model's own type, ``scalars[name] [row, ...]``."""

    states: dict[str, NDArray[Any]]
    scalars: dict[str, NDArray[Any]]
    present: NDArray[np.bool_]
    top_id: NDArray[np.int32]
    top_logprob: NDArray[np.float32]


class Tap:
    """Captures the points of ``plan`` from every forward of its model, one sequence at a time.

    ``max_keys`` is the length of the key axis of attention rows. ``on_device_copy`` forces the path that accelerators
    take (clone on the device, one transfer a site); the results are the same.
    """

    def __init__(self, plan: Plan, *, top_k: int = 10, max_keys: int = 0, on_device_copy: bool = False) -> None:
        self.plan = plan
        self.width = 0
        self.forwards = 0
        self._top_k = top_k
        self._max_keys = max_keys
        self._on_device_copy = on_device_copy
        self._handles: list[RemovableHandle] = []
        self._names = sorted({point.site.name for point in plan.points if point.site.name != "attn"})
        self._slots = {name: sum(p.site.name == name for p in plan.points) for name in self._names}
        self._expected = {(name, slot) for name in self._names for slot in range(self._slots[name])}
        self._previous: NDArray[np.float32] | None = None
        self._attn: NDArray[Any] = np.empty(0, np.float32)
        self._attn_entropy: NDArray[Any] = np.empty(0, np.float32)
        self._reset()

    # -- hooks -------------------------------------------------------------------------------------------------

    def __enter__(self) -> Tap:
        body = self.plan.anatomy
        try:
            self._handles.append(body.decoder.register_forward_pre_hook(self._begin, with_kwargs=True))
            for point in self.plan.points:
                self._handles.append(self._attach(point))
            self._handles.append(body.model.register_forward_hook(self._keep_logits))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _attach(self, point: Point) -> RemovableHandle:
        if point.site.side == "weights":
            return point.module.register_forward_hook(self._attention_hook(point))
        write = self._writer(point)
        if point.site.side == "out":
            return point.module.register_forward_hook(lambda module, args, output: write(output))
        return point.module.register_forward_pre_hook(
            lambda module, args, kwargs: write(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
        )

    def _writer(self, point: Point) -> Callable[[Any], None]:
        name, slot, read, geometry = point.site.name, point.slot, point.read, self.plan.anatomy.geometry

        def write(value: Any) -> None:
            tensor = value if isinstance(value, Tensor) else unwrap(value)
            if read is not None:
                tensor = read(tensor, geometry)
            if tensor.device.type == "cpu" and not self._on_device_copy:
                self._put(name, slot, tensor)
            else:
                self._pending.append((name, slot, tensor.detach().clone()))
            self._hits.append((name, slot))

        return write

    def _attention_hook(self, point: Point) -> Callable[[Any, Any, Any], None]:
        layer = point.layer
        slot = self.plan.attn_layers.index(layer) if layer in self.plan.attn_layers else None
        wants_entropy = self.plan.attn_entropy and layer in self.plan.layers

        def hook(module: Any, args: Any, output: Any) -> None:
            weights = attention_weights(output)
            if weights is None:
                raise CaptureError("the attention gave no weights; load the model with attn_implementation='eager'.")
            if wants_entropy:
                entropy = attention_entropy(weights[0]).cpu().numpy()
                self._attn_entropy[:, self.plan.layers.index(layer)] = entropy
            if slot is not None:
                self._attn[:, slot, :, : weights.shape[-1]] = weights[0].float().permute(1, 0, 2).cpu().numpy()

        return hook

    def _begin(self, module: Any, args: Any, kwargs: Any) -> None:
        given = [*args[:1], kwargs.get("input_ids"), kwargs.get("inputs_embeds")]
        inputs = next((value for value in given if isinstance(value, Tensor)), None)
        if inputs is None:
            raise CaptureError("the decoder was called without input_ids or inputs_embeds.")
        if inputs.shape[0] != 1:
            raise CaptureError(f"a batch of {inputs.shape[0]} sequences: record one sequence at a time.")
        self._reset()
        self.width = inputs.shape[1]
        self.forwards += 1
        heads = self.plan.anatomy.geometry.heads
        if self.plan.attn_entropy:
            self._attn_entropy = np.full((self.width, len(self.plan.layers), heads), np.nan, np.float32)
        if self.plan.attn_layers:
            self._attn = np.zeros((self.width, len(self.plan.attn_layers), heads, self._max_keys), np.float32)

    def _reset(self) -> None:
        self._slabs: dict[str, NDArray[Any]] = {}
        self._pending: list[tuple[str, int, Tensor]] = []
        self._hits: list[tuple[str, int]] = []
        self._logits: Tensor | None = None

    def _keep_logits(self, module: Any, args: Any, output: Any) -> None:
        logits = getattr(output, "logits", None)
        self._logits = logits if logits is not None else unwrap(output)

    def _put(self, name: str, slot: int, tensor: Tensor) -> None:
        """Copy one site of one layer into its slab [token, layer, value]; bfloat16 travels as int16."""
        tensor = tensor.detach()
        if tensor.dtype is torch.bfloat16:
            tensor = tensor.view(torch.int16)
        flat = tensor.numpy().reshape(self.width, -1)
        slab = self._slabs.get(name)
        if slab is None:
            slab = self._slabs[name] = np.empty((self.width, self._slots[name], self._columns(name, flat)), flat.dtype)
        slab[:, slot] = flat[:, : slab.shape[2]]

    def _columns(self, name: str, flat: NDArray[Any]) -> int:
        geometry = self.plan.anatomy.geometry
        return geometry.heads * geometry.head_dim if name in ("query", "head_out") else flat.shape[1]

    # -- rows --------------------------------------------------------------------------------------------------

    @property
    def logits(self) -> Tensor | None:
        """Logits [token, vocab] of the last forward; fewer tokens than ``width`` when only the last were asked for."""
        return None if self._logits is None else self._logits[0]

    def take(self, rows: int, next_ids: tuple[int, ...], *, logits: bool = True) -> Captured:
        """The first ``rows`` rows of the last forward. ``logits=False``: their logit scalars are not wanted (NaN).

        Raises CaptureError when no forward has been seen: never an empty record.
        """
        if not self.width or not self._hits:
            raise CaptureError("no forward of the model has been seen; nothing was captured.")
        self._collect()
        present = self._present(rows)
        resid = self._slabs["resid"][:rows].astype(np.float32, copy=False)
        scalars: dict[str, NDArray[Any]] = dict(layer_scalars(resid, self._previous))
        self._previous = resid[-1].copy()
        states = {site.name: self._shaped(site.name, rows) for site in self.plan.sites}
        if self.plan.head_norms:
            scalars["head_norm"] = head_norms(states["head_out"].astype(np.float32, copy=False))
        if self.plan.attn_entropy:
            scalars["attn_entropy"] = self._attn_entropy[:rows]
        facts = no_logits(rows, self._top_k)
        if logits and self.logits is not None:
            if len(self.logits) < rows:
                raise CaptureError(f"logits for {len(self.logits)} of {rows} rows; the forward kept too few.")
            facts = logit_facts(self.logits[:rows], np.array(next_ids, np.int32), self._top_k)
        scalars.update(facts.scalars)
        return Captured(states, scalars, present, facts.top_id, facts.top_logprob)

    def _collect(self) -> None:
        """Bring what was cloned on an accelerator to the host: one transfer a site and device."""
        groups: dict[tuple[str, torch.device], list[tuple[int, Tensor]]] = {}
        for name, slot, tensor in self._pending:
            groups.setdefault((name, tensor.device), []).append((slot, tensor))
        for (name, _), parts in groups.items():
            for (slot, _), tensor in zip(parts, torch.stack([t for _, t in parts]).cpu(), strict=True):
                self._put(name, slot, tensor)
        self._pending.clear()

    def _present(self, rows: int) -> NDArray[np.bool_]:
        """Which layers ran; cells of layers that did not become NaN."""
        present = np.ones((rows, len(self.plan.layers)), bool)
        for name, slot in self._expected.difference(self._hits):
            if name == "resid":
                present[:, slot] = False
            if name in self._slabs:
                slab = self._slabs[name]
                slab[:, slot] = _BF16.type("nan").view(np.int16) if slab.dtype == np.int16 else np.nan
        return present

    def _shaped(self, name: str, rows: int) -> NDArray[Any]:
        if name == "attn":
            return self._attn[:rows]
        if name not in self._slabs:
            raise CaptureError(f"the modules of site {name!r} did not run in this forward; nothing was captured there.")
        slab = self._slabs[name][:rows]
        if slab.dtype == np.int16:
            slab = slab.view(_BF16)
        geometry = self.plan.anatomy.geometry
        site = next(site for site in self.plan.sites if site.name == name)
        if site.shape == "heads":
            return slab.reshape(rows, -1, geometry.heads, geometry.head_dim)
        return slab if site.per_layer else slab[:, 0]


def dtype_name(array: NDArray[Any]) -> str:
    """The name of a state array's element type."""
    return "bfloat16" if array.dtype == _BF16 else str(array.dtype)
