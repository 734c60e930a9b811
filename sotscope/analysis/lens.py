"""`lens`: which words each layer would say, and where the model makes up its mind.

Logit lens: nostalgebraist 2020, "interpreting GPT: the logit lens" (LessWrong); the divergence is that of Belrose et
al. 2023 (arXiv 2303.08112), KL(final || layer). Early layers need not speak the last one's language: what they "say" is
a reading, not a fact.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray
from pydantic import Field

from sotscope.analysis import figures
from sotscope.analysis.agreement import head_for
from sotscope.analysis.contracts import Analyzer, Params, Pool
from sotscope.analysis.facts import facts, left_out
from sotscope.analysis.head import Head
from sotscope.analysis.lens_figures import words_figure
from sotscope.analysis.lens_look import Seen, Task, look, tasks
from sotscope.analysis.lens_say import say
from sotscope.analysis.report import Report
from sotscope.analysis.view import View


class LensParams(Params):
    rows: int = Field(default=256, ge=1)
    """How many rows are looked at, evenly spread over the view."""
    full: bool = False
    """Look at all rows; takes long."""
    top: int = Field(default=5, ge=1, le=20)
    """How many of the likeliest words are kept of each layer."""
    begin: int | None = Field(default=None, ge=0)
    """Where the table of words begins, among the rows of the view (default: where the model begins to write)."""
    window: int = Field(default=40, ge=1, le=200)
    """How many tokens the table of words shows."""
    all_rows: bool = False
    """Count sinks in as well."""


class Lens(Analyzer):
    name: ClassVar[str] = "lens"
    title: ClassVar[str] = "What each layer would say (logit lens)"
    sites: ClassVar[tuple[str, ...]] = ("resid",)
    Params: ClassVar[type[Params]] = LensParams

    def analyze(self, view: View, params: LensParams, pool: Pool) -> Report:
        report = Report(self.name, self.title)
        head, why_not = _head(view)
        if head is None:
            report.left_out = [why_not]
            return report
        found = facts(view, "resid", pool)
        fair = ~found.bad if params.all_rows else found.keep
        report.left_out = [line for line in left_out(found, view.labels) if not params.all_rows or "NaN" in line]
        at, sampled = _rows(view, params, fair, ~found.bad)
        if not len(at):
            report.find("No row is left once sinks and rows that are not finite are set aside.", "warning")
            return report
        if sampled.sum() < fair.sum():
            report.left_out.append(
                f"{int(sampled.sum())} of {int(fair.sum())} rows are looked at, evenly spread (rows=, or full=true)"
            )
        layers = tuple(sorted(view.layers_of("resid") or ()))
        following = view.tokens.next_ids[at].astype(np.int64)
        reference = _reference(view, head)
        if reference is None:
            report.left_out.append(
                f"KL to the final distribution: neither layer {head.layers - 1} nor site final was recorded"
            )
        recorded = view.run.top[0][view.rows[at], 0].astype(np.int64)
        task = Task(view.run, head, view.rows[at], layers, reference, following, recorded, params.top)
        seen = _joined(list(pool.map(look, tasks(task), "lens")))
        report.tables = {
            "by_layer": _by_layer(seen, layers, sampled),
            "by_token": _by_token(seen, view, head, at, layers, sampled),
            "check": _check(seen, view, at),
        }
        say(report, seen, view.run.attributes.get("model", {}).get("dtype", "float32"))
        report.figures = _figures(report, view, params)
        return report


def _head(view: View) -> tuple[Head | None, str]:
    """The head of the run's model, or why layers cannot be read as words."""
    head, why = head_for(view)
    if head is None:
        return None, why
    if head.norm == "unknown":
        return None, "the final norm of this model is of a kind that could not be rebuilt, so layers say no words"
    width = view.width("resid")
    if head.dim not in (0, width):
        return None, f"the head takes states of {head.dim} numbers, resid has {width}"
    return head, ""


def _reference(view: View, head: Head) -> int | str | None:
    """Where the final distribution is taken from."""
    if head.layers - 1 in (view.run.spec.site("resid").layers or ()):
        return head.layers - 1
    return "final" if "final" in view.run.sites else None


