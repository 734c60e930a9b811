"""Pools: threads of this machine, or a dask cluster that is already there."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

from sotscope.errors import AnalysisError

T = TypeVar("T")
R = TypeVar("R")

Progress = Callable[[str, int, int], None]
"""Told the label of what is worked on, how many pieces are done, and of how many."""


def nobody(label: str, done: int, of: int) -> None:
    """A progress that tells no one."""


class Threads:
    """One thread a core: numpy works outside the interpreter's lock. Its own threads rest meanwhile."""

    def __init__(self, progress: Progress = nobody, workers: int | None = None) -> None:
        self._progress = progress
        self._workers = workers or os.cpu_count() or 1

    def map(self, work: Callable[[T], R], tasks: Iterable[T], label: str) -> Iterator[R]:
        with threadpool_limits(1), ThreadPoolExecutor(self._workers) as threads:
            ahead = 2 * self._workers
            yield from _in_order(lambda task: threads.submit(work, task), tasks, ahead, self._progress, label)


class Dask:
    """An existing dask cluster, by the address of its scheduler. Workers must see the run under the same path.

    Raises AnalysisError where ``distributed`` is not installed or nobody answers.
    """

    def __init__(self, address: str, progress: Progress = nobody, timeout: str = "10s") -> None:
        try:
            import distributed
        except ImportError:
            raise AnalysisError("--dask needs: pip install 'sotscope[dask]'.") from None
        try:
            module: Any = distributed
            self._client = module.Client(address, timeout=timeout, set_as_default=False)
        except (OSError, ValueError) as error:
            raise AnalysisError(f"no dask scheduler answers at {address} ({error}).") from error
        self._progress = progress

    def map(self, work: Callable[[T], R], tasks: Iterable[T], label: str) -> Iterator[R]:
        ahead = 2 * max(1, sum(self._client.nthreads().values()))
        submit = partial(self._client.submit, work, pure=False)
        yield from _in_order(submit, tasks, ahead, self._progress, label)

    def close(self) -> None:
        self._client.close()


def _in_order(
    submit: Callable[[T], Any], tasks: Iterable[T], ahead: int, progress: Progress, label: str
) -> Iterator[Any]:
    """Results of all tasks as they were given; at most ``ahead`` are worked on or wait to be taken."""
    todo = deque(tasks)
    count = len(todo)
    progress(label, 0, count)
    running = deque(submit(todo.popleft()) for _ in range(min(count, ahead)))
    for done in range(1, count + 1):
        found = running.popleft().result()
        if todo:
            running.append(submit(todo.popleft()))
        progress(label, done, count)
        yield found
