"""The arrays of ``states.zarr``: which there are for a spec, where their rows come from, and their zarr metadata.

zarr itself writes the metadata (into memory, once); publishing only changes the first number of each shape.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.storage import MemoryStore

from sotscope.errors import StoreError
from sotscope.store import layout
from sotscope.store.dtypes import NATIVE, BFloat16
from sotscope.store.hot import HotArray
from sotscope.store.journal import Commit, JournalReader
from sotscope.store.layout import RunSpec


@dataclass(frozen=True)
class ArraySpec:
    """One zarr array: ``axis`` is what its first axis counts (token, step, draft, sequence), or "" if it is fixed."""

    path: str
    axis: str
    row: tuple[int, ...]
    dims: tuple[str, ...]
    dtype: np.dtype[Any]
    field: str = ""
    """The journal field that holds its rows; "" for state arrays and coordinates."""
    values: tuple[int, ...] | None = None
    """The values of a fixed coordinate."""
    attributes: tuple[tuple[str, Any], ...] = ()
    big: bool = False
    chunk_bytes: int = layout.SMALL_CHUNK_BYTES

    @property
    def chunk_rows(self) -> int:
        if self.values is not None:
            return max(1, len(self.values))
        return max(1, self.chunk_bytes // max(1, math.prod(self.row) * self.dtype.itemsize))

    def open(self, root: Path, *, durable: bool = False) -> HotArray:
        return HotArray(root / self.path, self.dtype, self.row, self.chunk_rows, durable=durable)


_TOKEN_COLUMNS: dict[str, str] = {
    "token_id": "id of the input token",
    "next_id": "id of the token chosen here; -1 if none was",
    "seq_id": "sequence the row belongs to",
    "pos": "position of the token in its sequence",
    "step": "decode step that computed the row",
    "mode": "code of the mode that computed the row",
    "segment": "code of what the token is part of",
}


def array_specs(spec: RunSpec) -> list[ArraySpec]:
    """Every array of a run of this spec, in a fixed order."""
    out = [_site(site) for site in spec.sites]
    row = spec.row_dtype
    for name, text in _TOKEN_COLUMNS.items():
        out.append(ArraySpec(name, "token", (), ("token",), row[name], name, attributes=(("long_name", text),)))
    layers = len(spec.layers)
    out.append(ArraySpec("layer", "", (), ("layer",), np.dtype("<i4"), values=spec.layers))
    out.extend(_own_layers(spec))
    out.append(ArraySpec("present", "token", (layers,), ("token", "layer"), np.dtype("bool"), "present"))
    for scalar in spec.scalars:
        name, dtype = f"scalar_{scalar.name}", np.dtype(scalar.dtype)
        attributes = (("units", scalar.unit),)
        out.append(
            ArraySpec(f"scalars/{scalar.name}", "token", scalar.row, scalar.dims, dtype, name, attributes=attributes)
        )
    top = (spec.top_k,)
    out.append(ArraySpec("top/id", "token", top, ("token", "k"), np.dtype("<i4"), "top_id"))
    out.append(ArraySpec("top/logprob", "token", top, ("token", "k"), np.dtype("<f4"), "top_logprob"))
    for group, axis, dtype in (
        ("steps", "step", layout.STEP_DTYPE),
        ("drafts", "draft", spec.draft_dtype),
        ("sequences", "sequence", layout.SEQUENCE_DTYPE),
    ):
        for field in (dtype.names or ())[1:]:
            # a 1-D array named like its dimension would be taken for its coordinate
            name = "index" if field == axis else field
            base, row_shape = dtype[field].subdtype or (dtype[field], ())
            dims = (axis, *("dim" for _ in row_shape))
            out.append(ArraySpec(f"{group}/{name}", axis, row_shape, dims, base, field))
    names = Counter(a.path for a in out) + Counter({a.path.rpartition("/")[0] for a in out if "/" in a.path})
    if twice := [name for name, count in names.items() if count > 1]:
        raise StoreError(f"the store has an array or group {twice[0]!r} of its own; give that site another name.")
    return [replace(a, chunk_bytes=spec.chunk_bytes if a.big else spec.small_chunk_bytes) for a in out]


def _site(site: layout.SiteSpec) -> ArraySpec:
    attributes = (("source_dtype", site.source_dtype),)
    return ArraySpec(site.name, "token", site.row, site.dims, site.native, attributes=attributes, big=True)


def _own_layers(spec: RunSpec) -> Iterator[ArraySpec]:
    """Layer coordinates of sites that were recorded for other layers than the rest (attention rows)."""
    for site in spec.sites:
        if site.layers is not None and site.dims[1] != "layer":
            yield ArraySpec(site.dims[1], "", (), (site.dims[1],), np.dtype("<i4"), values=site.layers)


class Hierarchy:
    """The zarr metadata of a run, ready to be published with new lengths."""

    def __init__(self, spec: RunSpec) -> None:
        self.arrays = array_specs(spec)
        store = MemoryStore()
        root = zarr.create_group(store)
        for array in self.arrays:
            group, _, name = array.path.rpartition("/")
            parent = root.require_group(group) if group else root
            length = len(array.values) if array.values is not None else 0
            parent.create_array(
                name,
                shape=(length, *array.row),
                chunks=(array.chunk_rows, *(max(1, size) for size in array.row)),
                dtype=BFloat16() if array.dtype == NATIVE["bfloat16"] else array.dtype,
                compressors=None,
                filters=None,
                fill_value=_fill(array.dtype),
                dimension_names=array.dims,
                attributes=dict(array.attributes),
            )
        self._root = _document(store, "zarr.json")
        self._children = {array.path: _document(store, f"{array.path}/zarr.json") for array in self.arrays}
        self.groups = {path: _document(store, f"{path}/zarr.json") for path, _ in root.groups()}

    def root_document(self, lengths: dict[str, int], attributes: dict[str, Any]) -> dict[str, Any]:
        """The root ``zarr.json`` with inline consolidated metadata for these lengths (axis name to length)."""
        metadata = {path: _consolidated(document, {}) for path, document in self.groups.items()}
        metadata.update({array.path: self.child_document(array, lengths) for array in self.arrays})
        return _consolidated({**self._root, "attributes": attributes}, metadata)

    def group_document(self, group: str, lengths: dict[str, int]) -> dict[str, Any]:
        """A group's own ``zarr.json``, consolidated too: opened directly, its arrays are of one length."""
        members = (array for array in self.arrays if array.path.startswith(f"{group}/"))
        metadata = {array.path.removeprefix(f"{group}/"): self.child_document(array, lengths) for array in members}
        return _consolidated(self.groups[group], metadata)

    def child_document(self, array: ArraySpec, lengths: dict[str, int]) -> dict[str, Any]:
        child = dict(self._children[array.path])
        if array.axis:
            child["shape"] = [lengths[array.axis], *array.row]
        return child