def _rows(
    view: View, params: LensParams, fair: NDArray[np.bool_], finite: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Positions that are looked at: the sample, and the window of the table; and which are of the sample."""
    sample = view.sample(len(view) if params.full else params.rows, fair)
    window = np.zeros(len(view), bool)
    window[_window(view, params)] = True
    at = np.union1d(sample, np.flatnonzero(window & finite))
    return at, np.isin(at, sample)


def _window(view: View, params: LensParams) -> slice:
    written = [i for i, mode in enumerate(view.tokens.modes) if mode != "prompt"]
    begin = params.begin if params.begin is not None else written[0] if written else 0
    begin = max(0, min(begin, len(view) - params.window))
    return slice(begin, begin + params.window)


def _joined(parts: list[Seen]) -> Seen:
    return Seen(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])})


def settles(seen: Seen) -> NDArray[np.int64]:
    """[row] index of the layer from which on the likeliest word stays the final one; -1 where none does."""
    same = seen.ids[:, :, 0] == seen.final_id[:, None]
    stays = np.flip(np.logical_and.accumulate(np.flip(same, 1), 1), 1)
    return np.where(stays.any(1), stays.argmax(1), -1)


def _by_layer(seen: Seen, layers: tuple[int, ...], sampled: NDArray[np.bool_]) -> pd.DataFrame:
    """Percentiles over the sampled rows, in nats; shares of them."""
    kl, entropy = seen.kl[sampled], seen.entropy[sampled]
    settled = settles(seen)[sampled]
    known = seen.final_id[sampled] >= 0
    nothing = np.full(len(layers), np.nan)
    per_layer = np.bincount(settled[settled >= 0], minlength=len(layers)) / max(1, len(settled))
    agrees = (seen.ids[sampled, :, 0] == seen.final_id[sampled, None]).mean(0)
    quartiles = np.percentile(kl, [25, 50, 75], axis=0)
    return pd.DataFrame(
        {
            "layer": layers,
            "kl_p25": quartiles[0],
            "kl_median": quartiles[1],
            "kl_p75": quartiles[2],
            "entropy_median": np.median(entropy, 0),
            "agrees": agrees if known.all() else nothing,
            "settles": per_layer if known.all() else nothing,
            "settled": np.cumsum(per_layer) if known.all() else nothing,
            "following_logprob_median": _median(seen.logprob[sampled]),
        }
    )


def _median(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Over rows that have a value (the last one has no following token); [layer]."""
    kept = values[np.isfinite(values).all(1)]
    return np.median(kept, 0) if len(kept) else np.full(values.shape[1], np.nan)


def _by_token(
    seen: Seen, view: View, head: Head, at: NDArray[np.int64], layers: tuple[int, ...], sampled: NDArray[np.bool_]
) -> xr.Dataset:
    """Of the rows that were looked at (``token`` is their position in the view)."""
    unique, back = np.unique(seen.ids, return_inverse=True)
    words = np.array([head.label(int(i)) for i in unique], object)[back].reshape(seen.ids.shape)
    settled = settles(seen)
    following = view.tokens.next_ids[at]
    data = {
        "word": (("token", "layer", "rank"), words),
        "id": (("token", "layer", "rank"), seen.ids),
        "prob": (("token", "layer", "rank"), seen.probs),
        "kl": (("token", "layer"), seen.kl),
        "entropy": (("token", "layer"), seen.entropy),
        "following_logprob": (("token", "layer"), seen.logprob),
        "settles": ("token", np.where(settled >= 0, np.array(layers)[settled], np.nan)),
        "final_word": ("token", [head.label(int(i)) if i >= 0 else "" for i in seen.final_id]),
        "following": ("token", [view.run.pieces.label(int(i)) for i in following]),
        "sampled": ("token", sampled),
    }
    labels = [view.labels[i] for i in at]
    coords = {
        "token": at,
        "layer": list(layers),
        "rank": np.arange(1, seen.ids.shape[2] + 1),
        "label": ("token", labels),
    }
    return xr.Dataset(data, coords=coords)


def _check(seen: Seen, view: View, at: NDArray[np.int64]) -> pd.DataFrame:
    """The final distribution as rebuilt, against the likeliest token that was recorded with the row."""
    ids, logprobs = view.run.top
    rows = view.rows[at]
    known = (ids[rows, 0] >= 0) & (seen.final_id >= 0)
    rows = rows[known]
    return pd.DataFrame(
        {
            "token": at[known],
            "recorded": ids[rows, 0],
            "recorded_logprob": logprobs[rows, 0].astype(np.float64),
            "recorded_rebuilt_logprob": seen.recorded_logprob[known],
            "rebuilt": seen.final_id[known],
            "rebuilt_logprob": seen.final_logprob[known],
        }
    )


def _figures(report: Report, view: View, params: LensParams) -> dict[str, Any]:
    by_layer: Any = report.tables["by_layer"]
    by_token: Any = report.tables["by_token"]
    layers = by_layer.layer.tolist()
    window = _window(view, params)
    kl = {"median": by_layer.kl_median, "25 %": by_layer.kl_p25, "75 %": by_layer.kl_p75}
    made = {
        "words": partial(words_figure, by_token, window),
        "entropy_by_layer": partial(
            figures.lines, {"median": by_layer.entropy_median}, "Entropy of what each layer would say, over tokens",
            "layer", "entropy (nats)", at=layers,
        ),
    }  # fmt: skip
    if np.isfinite(by_layer.kl_median).any():
        title = "KL(final || layer), token by layer"
        made |= {
            "kl_by_layer": partial(
                figures.lines, kl, "KL(final || layer), over tokens", "layer", "KL (nats)", at=layers
            ),
            "settles": partial(
                figures.lines, {"settled": 100 * by_layer.settled, "agrees": 100 * by_layer.agrees},
                "Where the word that wins is already on top: to stay (settled), or just here (agrees)",
                "layer", "tokens (%)", at=layers,
            ),
            "kl": partial(_kl_figure, by_token, view.labels, layers, title),
        }  # fmt: skip
    return made


def _kl_figure(by_token: xr.Dataset, labels: list[str], layers: list[int], title: str) -> Any:
    values = np.full((len(labels), len(layers)), np.nan)
    values[by_token["token"].values] = by_token["kl"].values
    return figures.heatmap(values, labels, layers, title, "KL (nats)")
