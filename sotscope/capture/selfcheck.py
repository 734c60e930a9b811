"""The self-check: are the recorded rows what the model computes?

Three kinds of evidence: ``resid``, ``embed`` and ``final`` against ``output_hidden_states`` of one uncached forward
over the first tokens; identities between sites (the output projection of ``head_out`` is ``attn_out``; the down
projection of ``mlp_act`` is ``mlp_out``); and, through final norm and head, the last block's rows against the
recorded likeliest token.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sotscope.capture.plan import Plan, as_it_was
from sotscope.errors import SiteError

TOLERANCE = {"float32": 1e-3, "float16": 3e-2, "bfloat16": 8e-2}
"""Largest relative error of a row that passes: cached and uncached forwards multiply matrices of different widths."""
CHECKED_TOKENS = 48

ReadRows = Callable[[str, int | None, NDArray[np.int64]], NDArray[np.float32]]
"""(site, layer, rows) to states [row, ...] as recorded."""


@dataclass
class SelfCheck:
    """``errors`` are the largest relative errors by what was compared; ``passed`` says whether all are in
    bounds (None: nothing was compared)."""

    passed: bool | None = None
    rows: int = 0
    errors: dict[str, float] = field(default_factory=dict)
    skipped: str = ""

    def note(self, name: str, error: float, tolerance: float) -> None:
        self.errors[name] = max(error, self.errors.get(name, 0.0))
        self.passed = self.passed is not False and bool(error <= tolerance)

    def as_dict(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "rows": self.rows,
            "errors": {name: float(f"{error:.3g}") for name, error in self.errors.items()},
            "skipped": self.skipped,
        }


@torch.inference_mode()
def self_check(
    plan: Plan,
    ids: Sequence[int],
    read: ReadRows,
    top_id: NDArray[np.int32],
    dtype: str,
    changed: Collection[str] = (),
) -> SelfCheck:
    """Compare recorded rows of one sequence with an uncached forward over its first ``ids [token]``.

    ``top_id [token]`` is the recorded likeliest next token of each row (-1: not recorded), ``dtype`` the type that
    states were stored in. What does not hold for the sites that interventions ``changed`` is not compared: there a
    module's output is not what it makes of its input.
    """
    result = SelfCheck()
    count = min(len(ids), CHECKED_TOKENS)
    tolerance = TOLERANCE[dtype]
    rows = np.unique(np.linspace(0, count - 1, 8).astype(np.int64))
    result.rows = len(rows)
    _hidden_states(plan, list(ids[:count]), rows, read, tolerance, result, changed)
    _identities(plan, rows, read, tolerance, result, changed)
    if "final" not in changed:
        _heads(plan, read, top_id, tolerance, result)
    return result


def _hidden_states(
    plan: Plan,
    ids: list[int],
    rows: NDArray[np.int64],
    read: ReadRows,
    tolerance: float,
    result: SelfCheck,
    changed: Collection[str],
) -> None:
    body = plan.anatomy
    inputs = torch.tensor([ids], device=body.model.device)
    with as_it_was(body.model):
        states = body.model(inputs, use_cache=False, output_hidden_states=True).hidden_states
    first = body.first_block_state
    if plan.stored("embed") and first == 1:
        result.note("embed", _error(_pick(states[0], rows), read("embed", None, rows)), tolerance)
    if plan.stored("final") and "final" not in changed:
        final = states[-1]
        recorded = read("final", None, rows)
        if final.shape[-1] == recorded.shape[-1]:
            result.note("final", _error(_pick(final, rows), recorded), tolerance)
    if not plan.stored("resid"):
        return
    for layer in plan.layers:
        if layer + first == len(states) - 1:
            continue  # the list holds the normed state there; the head check covers this layer
        result.note("resid", _error(_pick(states[layer + first], rows), read("resid", layer, rows)), tolerance)


def _identities(
    plan: Plan, rows: NDArray[np.int64], read: ReadRows, tolerance: float, result: SelfCheck, changed: Collection[str]
) -> None:
    for inner, outer in (("head_out", "attn_out"), ("mlp_act", "mlp_out")):
        if not (plan.stored(inner) and plan.stored(outer)) or outer in changed:
            continue
        modules = {point.layer: point.module for point in plan.points if point.site.name == inner}
        others = {point.layer: point.module for point in plan.points if point.site.name == outer}
        for layer, module in modules.items():
            if others.get(layer) is not module:
                continue
            given = read(inner, layer, rows).reshape(len(rows), -1)
            weight = next(module.parameters())
            made = module(torch.as_tensor(given, dtype=weight.dtype, device=weight.device))
            error = _error(made.float().cpu().numpy(), read(outer, layer, rows))
            result.note(f"{outer} from {inner}", error, tolerance)


def _heads(plan: Plan, read: ReadRows, top_id: NDArray[np.int32], tolerance: float, result: SelfCheck) -> None:
    """argmax(lm_head(final_norm(last block's row))) is the recorded likeliest token, or as good as ties with it."""
    body = plan.anatomy
    last = body.geometry.layers - 1
    rows = np.flatnonzero(top_id >= 0)
    if not (plan.stored("resid") and last in plan.layers and len(rows)):
        return
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, 8).astype(np.int64))]
    norm, project = final_norm(plan), getattr(body.decoder, "project_out", None)
    head = body.model.get_output_embeddings()
    if norm is None or head is None:
        result.skipped = "no final norm or head to check the last layer with"
        return
    weight = next(head.parameters())
    states = torch.as_tensor(read("resid", last, rows), device=weight.device)
    states = norm(states.to(next(norm.parameters(), weight).dtype))
    states = project(states) if project is not None else states
    logits = head(states.to(weight.dtype)).float()
    recorded = torch.as_tensor(top_id[rows], dtype=torch.long, device=logits.device)
    short = logits.amax(-1) - logits.gather(-1, recorded[:, None])[:, 0]
    wrong = int((short > tolerance * logits.abs().amax(-1)).sum())
    result.note("likeliest token", wrong / len(rows), 0.0)


def final_norm(plan: Plan) -> torch.nn.Module | None:
    """The norm between the last block and the head, or None where the family does not name one."""
    body = plan.anatomy
    path = body.family.roles.get("final_norm") if body.family else None
    if path is None:
        return None
    try:
        found: torch.nn.Module = body.decoder.get_submodule(path)
    except AttributeError as error:
        if getattr(body.decoder, path, None) is None:
            return torch.nn.Identity()  # some OPT models have no final norm
        raise SiteError(f"the final norm {path!r} of {body.family_name} is not there") from error
    return found


def _pick(states: torch.Tensor, rows: NDArray[np.int64]) -> NDArray[np.float32]:
    found: NDArray[np.float32] = states[0, torch.as_tensor(rows, device=states.device)].float().cpu().numpy()
    return found


def _error(truth: NDArray[np.float32], recorded: NDArray[np.float32]) -> float:
    """Largest error of a row, relative to the row's norm; infinite where one has a NaN that the other has not."""
    truth, recorded = truth.reshape(len(truth), -1), recorded.reshape(len(recorded), -1)
    if not np.array_equal(np.isfinite(truth), np.isfinite(recorded)):
        return float("inf")
    difference = np.linalg.norm(np.nan_to_num(truth - recorded), axis=-1)
    return float((difference / np.maximum(np.linalg.norm(np.nan_to_num(truth), axis=-1), 1e-12)).max())
