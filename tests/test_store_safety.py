"""A run may come from anywhere: what is not a harmless Zarr v3 run is one line, and nothing in it is executed."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import store_helpers as helpers

from sotscope.errors import StoreError
from sotscope.store.layout import STATES
from sotscope.store.reader import open_run
from sotscope.store.verify import verify


class Trap:
    """Unpickling it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    file = path / STATES / "zarr.json"
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


def children(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["consolidated_metadata"]["metadata"]
    return found


def add_v2_pickles(path: Path, *, beside: bool) -> None:
    """A Zarr v2 array of pickled objects, beside the v3 metadata or instead of them."""
    root = path / STATES
    if not beside:
        (root / "zarr.json").unlink()
    (root / ".zgroup").write_text('{"zarr_format": 2}')
    (root / "objects").mkdir()
    array = {
        "zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "|O", "compressor": None, "fill_value": None,
        "order": "C", "filters": [{"id": "pickle", "protocol": 5}],
    }  # fmt: skip
    (root / "objects/.zarray").write_text(json.dumps(array))
    (root / "objects/0").write_bytes(pickle.dumps([Trap(path.with_name("executed"))]))


CASES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "v2 store": (lambda path: add_v2_pickles(path, beside=False), "is a Zarr v2 store; sotscope opens Zarr v3 only"),
    "v2 beside v3": (lambda path: add_v2_pickles(path, beside=True), "is a Zarr v2 store"),
    "v2 child": (
        lambda path: edit(path, lambda d: children(d)["resid"].update(zarr_format=2)),
        "resid in .* is not Zarr v3",
    ),
    "object dtype": (
        lambda path: edit(path, lambda d: children(d)["resid"].update(data_type="object")),
        "resid has data type 'object'; only numbers are opened",
    ),
    "structured dtype": (
        lambda path: edit(path, lambda d: children(d)["resid"].update(data_type={"name": "struct"})),
        "only numbers are opened",
    ),
    "pickle codec": (
        lambda path: edit(path, lambda d: children(d)["resid"]["codecs"].append({"name": "numcodecs.pickle"})),
        r"resid uses codec 'numcodecs\.pickle'; allowed are: blosc, bytes",
    ),
    "codec inside shards": (
        lambda path: edit(
            path,
            lambda d: children(d)["resid"].update(
                codecs=[{"name": "sharding_indexed", "configuration": {"codecs": [{"name": "evil"}]}}]
            ),
        ),
        "uses codec 'evil'",
    ),
    "no root": (lambda path: (path / STATES / "zarr.json").unlink(), r"has no zarr\.json: this is not a sotscope run"),
    "no states": (lambda path: shutil.rmtree(path / STATES), r"has no zarr\.json"),
    "half a root": (lambda path: (path / STATES / "zarr.json").write_text('{"a'), "is damaged"),
    "no text": (lambda path: (path / STATES / "zarr.json").write_bytes(b"\xff\xfe"), "is damaged"),
    "a list": (lambda path: (path / STATES / "zarr.json").write_text("[]"), "is damaged"),
    "odd children": (
        lambda path: edit(path, lambda d: d["consolidated_metadata"].update(metadata={"resid": 3})),
        "is damaged",
    ),
    "odd attributes": (lambda path: edit(path, lambda d: d["attributes"].update(committed="all")), "is damaged"),
    "no attributes": (lambda path: edit(path, lambda d: d.pop("attributes")), "is damaged"),
    "not consolidated": (lambda path: edit(path, lambda d: d.pop("consolidated_metadata")), "is damaged"),
    "no journal": (lambda path: (path / "journal.bin").unlink(), r"is not a sotscope run \(it has no journal\.bin\)"),
    "another file": (
        lambda path: (path / "journal.bin").write_bytes(b"SQLite format 3"),
        "is not a sotscope journal",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_must_not_be_opened_is_one_line(tmp_path: Path, case: str) -> None:
    path = helpers.make_run(tmp_path / "a.sot")
    spoil, message = CASES[case]
    spoil(path)
    with pytest.raises(StoreError, match=message) as caught:
        open_run(path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "executed").exists()
    with suppress(StoreError):
        assert not verify(path).sound
    assert not (tmp_path / "executed").exists()


def test_the_trap_works(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Trap(tmp_path / "executed")))
    assert (tmp_path / "executed").exists()


def test_not_a_run_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    for name, message in (
        ("missing.sot", "does not exist"),
        ("file", "is not a sotscope run"),
        ("folder", "is not a sotscope run"),
    ):
        with pytest.raises(StoreError, match=message) as caught:
            open_run(tmp_path / name)
        assert "\n" not in str(caught.value)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "folder"]  # a reader makes nothing


@pytest.mark.parametrize("name", [".zgroup", ".zarray", ".zmetadata"])
def test_any_sign_of_zarr_v2_is_enough(tmp_path: Path, name: str) -> None:
    path = helpers.make_run(tmp_path / "a.sot")
    (path / STATES / name).write_text("{}")
    with pytest.raises(StoreError, match="is a Zarr v2 store"):
        open_run(path)


def test_a_plain_v2_store_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / ".zgroup").write_text('{"zarr_format": 2}')
    with pytest.raises(StoreError, match="is a Zarr v2 store"):
        open_run(tmp_path)


def test_reading_writes_nothing(tmp_path: Path) -> None:
    path = helpers.make_run(tmp_path / "a.sot")
    before = {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in path.rglob("*")}
    run = open_run(path)
    run.refresh()
    run.info()
    run.to_xarray().load()
    _ = (run.tokens.text, run.steps, run.drafts, run.sequences, run.events(), run.top, run.states("resid", seq=0))
    assert verify(path).sound
    assert {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in path.rglob("*")} == before
