"""The house: nothing imports upwards, torch is not needed to read, and the wheel holds what it should."""

from __future__ import annotations

import ast
import pkgutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import sotscope
import sotscope_dashboards.catalog
import sotscope_hooks
from sotscope import catalog
from sotscope.registry import Registry

ROOT = Path(__file__).parent.parent
PACKAGES = ("sotscope", "hooks/sotscope_hooks", "dashboards/sotscope_dashboards")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TABLES = {**vars(catalog), **vars(sotscope_dashboards.catalog)}
REGISTRIES = {name: value for name, value in TABLES.items() if isinstance(value, Registry)}
READERS = [
    "sotscope", "sotscope.catalog", "sotscope.config", "sotscope.events", "sotscope.registry", "sotscope.store",
    "sotscope.live.client", "sotscope.live.frames", "sotscope_dashboards.app", "sotscope_dashboards.serve",
]  # fmt: skip


def python(code: str, *arguments: str) -> str:
    """What a fresh interpreter prints; its errors fail the test."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_nothing_imports_upwards() -> None:
    python("import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))")


def test_importing_sotscope_loads_no_torch_and_little_else() -> None:
    heavy = python("import sys, sotscope; print([m for m in ('torch', 'transformers', 'zarr') if m in sys.modules])")
    assert heavy.strip() == "[]"


def test_runs_are_read_where_torch_is_not_installed() -> None:
    modules = [
        *READERS,
        *(f"sotscope.store.{module.name}" for module in pkgutil.iter_modules([str(ROOT / "sotscope/store")])),
    ]
    python(
        "import importlib, sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('torch', 'transformers'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Blocked())\n"
        "[importlib.import_module(name) for name in sys.argv[1:]]\n"
        "import sotscope\n"
        "assert sotscope.open_run and sotscope.Run",
        *modules,
    )


def test_every_public_name_is_there_and_typed() -> None:
    tree = ast.parse((ROOT / "sotscope/__init__.py").read_text())
    typed = {
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("sotscope.")
        for alias in node.names
    }
    assert typed == set(sotscope._PUBLIC)
    for name in sotscope._PUBLIC:
        assert getattr(sotscope, name).__doc__
        assert name in dir(sotscope)
    with pytest.raises(AttributeError, match="no attribute 'recrod'"):
        _ = sotscope.recrod


@pytest.mark.parametrize("package", [sotscope, sotscope_hooks])
def test_no_public_name_is_that_of_a_module_beside_it(package: ModuleType) -> None:
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert not modules & set(getattr(package, "_PUBLIC", ()))


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_every_module_says_what_it_is(path: Path) -> None:
    tree = ast.parse(path.read_text())
    if path.name == "__init__.py" and path.parent != ROOT / "sotscope":
        assert all(isinstance(node, ast.Expr) for node in tree.body), "code in an __init__ below the root"
        return
    docstring = ast.get_docstring(tree)
    assert docstring, "no module docstring"
    assert docstring.split("\n")[0].endswith((".", ":", "?")), "its first line is not a sentence"


@pytest.mark.parametrize("name", list(REGISTRIES))
def test_every_catalog_entry_loads(name: str) -> None:
    registry = REGISTRIES[name]
    assert registry.names()
    for entry in registry:
        assert registry.get(entry) is not None
        assert getattr(registry.get(entry), "name", entry) == entry


def test_the_wheel_holds_three_packages_and_nothing_else(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {
        "sotscope",
        "sotscope_hooks",
        "sotscope_dashboards",
    }
    inside = {name for name in names if name.endswith(".py")}
    assert inside == {relative(path).removeprefix("hooks/").removeprefix("dashboards/") for path in SOURCES}
    assert {f"{package}/py.typed" for package in ("sotscope", "sotscope_hooks", "sotscope_dashboards")} <= set(names)
    assert {"sotscope_dashboards/assets/style.css", "sotscope/analysis/assets/report.html.j2"} <= set(names)
    assert len([name for name in names if name.endswith(".sot/journal.bin")]) == 2  # what `sotscope demo` opens
    (points,) = [name for name in names if name.endswith("entry_points.txt")]
    text = zipfile.ZipFile(wheel).read(points).decode()
    assert "sotscope = sotscope.cli.main:main" in text
    assert "bfloat16 = sotscope.store.dtypes:BFloat16" in text
