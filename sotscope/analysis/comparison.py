"""Runs of one prompt, decoded in different ways, next to the first of them: tokens, states, entropy, speed.

Rows are aligned as long as all tokens up to them are the same; behind the first difference two texts go their own way
and a distance between their states would say nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from sotscope.analysis import figures
from sotscope.analysis.contracts import Pool
from sotscope.analysis.report import Report
from sotscope.analysis.view import Chunk, Selection, View
from sotscope.errors import AnalysisError
from sotscope.store.reader import Run

ROUNDING = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 5e-2}
"""Relative distances that the order of sums explains, by the coarser type of the two runs."""


@dataclass(frozen=True)
class _Pair:
    """The same rows of two runs."""

    ours: Chunk
    theirs: Chunk


def compare(runs: Sequence[Run], pool: Pool, *, site: str | None = None, seq: int = 0) -> Report:
    """The report on ``runs``; the first is what the others are held against.

    ``site``: whose states (default: ``resid``, or the first that all have). Raises AnalysisError for fewer than two
    runs, or a ``site`` that one of them lacks.
    """
    if len(runs) < 2:
        raise AnalysisError("give at least two runs to compare.")
    names = _names(runs)
    site = _common_site(runs, site)
    report = Report("compare", f"{names[0]} and what differs from it")
    lines, distances, entropy = [], {}, {}
    for name, run in zip(names, runs, strict=True):
        shared = aligned(runs[0], run, seq)
        line = _line(name, run, runs[0], shared, seq)
        if run is not runs[0] and site and shared:
            why = _incomparable(runs[0], run, site)
            if why:
                report.left_out.append(f"states of {name}: {why}")
            else:
                distances[name] = _distances(runs[0], run, site, shared, seq, pool)
                line["distance_median"] = float(np.nanmedian(distances[name]["relative"]))
                line["distance_max"] = float(np.nanmax(distances[name]["relative"]))
        if "entropy" in run.scalar_names:
            entropy[name] = run.scalars("entropy", seq)
        lines.append(line)
        _say(report, line, names[0], runs[0], run)
    table = pd.DataFrame(lines)
    report.tables["runs"] = table
    if not site:
        report.left_out.append("states: the runs have no site in common")
    _draw(report, names, distances, entropy, site or "", runs[0])
    return report


def aligned(reference: Run, run: Run, seq: int = 0) -> int:
    """How many rows from the beginning of the sequence stand after the very same tokens in both runs."""
    ours, theirs = reference.tokens_of(seq), run.tokens_of(seq)
    count = min(len(ours), len(theirs))
    raw = [reference.pieces.raw.get(int(i)) for i in ours.ids[:count]]
    other = [run.pieces.raw.get(int(i)) for i in theirs.ids[:count]]
    same = (ours.ids[:count] == theirs.ids[:count]) & np.array([a == b for a, b in zip(raw, other, strict=True)], bool)
    differs = np.flatnonzero(~same)
    return int(differs[0]) if len(differs) else count


def first_difference(reference: Run, run: Run, seq: int = 0) -> int | None:
    """The position of the first token that is not the same, also where one text just ends; None: identical."""
    ours, theirs = reference.tokens_of(seq).all_ids, run.tokens_of(seq).all_ids
    for i, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b or reference.pieces.raw.get(a) != run.pieces.raw.get(b):
            return i
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def _names(runs: Sequence[Run]) -> list[str]:
    """Folder names, with a number where two are the same."""
    seen: dict[str, int] = {}
    out = []
    for run in runs:
        name = run.path.name
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return out


def _common_site(runs: Sequence[Run], site: str | None) -> str | None:
    if site is not None:
        for run in runs:
            View(run).need(site)
        return site
    shared = [name for name in runs[0].sites if all(name in run.sites for run in runs)]
    return "resid" if "resid" in shared else next(iter(shared), None)


def _incomparable(reference: Run, run: Run, site: str) -> str:
    a, b = reference.spec.site(site), run.spec.site(site)
    if a.row[1:] != b.row[1:] or (a.layers is None) != (b.layers is None):
        return f"{site} has other sizes ({list(b.row)}, not {list(a.row)})"
    if a.layers is not None and not set(a.layers) & set(b.layers or ()):
        return f"no layer of {site} in common"
    return ""


def _line(name: str, run: Run, reference: Run, shared: int, seq: int) -> dict[str, Any]:
    outcome = run.info()["outcome"] or {}
    drafts, steps = run.drafts, run.steps
    entropy = run.scalars("entropy", seq)[:shared] if "entropy" in run.scalar_names else np.array([])
    before = reference.scalars("entropy", seq)[:shared] if "entropy" in reference.scalar_names else np.array([])
    change = np.abs(entropy - before) if len(entropy) == len(before) else np.array([])
    forward = steps[steps["mode"] != "prompt"]["forward_ns"]
    return {
        "run": name,
        "mode": outcome.get("mode", ""),
        "policy": outcome.get("policy", "exact"),
        "model": run.attributes.get("model", {}).get("name", ""),
        "dtype": run.attributes.get("model", {}).get("dtype", ""),
        "new_tokens": outcome.get("new_tokens"),
        "first_difference": first_difference(reference, run, seq),
        "aligned_rows": shared,
        "entropy_change": float(np.nanmean(change)) if np.isfinite(change).any() else float("nan"),
        "tokens_per_forward": outcome.get("tokens_per_forward"),
        "acceptance_rate": float(drafts.accepted.mean()) if len(drafts) else None,
        "tokens_per_second": outcome.get("tokens_per_second"),
        "forward_ms": float(forward.median() / 1e6) if len(forward) else float("nan"),
        "distance_median": float("nan"),
        "distance_max": float("nan"),
    }


def _distances(reference: Run, run: Run, site: str, shared: int, seq: int, pool: Pool) -> xr.Dataset:
    """relative (‖b - a‖ / ‖a‖) and cosine, [token, layer], of the aligned rows."""
    spec, other = reference.spec.site(site), run.spec.site(site)
    layers = None if spec.layers is None else tuple(x for x in spec.layers if x in (other.layers or ()))
    part = Selection(seq=seq, tokens=(0, shared), layers=layers)
    views = [View(one, part).chunks(site) for one in (reference, run)]
    pairs = [_Pair(a, b) for a, b in zip(*views, strict=True)]
    parts = list(pool.map(_distance, pairs, f"states of {run.path.name}"))
    relative, cosine = (np.concatenate(column) for column in zip(*parts, strict=True))
    return xr.Dataset(
        {"relative": (("token", "layer"), relative), "cosine": (("token", "layer"), cosine)},
        coords={"token": np.arange(shared), "layer": list(layers) if layers else [site]},
    )


def _distance(pair: _Pair) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    a, b = (_by_layer(chunk) for chunk in (pair.ours, pair.theirs))
    with np.errstate(all="ignore"):
        size, other = np.linalg.norm(a, axis=-1), np.linalg.norm(b, axis=-1)
        relative = np.linalg.norm(b - a, axis=-1) / size
        cosine = np.einsum("tld,tld->tl", a, b) / (size * other)
    both_zero = (size == 0) & (other == 0)
    relative[both_zero], cosine[both_zero] = 0.0, 1.0
    return relative, cosine


def _by_layer(chunk: Chunk) -> NDArray[np.float64]:
    """[token, layer, dim], one layer for a site without."""
    states = chunk.read()
    return states.reshape(len(states), 1 if chunk.layers is None else states.shape[1], -1).astype(np.float64)


def _say(report: Report, line: dict[str, Any], first: str, reference: Run, run: Run) -> None:
    if run is reference:
        return
    where = line["first_difference"]
    if line["model"] != reference.attributes.get("model", {}).get("name", ""):
        report.find(f"{line['run']} is of another model ({line['model']}); only what both have is compared.", "warning")
    fine = where is None or _ends(reference, run, where)
    said = _tokens(line, first, reference, run)
    report.find(said, "note" if fine else "warning", position=where, aligned_rows=line["aligned_rows"])
    kinds = {line["dtype"], reference.attributes.get("model", {}).get("dtype", "")}
    limit = max((ROUNDING.get(kind, 0.0) for kind in kinds), default=0.0)
    distance = line["distance_max"]
    if np.isfinite(distance):
        far = distance > limit
        text = f"States of {line['run']} are within {distance:.2g} of {first}'s where the tokens are the same"
        text += f"; rounding explains no more than about {limit:.0e}." if far else ", which rounding explains."
        report.find(text, "warning" if far else "note", distance_max=distance, median=line["distance_median"])
    ours, theirs = reference.info()["outcome"] or {}, line["tokens_per_second"]
    if theirs and ours.get("tokens_per_second"):
        ratio = theirs / ours["tokens_per_second"]
        report.find(f"{line['run']} wrote {ratio:.2f} times as many tokens a second as {first}.", ratio=ratio)


def _ends(reference: Run, run: Run, where: int) -> bool:
    """Whether one text just stops there."""
    return where == min(len(reference.tokens_of(0).all_ids), len(run.tokens_of(0).all_ids))


def _tokens(line: dict[str, Any], first: str, reference: Run, run: Run) -> str:
    name, where = line["run"], line["first_difference"]
    if where is None:
        return f"{name} says the same as {first}, token for token."
    given = int(reference.sequences["prompt_length"].iloc[0])
    if _ends(reference, run, where):
        longer = name if len(run.tokens_of(0).all_ids) > where else first
        return f"{name} and {first} say the same for {where - given} tokens; then only {longer} goes on."
    what = "already in the prompt" if where < given else f"{where - given} tokens into the answer"
    return f"{name} parts from {first} at token {where}, {what}."


def _draw(
    report: Report, names: list[str], distances: dict[str, Any], entropy: dict[str, Any], site: str, reference: Run
) -> None:
    labels = reference.tokens.labels
    for name, found in distances.items():
        report.tables[f"distance {name}"] = found
        shown = np.log10(np.maximum(found["relative"].values, 1e-9))
        report.figures[f"distance {name}"] = partial(
            figures.heatmap, shown, labels, found["layer"].values.tolist(),
            f"Distance of {site}: {name} from {names[0]}", "log10 of relative distance",
        )  # fmt: skip
    if distances:
        series = {name: np.nanmedian(found["relative"].values, 0) for name, found in distances.items()}
        report.figures["distance by layer"] = partial(
            figures.lines, series, f"Median distance of {site} from {names[0]}, aligned rows", "layer",
            "‖b − a‖ / ‖a‖", log=True,
        )  # fmt: skip
    if entropy:
        report.tables["entropy"] = pd.DataFrame({name: pd.Series(values) for name, values in entropy.items()})
        report.figures["entropy"] = partial(
            figures.lines, entropy, "Entropy of the next token", "token (position)", "entropy (nats)"
        )
