"""``sotscope.analyze``: one analyzer, or all that a run can answer, over a run or a part of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sotscope.analysis.contracts import Analyzer, Params, Pool
from sotscope.analysis.pool import Threads
from sotscope.analysis.report import Report
from sotscope.analysis.view import Selection, View
from sotscope.catalog import ANALYZERS
from sotscope.errors import AnalysisError
from sotscope.plain import first_error
from sotscope.store.reader import Run, open_run


def analyze(
    name: str,
    run: Run | str | Path | View,
    *,
    layers: Sequence[int] | None = None,
    tokens: tuple[int | None, int | None] | None = None,
    seq: int | None = None,
    part: str = "all",
    pool: Pool | None = None,
    **params: Any,
) -> Report:
    """The report of the analyzer called ``name``: ``analyze("norms", "runs/a.sot", layers=[0, 29]).figure("heatmap")``.

    ``layers``, ``tokens`` (start, stop), ``seq`` and ``part`` ("prompt", "generated") select; ``params`` are the
    analyzer's own. Raises AnalysisError (an unknown name, parameter or selection; a site the run lacks), StoreError.
    """
    view = run if isinstance(run, View) else make_view(run, layers=layers, tokens=tokens, seq=seq, part=part)
    return run_one(ANALYZERS.get(name)(), view, params, pool or Threads())


def make_view(run: Run | str | Path, **selection: Any) -> View:
    """A view of ``run``. Raises AnalysisError for a selection that is out of range."""
    try:
        chosen = Selection(**{key: value for key, value in selection.items() if value is not None})
    except ValidationError as error:
        raise AnalysisError(first_error(error)) from error
    return View(run if isinstance(run, Run) else open_run(run, live=True), chosen)


def parameters(analyzer: Analyzer, given: dict[str, Any]) -> Params:
    """What the analyzer is told. Raises AnalysisError for a parameter that it does not have, or a wrong value."""
    try:
        return analyzer.Params(**given)
    except ValidationError as error:
        raise AnalysisError(f"{analyzer.name}: {first_error(error)}") from error


def run_one(analyzer: Analyzer, view: View, params: dict[str, Any], pool: Pool) -> Report:
    """Check what the analyzer needs, run it, and note what it was told and how long it took."""
    given = parameters(analyzer, params)
    _needs(analyzer, view)
    begin = time.perf_counter()
    report = analyzer.analyze(view, given, pool)
    report.seconds = time.perf_counter() - begin
    report.params = given.model_dump()
    return report


def answerable(view: View, names: Sequence[str] | None = None) -> tuple[list[Analyzer], list[str]]:
    """The analyzers the run can answer (of ``names``, or all), and why the others cannot."""
    made: list[Analyzer] = [ANALYZERS.get(name)() for name in (names or ANALYZERS.names())]
    able, why = [], []
    for analyzer in made:
        try:
            _needs(analyzer, view)
            able.append(analyzer)
        except AnalysisError as error:
            why.append(f"{analyzer.name}: {error}")
    return able, why


def _needs(analyzer: Analyzer, view: View) -> None:
    """Raises AnalysisError for what the analyzer needs and the run does not have."""
    view.need(*analyzer.sites)
    if analyzer.any_site:
        view.first(*analyzer.any_site)
    missing = [name for name in analyzer.scalars if name not in view.run.scalar_names]
    if missing:
        raise AnalysisError(f"{view.run.path.name} has no scalar {missing[0]}; record it again with this version.")
