"""Fixtures that most tests share. torch is imported only by the fixtures that need it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test may reach for the network
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny matrices: a second thread waits more than it works
os.environ.pop("COLUMNS", None)  # set to 80 in workers of pytest-xdist: outputs are checked as a pipe sees them
settings.register_profile("sotscope", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("sotscope")


@pytest.fixture(scope="session")
def llama() -> Any:
    """A Llama of 4 layers, hidden size 32 and 97 tokens, for tests that do not change it."""
    from sotscope.testing.tiny import tiny

    return tiny("llama")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An engine process with a tiny model, ready; one for all tests of a file."""
    from cli_helpers import model_folder

    from sotscope.live.client import Engine

    made = Engine(tmp_path_factory.mktemp("runs"), str(model_folder()))
    made.start()
    assert made.wait_for("idle").text == "ready"
    yield made
    made.close()


@pytest.fixture
def go(tmp_path: Path) -> Callable[..., Any]:
    """``record()`` into a folder of its own: ``go(model, prompt, **settings)`` gives the finished run.

    The prompt is five token ids unless another one is given.
    """
    from sotscope.recorder import record

    numbers = itertools.count()

    def run(model: Any, prompt: str | None = "5 17 3 88 41", **settings: Any) -> Any:
        return record(model, prompt, out=tmp_path / f"{next(numbers)}.sot", **settings)

    return run
