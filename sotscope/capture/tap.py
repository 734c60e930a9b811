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

from sotscope.capture.contracts import Site, attention_weights, unwrap
from sotscope.capture.plan import Plan, Point
from sotscope.capture.scalars import attention_entropy, head_norms, layer_scalars, logit_facts, no_logits
from sotscope.errors import CaptureError

_BF16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Captured:
    """The rows of one step: ``states[site] [row, ...]`` in the model's own type, ``scalars[name] [row, ...]``.

    ``resid`` [row, layer, dim] in float32 is always there, whether it is stored or not.
    """

    states: dict[str, NDArray[Any]]
    scalars: dict[str, NDArray[Any]]
    present: NDArray[np.bool_]
    top_id: NDArray[np.int32]
    top_logprob: NDArray[np.float32]
    resid: NDArray[np.float32]


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
        self._per_head = {point.site.name for point in plan.points if point.site.shape == "heads"}
        self._expected = {i: p for i, p in enumerate(plan.points) if p.site.name != "attn"}
        self._slabs: dict[str, Tensor] = {}
        self._views: dict[str, tuple[Tensor, ...]] = {}
        self._fits: dict[str, Callable[[Tensor], Tensor]] = {}
        self._hits: list[int] = []
        self._pending: list[tuple[str, int, Tensor]] = []
        self._logits: Tensor | None = None
        self._kinds: dict[str, tuple[int, torch.dtype]] = {}  # columns and type of each site, once it has been seen
        self._previous: NDArray[np.float32] | None = None
        self._end = 0  # position after the last token of this forward; needed for attention rows only
        self._attn: NDArray[Any] = np.empty(0, np.float32)
        self._attn_entropy: NDArray[Any] = np.empty(0, np.float32)
        self._reset()

    # -- hooks -------------------------------------------------------------------------------------------------

    def __enter__(self) -> Tap:
        body = self.plan.anatomy
        try:
            self._handles.append(body.decoder.register_forward_pre_hook(self._begin, with_kwargs=True))
            for index, point in enumerate(self.plan.points):
                self._handles.append(self._attach(index, point))
            self._handles.append(body.model.register_forward_hook(self._keep_logits))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _attach(self, index: int, point: Point) -> RemovableHandle:
        if point.site.side == "weights":
            return point.module.register_forward_hook(self._attention_hook(point))
        write = self._writer(index, point)
        if point.site.side == "out":
            return point.module.register_forward_hook(write)
        if point.site.role in ("attn_out", "mlp_act"):  # projections take one tensor; other modules perhaps keywords
            return point.module.register_forward_pre_hook(write)
        return point.module.register_forward_pre_hook(
            lambda module, args, kwargs: write(module, args or (kwargs["hidden_states"],)), with_kwargs=True
        )

    def _writer(self, index: int, point: Point) -> Callable[..., None]:
        """A hook that copies one point; runs hundreds of times a token, so it looks up as little as it can."""
        name, slot, read, geometry = point.site.name, point.slot, point.read, self.plan.anatomy.geometry
        views, fits, hits, direct = self._views, self._fits, self._hits, not self._on_device_copy
        takes_input = point.site.side == "in"

        def write(module: Any, args: Any, output: Any = None) -> None:
            tensor = args[0] if takes_input else output
            if not isinstance(tensor, Tensor):
                tensor = unwrap(tensor)
            if read is not None:
                tensor = read(tensor, geometry)
            hits.append(index)
            if not (direct and tensor.is_cpu):
                self._pending.append((name, slot, tensor.detach().clone()))
                return
            layers = views.get(name) or self._allocate(name, tensor)
            if name in fits:
                tensor = fits[name](tensor)
            layers[slot].copy_(tensor.detach() if tensor.requires_grad else tensor)

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
                # a sliding window drops old keys, a static cache has room for later ones: the newest key is known
                first = max(0, self._end - weights.shape[-1])
                keys = weights[0, :, :, : self._end - first].float().permute(1, 0, 2)
                self._attn[:, slot] = 0.0
                self._attn[:, slot, :, first : self._end] = keys.cpu().numpy()

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
            self._attn = np.full((self.width, len(self.plan.attn_layers), heads, self._max_keys), np.nan, np.float32)
            cache = next((kwargs[name] for name in ("cache", "past_key_values") if kwargs.get(name) is not None), None)
            self._end = self.width + (int(cache.get_seq_length()) if cache is not None else 0)

    def _reset(self) -> None:
        for kept in (self._slabs, self._views, self._fits, self._hits, self._pending):
            kept.clear()
        self._logits = None

    def _keep_logits(self, module: Any, args: Any, output: Any) -> None:
        logits = getattr(output, "logits", None)
        self._logits = logits if logits is not None else unwrap(output)

    def _allocate(self, name: str, tensor: Tensor) -> tuple[Tensor, ...]:
        """Make the slab [token, layer, value] of a site; returns its views [1, token, value], one a layer.

        The slab belongs to this forward alone: it is handed on with its rows and never written again.
        """
        geometry = self.plan.anatomy.geometry
        columns = geometry.heads * geometry.head_dim if name in self._per_head else tensor.shape[-1]
        if tensor.dim() == 4:  # [1, token, head, head_dim]
            self._fits[name] = lambda value: value.flatten(2)
        elif tensor.shape[-1] != columns:  # queries stand in front of keys and values
            self._fits[name] = lambda value: value[..., :columns]
        self._slabs[name] = torch.empty(self.width, self._slots[name], columns, dtype=tensor.dtype)
        self._views[name] = self._slabs[name].unsqueeze(0).unbind(2)
        self._kinds[name] = (columns, tensor.dtype)
        return self._views[name]

    # -- rows --------------------------------------------------------------------------------------------------

    @property
    def logits(self) -> Tensor | None:
        """Logits [token, vocab] of the last forward; fewer tokens than ``width`` when only the last were asked for."""
        return None if self._logits is None else self._logits[0]

    def take(self, rows: int, next_ids: tuple[int, ...], *, logits: bool = True) -> Captured:
        """The first ``rows`` rows of the last forward. ``logits=False``: their logit scalars are not wanted (NaN).

        Raises CaptureError when no forward has been seen: never an empty record.
        """
        if not self.width or not (self._hits or self._kinds):
            raise CaptureError("no forward of the model has been seen; nothing was captured.")
        self._collect()
        present = self._present(rows)
        if "resid" not in self._slabs:
            raise CaptureError("no block of the model ran in this forward; nothing was captured.")
        resid = as_numpy(self._slabs["resid"])[:rows].astype(np.float32, copy=False)
        scalars: dict[str, NDArray[Any]] = dict(layer_scalars(resid, self._previous))
        self._previous = resid[-1].copy()
        states = {site.name: self._shaped(site, rows) for site in self.plan.sites}
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
        return Captured(states, scalars, present, facts.top_id, facts.top_logprob, resid)

    def _collect(self) -> None:
        """Bring what was cloned on an accelerator to the host: one transfer a site and device."""
        groups: dict[tuple[str, torch.device], list[tuple[int, Tensor]]] = {}
        for name, slot, tensor in self._pending:
            groups.setdefault((name, tensor.device), []).append((slot, tensor))
        for (name, _), parts in groups.items():
            for (slot, _), tensor in zip(parts, torch.stack([t for _, t in parts]).cpu(), strict=True):
                layers = self._views.get(name) or self._allocate(name, tensor)
                layers[slot].copy_(self._fits[name](tensor) if name in self._fits else tensor)
        self._pending.clear()

    def _present(self, rows: int) -> NDArray[np.bool_]:
        """Which layers ran; cells of layers that did not become NaN."""
        present = np.ones((rows, len(self.plan.layers)), bool)
        if len(set(self._hits)) == len(self._expected):
            return present
        for index in self._expected.keys() - self._hits:
            point = self._expected[index]
            if point.site.name == "resid":
                present[:, point.slot] = False
            self._make_absent(point)
        return present

    def _make_absent(self, point: Point) -> None:
        name = point.site.name
        if name not in self._slabs and name in self._kinds:
            columns, dtype = self._kinds[name]
            self._slabs[name] = torch.empty(self.width, self._slots[name], columns, dtype=dtype)
        if name in self._slabs:
            self._slabs[name][:, point.slot] = torch.nan

    def _shaped(self, site: Site, rows: int) -> NDArray[Any]:
        if site.name == "attn":
            return self._attn[:rows]
        if site.name not in self._slabs:
            raise CaptureError(f"the modules of site {site.name!r} did not run in this forward; nothing was captured.")
        slab = as_numpy(self._slabs[site.name])[:rows]
        geometry = self.plan.anatomy.geometry
        if site.shape == "heads":
            return slab.reshape(rows, -1, geometry.heads, geometry.head_dim)
        return slab if site.per_layer else slab[:, 0]


def as_numpy(tensor: Tensor) -> NDArray[Any]:
    """A host tensor as an array on the same memory; bfloat16 as ml_dtypes.bfloat16."""
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(_BF16)
    array: NDArray[Any] = tensor.numpy()
    return array


def dtype_name(array: NDArray[Any]) -> str:
    """The name of a state array's element type."""
    return "bfloat16" if array.dtype == _BF16 else str(array.dtype)
