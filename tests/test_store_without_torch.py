"""A run is read where neither torch nor transformers is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import store_helpers as helpers

BLOCK = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "accelerate", "gguf", "safetensors", "psutil"):
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Blocked())
"""

READ = """
import sotscope
from sotscope.store.verify import verify

run = sotscope.open_run(sys.argv[1], live=True)
assert run.refresh() == 0
assert run.states("resid", layer=1).shape == (10, 8)
assert run.states("resid", seq=0, tokens=slice(2, 5)).shape == (3, 3, 8)
assert run.scalars("norm").shape == (10, 3)
assert run.top[0].shape == (10, 3)
assert run.tokens.text.startswith(" 0 7 14")
assert run.tokens.labels[1] == "␣7"
assert len(run.steps) == 4 and len(run.drafts) == 6 and len(run.sequences) == 1
assert run.events("config")[0]["settings"] == {"a": 1}
assert run.to_xarray().resid.sel(layer=2).values.shape == (10, 8)
assert run.info()["rows"] == 10 and repr(run)
assert verify(sys.argv[1]).sound
assert isinstance(run, sotscope.Run)
assert not {"torch", "transformers"} & set(sys.modules)
"""


def run_blocked(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", BLOCK + code, *arguments], capture_output=True, text=True, timeout=120)


def test_everything_a_reader_does_works_without_torch(tmp_path: Path) -> None:
    done = run_blocked(READ, str(helpers.make_run(tmp_path / "a.sot")))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "module",
    [
        "sotscope",
        "sotscope.store.reader",
        "sotscope.store.writer",
        "sotscope.store.verify",
        "sotscope.store.forecast",
        "sotscope.catalog",
        "sotscope.config",
        "sotscope.registry",
        "sotscope.events",
    ],
)
def test_module_imports_without_torch(module: str) -> None:
    done = run_blocked(f"import {module}")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_block_blocks() -> None:
    done = run_blocked("import sotscope.recorder")
    assert done.returncode == 1
    assert "is not installed here" in done.stderr
