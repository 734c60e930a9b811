"""Runs made of given arrays: states whose right answers are known, without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from sotscope.events import SEGMENTS, Branch, Draft, Piece, Step
from sotscope.store.layout import RunSpec, ScalarSpec, SiteSpec
from sotscope.store.reader import Run, open_run
from sotscope.store.writer import Rows, RunWriter

TOP_K = 3
SHARED = ("resid", "attn_out", "mlp_out")
"""Sites whose states live in the residual stream."""


def write_run(
    path: Path,
    sites: Mapping[str, NDArray[Any]],
    *,
    dtype: str = "float32",
    ids: Sequence[int] | None = None,
    words: Mapping[int, str] | None = None,
    segments: Sequence[str] | None = None,
    scalars: Mapping[str, NDArray[Any]] | None = None,
    prompt: int = 1,
    drafts: Mapping[int, Sequence[Draft]] | None = None,
    attributes: Mapping[str, Any] | None = None,
    step_ns: Sequence[int] = (),
    last: int = 0,
    events: Sequence[Mapping[str, Any]] = (),
) -> Run:
    """A finished run of one sequence whose states are ``sites``: [token, dim], [token, layer, dim], or [token, layer,
    head, head_dim] for heads.

    ``ids`` are the input tokens (default 0, 1, ...), ``words`` their texts, ``segments`` theirs (default: ``prompt``
    user tokens, the others generated), ``drafts`` those of the step at a row, ``step_ns`` the forward time of each row,
    ``last`` the token that the last row chose, ``events`` what happened besides ({"kind": ..., ...} each).
    """
    count = len(next(iter(sites.values())))
    tokens = np.arange(count) if ids is None else np.asarray(ids)
    spec = _spec(sites, dtype, scalars or {})
    parts = segments or ["user" if i < prompt else "generated" for i in range(count)]
    texts = words or {}
    with RunWriter(
        path, spec, attributes=attributes or {"model": {"name": "given", "dtype": dtype}},
        piece_of=lambda token: Piece(token, texts.get(token, f"Ġ{token}"), texts.get(token, f" {token}").encode()),
    ) as writer:  # fmt: skip
        writer.sequence(Branch(0, prompt))
        writer.event("config", settings={})
        for row in range(count):
            following = int(tokens[row + 1]) if row + 1 < count else last
            tried = tuple((drafts or {}).get(row, ()))
            step = Step(
                row, 0, "prompt" if row < prompt - 1 else "sot" if tried else "ar", row, (int(tokens[row]),),
                (following,), window=len(tried), accepted=0, drafts=tried, reason="drafted" if tried else "plain",
                forward_ns=int(step_ns[row]) if len(step_ns) else 1_000_000,
            )  # fmt: skip
            writer.commit(step, _row(spec, sites, scalars or {}, row, SEGMENTS.index(parts[row])))
        for event in events:
            writer.event(**event)
        writer.sequence(Branch(0, prompt, finish="max_new_tokens"))
        writer.event(
            "outcome", mode="ar", new_tokens=count - prompt + 1, tokens_per_second=10.0, tokens_per_forward=1.0
        )
    return open_run(path)


def _spec(sites: Mapping[str, NDArray[Any]], dtype: str, scalars: Mapping[str, NDArray[Any]]) -> RunSpec:
    layers = max((array.shape[1] for array in sites.values() if array.ndim > 2), default=1)
    made = []
    for name, array in sites.items():
        width = "dim" if name in SHARED else f"{name}_dim"
        dims = {2: ("token", "dim"), 3: ("token", "layer", width), 4: ("token", "layer", "head", "head_dim")}
        made.append(
            SiteSpec(
                name=name,
                row=array.shape[1:],
                dims=dims[array.ndim],
                dtype=dtype,
                source_dtype=dtype,
                layers=tuple(range(array.shape[1])) if array.ndim > 2 else None,
            )
        )
    axes = {1: ("token",), 2: ("token", "layer"), 3: ("token", "layer", "head")}
    specs = [ScalarSpec(name=name, row=values.shape[1:], dims=axes[values.ndim]) for name, values in scalars.items()]
    return RunSpec(
        sites=tuple(made), scalars=tuple(specs), layers=tuple(range(layers)), top_k=TOP_K,
        chunk_bytes=1 << 16, small_chunk_bytes=1 << 12,
    )  # fmt: skip


def _row(
    spec: RunSpec, sites: Mapping[str, NDArray[Any]], scalars: Mapping[str, NDArray[Any]], row: int, segment: int
) -> Rows:
    return Rows(
        states={
            site.name: np.asarray(sites[site.name][row : row + 1]).astype(native(site.dtype)) for site in spec.sites
        },
        scalars={name: np.asarray(values[row : row + 1], np.float32) for name, values in scalars.items()},
        present=np.ones((1, len(spec.layers)), bool),
        top_id=np.zeros((1, TOP_K), np.int32),
        top_logprob=np.zeros((1, TOP_K), np.float32),
        segments=(segment,),
    )


def native(dtype: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