def _consolidated(document: dict[str, Any], metadata: dict[str, Any]) -> dict[str, Any]:
    return {**document, "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": metadata}}


def _document(store: MemoryStore, key: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(store._store_dict[key].to_bytes())
    return found


def _fill(dtype: np.dtype[Any]) -> Any:
    """NaN where the type has one: a cell that was never written must not look like a zero state."""
    if dtype.kind == "f":
        return dtype.type("nan")
    return dtype.type("nan") if dtype.name == "bfloat16" else dtype.type(0)


class Publisher:
    """Derives the small arrays from the journal and publishes them with all shapes at once.

    A plain zarr or xarray reader that opens the root sees one commit, whole: rows are written before the root document
    is replaced, and rows below a published length never change.
    """

    def __init__(self, folder: Path, journal: JournalReader) -> None:
        self.root = folder / layout.STATES
        self.journal = journal
        self.hierarchy = Hierarchy(journal.spec)
        self._small = {a.path: a.open(self.root) for a in self.hierarchy.arrays if a.field or a.values is not None}
        self._lengths = {"token": 0, "step": 0, "draft": 0, "sequence": 0}
        self._rows_per_layer = np.zeros(len(journal.spec.layers), np.int64)
        self._published: tuple[int, bool] | None = None
        self._lock = threading.Lock()

    def lay_out(self) -> None:
        """Write folders, groups and coordinates; what is there already is written again."""
        self.root.mkdir(mode=0o700, exist_ok=True)
        for array in self.hierarchy.arrays:
            (self.root / array.path).mkdir(parents=True, exist_ok=True)
            if array.values is not None:
                self._small[array.path].write(0, np.array(array.values, array.dtype))
                self._small[array.path].close()

    def publish(self, *, complete: bool) -> None:
        """Publish everything the journal has committed. Raises OSError when the disk does."""
        with self._lock:
            self._publish(complete)

    def last_commit(self) -> Commit:
        """The newest commit of the journal, published or not."""
        with self._lock:
            self.journal.advance()
            return self.journal.last

    def _publish(self, complete: bool) -> None:
        self.journal.advance()
        newest = (len(self.journal.commits), complete)
        if newest == self._published:
            return
        self._published = None
        sources: dict[str, NDArray[Any]] = {
            "token": self.journal.rows,
            "step": self.journal.steps,
            "draft": self.journal.drafts,
            "sequence": self.journal.sequences,
        }
        # what a sequence ended with is known later than its row: those few rows are written anew
        done = dict(self._lengths, sequence=0)
        for array in self.hierarchy.arrays:
            if array.field:
                fresh = sources[array.axis][done[array.axis] :][array.field]
                if len(fresh):
                    self._small[array.path].write(done[array.axis], fresh)
        self._rows_per_layer += self.journal.rows[done["token"] :]["present"].sum(axis=0)
        self._lengths = {axis: len(records) for axis, records in sources.items()}
        _replace_json(self.root / "zarr.json", self.hierarchy.root_document(self._lengths, self._attributes(complete)))
        self._published = newest

    def publish_children(self) -> None:
        """The metadata of groups and arrays, for readers that open one of them directly; they follow after the root."""
        with self._lock:
            for path in self.hierarchy.groups:
                _replace_json(self.root / path / "zarr.json", self.hierarchy.group_document(path, self._lengths))
            for array in self.hierarchy.arrays:
                document = self.hierarchy.child_document(array, self._lengths)
                _replace_json(self.root / array.path / "zarr.json", document)

    def _attributes(self, complete: bool) -> dict[str, Any]:
        return {
            **self.journal.attributes,
            "committed": self._lengths["token"],
            "complete": complete,
            "rows_per_layer": self._rows_per_layer.tolist(),
            "codes": {kind: list(words) for kind, words in layout.CODES.items()},
            "format": layout.FORMAT,
        }

    def close(self) -> None:
        for array in self._small.values():
            array.close()


def _replace_json(path: Path, document: dict[str, Any]) -> None:
    """Replace a file in one rename, so that no reader ever sees half of it."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_text(json.dumps(document))
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
