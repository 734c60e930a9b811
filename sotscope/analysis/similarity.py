"""`similarity`: which layers hold alike representations, where they turn, and how two runs compare, by CKA and cosine.

CKA (``cka``) compares what distances between tokens a layer draws: turning, mirroring and scaling change nothing, and
layers of other sizes, of other models too, can be held against each other. A few rows far from the others would decide
it (Davari et al. 2022, arXiv 2210.16156): those that stand out in any layer are left out. A cosine compares directions
themselves, and says something only where layers write into one space; a few large dimensions that all states share lift
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray
from pydantic import Field

from sotscope.analysis import figures, grids, paired
from sotscope.analysis.cka import FEWEST, blocks, cka, layer_vectors
from sotscope.analysis.contracts import Analyzer, Params, Pool
from sotscope.analysis.moments import Subject, subject
from sotscope.analysis.report import Report
from sotscope.analysis.view import Chunk, View
from sotscope.analysis.wording import NOTHING_LEFT
from sotscope.plain import ranges

RESIDUAL = frozenset({"resid", "attn_out", "mlp_out"})
"""Sites of which all layers write into the same space."""


class SimilarityParams(Params):
    site: str | None = None
    """Which states (default: ``resid``, or the first site there is)."""
    rows: Annotated[int, Field(ge=1)] = 1024
    """Rows at most, evenly spread over the view."""
    debiased: bool = True
    """Debiased CKA; without, fewer rows than dimensions make everything alike."""
    alike: Annotated[float, Field(gt=0, le=1)] = 0.9
    """CKA from which on layers count as alike."""
    other: str | None = None
    """Path of another run: compare the rows up to the first token that differs."""
    all_rows: bool = False
    """Count sinks in as well."""


class Similarity(Analyzer):
    """Tables: ``cka`` [layer, layer_b], ``cosine`` (of rows, of means), ``neighbours``, ``blocks``; with another run
    ``cka_other`` [layer, other_layer] and ``matched``.
    """

    name: ClassVar[str] = "similarity"
    title: ClassVar[str] = "Similarity of layers"
    Params: ClassVar[type[Params]] = SimilarityParams

    def analyze(self, view: View, params: SimilarityParams, pool: Pool) -> Report:
        chosen = subject(view, params.site, params.all_rows, pool).everywhere(view)
        at = view.sample(params.rows, chosen.keep)
        kind = "debiased CKA" if params.debiased else "CKA"
        report = Report(self.name, f"{self.title} ({chosen.site}, {kind} over {len(at)} rows)")
        report.left_out = list(chosen.left_out)
        if len(at) < chosen.keep.sum():
            report.left_out.append(f"{len(at)} of {chosen.keep.sum()} rows count, evenly spread (rows=...)")
        vectors = layer_vectors(chosen.layers(view, at), params.debiased, pool)
        similar = cka(vectors, vectors)
        report.tables["cka"] = _square(similar, chosen.names)
        if not len(at):
            report.find(NOTHING_LEFT, "warning", rows=len(view))
        elif len(at) < FEWEST:
            report.find(f"CKA needs {FEWEST} rows; there are {len(at)}.", "warning", rows=len(at))
        if len(chosen.names) < 2:
            report.left_out.append(f"layers against each other: there is one of {chosen.site}")
        else:
            _within(report, view, chosen, at, similar, params, pool)
        if params.other is not None:
            paired.compare(
                report, view, chosen, params.other, rows=params.rows, debiased=params.debiased, alike=params.alike,
                all_rows=params.all_rows, pool=pool,
            )  # fmt: skip
        return report


def _square(values: NDArray[np.float64], names: list[Any]) -> xr.DataArray:
    return xr.DataArray(values, dims=("layer", "layer_b"), coords={"layer": names, "layer_b": names}, name="cka")


@dataclass(frozen=True)
class _Cosines:
    """Sums over rows of the cosines [layer, layer], how many there are, and the sum of states [layer, dim]."""

    cosine: NDArray[np.float64]
    count: NDArray[np.float64]
    states: NDArray[np.float64]


def _cosines(chunk: Chunk) -> _Cosines:
    states = chunk.read()
    states = states.reshape(*states.shape[:2], -1).astype(np.float64)
    norm = np.linalg.norm(states, axis=-1)
    unit = states / np.where(norm > 0, norm, 1)[..., None]
    some = (norm > 0).astype(np.float64)
    return _Cosines((unit @ unit.swapaxes(1, 2)).sum(0), some.T @ some, states.sum(0))


def _cosine(view: View, chosen: Subject, at: NDArray[np.int64], pool: Pool) -> xr.Dataset:
    """Cosines between layers: mean over rows of theirs, and that of the mean states."""
    count = len(chosen.names)
    rows, pairs = np.zeros((count, count)), np.zeros((count, count))
    total = np.zeros((count, view.width(chosen.site)))
    for part in pool.map(_cosines, view.chunks(chosen.site, among=at), "cosines of layers"):
        rows += part.cosine
        pairs += part.count
        total += part.states
    with np.errstate(invalid="ignore", divide="ignore"):
        unit = total / np.linalg.norm(total, axis=1, keepdims=True)
        data = {"rows": (("layer", "layer_b"), rows / pairs), "means": (("layer", "layer_b"), unit @ unit.T)}
    return xr.Dataset(data, coords={"layer": chosen.names, "layer_b": chosen.names})


def _within(
    report: Report,
    view: View,
    chosen: Subject,
    at: NDArray[np.int64],
    similar: NDArray[np.float64],
    params: SimilarityParams,
    pool: Pool,
) -> None:
    """Layers of the run against each other."""
    names = chosen.names
    steps = {"layer": names[:-1], "next": names[1:], "cka": np.diagonal(similar, 1)}
    apart = ~np.eye(len(names), dtype=bool)
    title = report.title.removeprefix("Similarity of layers (").rstrip(")")
    show = partial(grids.grid, down=("layer", names), across=("layer", names), scaled_by=apart)
    report.figures["cka"] = partial(show, similar, title=f"{title}, layer by layer", unit="CKA")
    if chosen.site in RESIDUAL:
        cosine = _cosine(view, chosen, at, pool)
        report.tables["cosine"] = cosine
        steps |= {f"cosine_{key}": np.diagonal(cosine[key].values, 1) for key in ("rows", "means")}
        report.figures["cosine"] = partial(
            show, cosine["rows"].values, title=f"Mean cosine of {chosen.site} between layers, row by row", unit="cosine"
        )
    else:
        report.left_out.append(f"cosines between layers: those of {chosen.site} do not share a space")
    table = report.tables["neighbours"] = pd.DataFrame(steps)
    series = {key.replace("cka", "CKA").replace("_", " of "): table[key] for key in table.columns[2:]}
    report.figures["neighbours"] = partial(
        figures.lines, series, f"{chosen.site} of a layer and the next", "layer", "CKA, cosine", at=table.layer
    )
    _say(report, chosen, at, similar, params.alike)


def _say(report: Report, chosen: Subject, at: NDArray[np.int64], similar: NDArray[np.float64], alike: float) -> None:
    names = chosen.names
    still = np.isnan(np.diagonal(similar))
    if len(at) < FEWEST:
        return
    if still.any():
        which = ranges([names[i] for i in np.flatnonzero(still)])
        report.find(f"The rows of {chosen.site} are all equal in layer {which}: no CKA there.", "warning", layers=which)
    found = blocks(similar, alike)
    with_next = [similar[last, last + 1] if last + 1 < len(names) else np.nan for _, last in found]
    within = [np.min(similar[a : b + 1, a : b + 1]) for a, b in found]
    report.tables["blocks"] = pd.DataFrame(
        {
            "first": [names[a] for a, _ in found],
            "last": [names[b] for _, b in found],
            "layers": [b - a + 1 for a, b in found],
            "lowest_cka": within,
            "cka_to_next": with_next,
        }
    )
    if still.all():
        return
    if len(found) == 1:
        report.find(
            f"All {len(names)} layers of {chosen.site} are alike: no two have a CKA below {within[0]:.2g}.",
            lowest=within[0],
        )  # fmt: skip
    else:
        parts = ", ".join(ranges(names[a : b + 1]) for a, b in found)
        report.find(
            f"The layers of {chosen.site} fall into {len(found)} blocks with a CKA of at least {alike:g} throughout: "
            f"{parts}.",
            blocks=parts,
        )  # fmt: skip
    steps = np.diagonal(similar, 1)
    if len(steps) > 1 and np.isfinite(steps).any():
        turn, middle = int(np.nanargmin(steps)), float(np.nanmedian(steps))
        report.find(
            f"It turns most from layer {names[turn]} to {names[turn + 1]}, with a CKA of {steps[turn]:.2g}; the median "
            f"of neighbours is {middle:.2g}.", layer=names[turn], cka=steps[turn], median=middle,
        )  # fmt: skip
