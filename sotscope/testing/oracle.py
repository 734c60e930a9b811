"""The oracle: one uncached forward over the final sequence is the truth for every recorded row, in every mode.

It shares no code with the tap: hidden states come from ``output_hidden_states``, the last block's from the final norm's
input, other sites from plain hooks that keep whole tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sotscope.capture.contracts import Site
from sotscope.capture.plan import Anatomy, anatomy, as_it_was
from sotscope.catalog import SITES
from sotscope.store.reader import Run


def first_tensor(value: Any) -> Any:
    return value[0] if isinstance(value, tuple) else value


@torch.inference_mode()
def uncached(model: Any, ids: Sequence[int], sites: Sequence[str]) -> dict[str, NDArray[np.float32]]:
    """``sites`` of one forward without a cache: site to [token, layer, ...] or [token, ...], float32."""
    body = anatomy(model)
    kept: dict[tuple[str, int], Any] = {}
    handles = [_keep(body, SITES.get(name), layer, kept) for name in sites for layer in _layers(body, name)]
    last: list[Any] = []
    handles.append(body.blocks[-1].register_forward_hook(lambda m, a, o: last.append(first_tensor(o))))
    inputs = torch.tensor([list(ids)], device=model.device)
    try:
        with as_it_was(model):
            output = model(inputs, use_cache=False, output_hidden_states=True)
    finally:
        for handle in handles:
            handle.remove()
    hidden = list(output.hidden_states)
    if body.first_block_state == 0:
        hidden.insert(0, model.get_input_embeddings()(inputs))
    return {name: _truth(body, name, hidden, last[0], kept) for name in sites}


def _layers(body: Anatomy, name: str) -> range:
    """Hooks are needed only for the sites that ``output_hidden_states`` does not have."""
    return range(0 if name in ("embed", "resid", "final") else body.geometry.layers)


def _keep(body: Anatomy, site: Site, layer: int, kept: dict[tuple[str, int], Any]) -> Any:
    assert body.family is not None
    module = body.blocks[layer].get_submodule(body.family.roles[site.role])
    if site.side == "in":
        return module.register_forward_pre_hook(
            lambda m, args, kwargs: kept.__setitem__((site.name, layer), (*args, *kwargs.values())[0].clone()),
            with_kwargs=True,
        )
    return module.register_forward_hook(
        lambda m, args, out: kept.__setitem__((site.name, layer), first_tensor(out).clone())
    )


def _truth(
    body: Anatomy, name: str, hidden: list[Any], last: Any, kept: dict[tuple[str, int], Any]
) -> NDArray[np.float32]:
    geometry = body.geometry
    if name == "embed":
        return _numpy(hidden[0])
    if name == "final":
        return _numpy(hidden[-1])
    if name == "resid":
        blocks = [*hidden[1 : geometry.layers], last]
        return np.stack([_numpy(state) for state in blocks], 1)
    count = hidden[0].shape[1]
    layers = [kept[name, layer] for layer in range(geometry.layers)]
    if SITES.get(name).shape != "heads":
        return np.stack([_numpy(state.reshape(1, count, -1)) for state in layers], 1)
    return np.stack([_heads(body, name, _numpy(state), count) for state in layers], 1)


def _heads(body: Anatomy, name: str, state: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """[token, head, head_dim] from what the module gave: the layouts of each family, spelled out."""
    heads, size = body.geometry.heads, body.geometry.head_dim
    family = body.family.name if body.family else ""
    if name == "query" and family == "gpt_neox":
        return state.reshape(count, heads, 3, size)[:, :, 0]
    if name == "query" and family == "gemma3":
        return state.transpose(1, 0, 2)
    if name == "query" and family in ("gpt2", "phi3"):
        return state[:, : heads * size].reshape(count, heads, size)
    return state.reshape(count, heads, size)


def _numpy(state: Any) -> NDArray[np.float32]:
    found: NDArray[np.float32] = state[0].float().cpu().numpy()
    return found


def row_error(truth: NDArray[np.float32], recorded: NDArray[np.float32]) -> float:
    """Largest distance of a recorded vector from the truth, relative to the truth's norm; last axis is the vector's."""
    if truth.shape != recorded.shape:
        raise AssertionError(f"shapes differ: the oracle has {truth.shape}, the record {recorded.shape}")
    norm = np.maximum(np.linalg.norm(truth, axis=-1), 1e-6)
    return float((np.linalg.norm(truth - recorded, axis=-1) / norm).max())


def check_run(model: Any, run: Run, *, tolerance: float = 1e-4, seq: int | None = None) -> dict[str, float]:
    """Every recorded row of every site against the oracle; returns the largest error of each site.

    Raises AssertionError when one is over ``tolerance`` (relative to the row's norm).
    """
    tokens = run.tokens_of(seq)
    ids = [int(i) for i in tokens.ids]
    sites = [site for site in run.sites if site != "attn"]
    truth = uncached(model, ids, sites)
    errors: dict[str, float] = {}
    for name in sites:
        expected = truth[name]
        if SITES.get(name).per_layer:
            expected = expected[:, run.layers]
        if name == "final" and expected.shape[-1] != run.states(name, seq=seq).shape[-1]:
            continue  # hidden_states[-1] is the state before the output projection
        errors[name] = row_error(expected, run.states(name, seq=seq))
        assert errors[name] <= tolerance, f"{name}: a row is off by {errors[name]:.2e} of its norm"
    return errors
