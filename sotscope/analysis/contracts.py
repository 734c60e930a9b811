"""The contracts of analysis: an analyzer, its parameters, and the pool it hands its work to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

from sotscope.analysis.report import Report
from sotscope.analysis.view import View

T = TypeVar("T")
R = TypeVar("R")


class Pool(Protocol):
    """Where the pieces of an analysis are worked on: threads of this machine, or a cluster."""

    def map(self, work: Callable[[T], R], tasks: Iterable[T], label: str) -> Iterator[R]:
        """``work`` of every task, in order. Few results are in memory at a time: reduce them as they come.

        ``work`` is a function of a module (it may have to be sent elsewhere), or a partial of one.
        """


class Params(BaseModel):
    """Parameters of an analyzer; subclasses add fields with defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Analyzer(ABC):
    """A function over a view of a run. One file each, one line in the catalog; it holds no state between calls.

    ``sites`` must all have been recorded, ``any_site`` at least one of them; ``scalars`` are always-on numbers it
    reads. ``Params`` is the model of its parameters.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    sites: ClassVar[tuple[str, ...]] = ()
    any_site: ClassVar[tuple[str, ...]] = ()
    scalars: ClassVar[tuple[str, ...]] = ()
    Params: ClassVar[type[Params]] = Params

    @abstractmethod
    def analyze(self, view: View, params: Any, pool: Pool) -> Report:
        """The report. Reads states in chunks (``view.chunks``) and hands them to ``pool``.

        Raises AnalysisError where the view cannot answer; odd data (few rows, equal rows, NaN) is no error but a
        finding.
        """
