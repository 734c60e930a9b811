"""Reads a run, finished, dead or growing. Never writes, needs no torch and no tokenizer."""

from __future__ import annotations

import json
import stat
import threading
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from sotscope.errors import StoreError
from sotscope.plain import ranges
from sotscope.registry import unknown
from sotscope.store import layout
from sotscope.store.arrays import array_specs
from sotscope.store.frames import frame, spans, words
from sotscope.store.hot import HotArray
from sotscope.store.journal import JournalReader
from sotscope.store.lazy import lazy_variable
from sotscope.store.lineage import lineage_rows
from sotscope.store.lock import is_held
from sotscope.store.safety import check_hierarchy
from sotscope.store.tokens import Pieces, Tokens, tokens_of

EVERY = (0, 1 << 31)
"""All steps there can be."""


def open_run(path: str | Path, live: bool = False) -> Run:
    """Open the run at ``path`` for reading.

    ``live``: follow it to its last commit (``refresh`` for more) instead of the last published state. A run whose
    writer died is read to its last commit in any case. Raises StoreError when there is no run, or one that must not
    be opened.
    """
    return Run(Path(path), live=live)


class Run:
    """One recording. Arrays are [token, ...] in the order rows were committed; ``seq=k`` follows one lineage."""

    def __init__(self, path: Path, *, live: bool = False) -> None:
        self.path = path.absolute()  # the program may change its directory later
        if not path.exists():
            raise StoreError(f"{path} does not exist; `sotscope list` shows the runs there are.")
        journal = path / layout.JOURNAL
        if not journal.is_file():
            if (path / layout.STATES).is_dir() or (path / ".zgroup").exists():
                check_hierarchy(path / layout.STATES if (path / layout.STATES).is_dir() else path)
            raise StoreError(f"{path} is not a sotscope run (it has no {layout.JOURNAL}).")
        check_hierarchy(path / layout.STATES)  # before anything else of a run from elsewhere is looked at
        try:
            self._journal = JournalReader(journal.absolute())
        except OSError as error:
            raise StoreError(f"cannot read {journal}: {error.strerror}.") from error
        self.spec = self._journal.spec
        self.attributes: dict[str, Any] = self._journal.attributes
        self._arrays: dict[str, HotArray] = {
            array.path: array.open(self.path / layout.STATES) for array in array_specs(self.spec) if array.big
        }
        self._pieces = Pieces()
        self._lock = threading.Lock()
        self.live = live
        self._rows = 0
        self.refresh()

    # -- following ---------------------------------------------------------------------------------------------

    def refresh(self) -> int:
        """Look again; returns how many rows are new. The number of rows never decreases."""
        with self._lock:  # a dashboard asks from several threads
            try:
                return self._refresh()
            except OSError as error:
                raise StoreError(f"cannot read {self.path}: {error.strerror} ({error.filename}).") from error

    def _refresh(self) -> int:
        before = self._rows
        # in this order: a writer that ends in between has published all before it lets the lock go
        held = is_held(self.path / layout.JOURNAL)
        attributes = check_hierarchy(self.path / layout.STATES)["attributes"]
        self._journal.advance()
        self.complete = bool(attributes["complete"])
        self.recording = held and not self.complete
        committed = len(self._journal.rows)
        # a dead writer publishes no more: then the journal alone says what there is
        shown = committed if self.live or not self.recording else min(committed, int(attributes["committed"]))
        self._rows = max(before, shown)
        self._commit = self._journal.commit_at(self._rows)
        return self._rows - before

    @property
    def events_bytes(self) -> int:
        """Bytes of events that are committed; grows with every event."""
        return int(self._commit.events_bytes)

    @property
    def damage(self) -> str:
        """Where the journal stops making sense, or empty."""
        return self._journal.damage

    def __len__(self) -> int:
        return self._rows

    def __repr__(self) -> str:
        state = "recording" if self.recording else "complete" if self.complete else "interrupted"
        return f"<Run {self.path.name}: {self._rows} rows, {state}, sites {', '.join(self.sites)}>"

    # -- states and scalars ------------------------------------------------------------------------------------

    @property
    def sites(self) -> list[str]:
        return [site.name for site in self.spec.sites]

    @property
    def layers(self) -> list[int]:
        return list(self.spec.layers)

    def states(
        self,
        site: str,
        layer: int | None = None,
        tokens: slice | int | None = None,
        seq: int | None = None,
    ) -> NDArray[np.float32]:
        """States as float32: [token, layer, dim], or [token, dim] for one ``layer`` or a site without layers.

        ``tokens`` selects rows (of the sequence, if ``seq`` is given), ``seq`` resolves the lineage. Layers that were
        skipped are NaN. Raises StoreError for a site or layer that was not recorded.
        """
        spec = self._site(site)
        inner: tuple[Any, ...] = ()
        if layer is not None:
            inner = (self._layer_index(spec, layer),)
        array = self._arrays[spec.name]
        if seq is None:
            start, stop, stride = spans(tokens, self._rows)
            found = array.read(start, stop, inner)[::stride]
        else:
            rows = self.rows(seq)
            start, stop, stride = spans(tokens, len(rows))
            found = array.take(rows[start:stop:stride], inner)
        out = found.astype(np.float32)
        return out[0] if isinstance(tokens, int | np.integer) else out

    def rows(self, seq: int | None = None) -> NDArray[np.int64]:
        """Indices of all rows, in the order they were committed, or of those of one sequence's lineage."""
        if seq is None:
            return np.arange(self._rows)
        return lineage_rows(self._journal.rows[: self._rows], self._journal.sequences, seq)

    def take(
        self,
        site: str,
        rows: NDArray[np.int64],
        *,
        layer: int | None = None,
        layers: tuple[int, ...] | None = None,
    ) -> NDArray[np.float32]:
        """States of the rows with these indices, as float32: of one ``layer`` [token, dim], or of some [token, layer,
        dim]. Raises StoreError for a site or layer that was not recorded.
        """
        spec = self._site(site)
        inner: tuple[Any, ...] = ()
        if layer is not None:
            inner = (self._layer_index(spec, layer),)
        elif layers is not None and spec.layers is not None and layers != spec.layers:
            inner = ([self._layer_index(spec, one) for one in layers],)
        return self._arrays[spec.name].take(rows, inner).astype(np.float32, copy=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to another process, a run is opened there."""
        return _reopen, (str(self.path), self.live)

    def scalars(self, name: str, seq: int | None = None) -> NDArray[Any]:
        """An always-on scalar: [token] or [token, layer]; ``run.scalar_names`` lists them."""
        if name not in self.scalar_names:
            raise StoreError(unknown("scalar", name, self.scalar_names))
        rows = self._row_records(seq)
        found: NDArray[Any] = rows[f"scalar_{name}"].copy()
        return found

    def scalars_at(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """An always-on scalar of the rows with these indices."""
        if name not in self.scalar_names:
            raise StoreError(unknown("scalar", name, self.scalar_names))
        found: NDArray[Any] = self._journal.rows[f"scalar_{name}"][rows]
        return found

    @property
    def scalar_names(self) -> list[str]:
        return [scalar.name for scalar in self.spec.scalars]

    @property
    def top(self) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The likeliest next tokens of every row: ids [token, k] (-1: unknown) and log-probabilities [token, k]."""
        rows = self._journal.rows[: self._rows]
        return rows["top_id"].copy(), rows["top_logprob"].copy()

    @property
    def present(self) -> NDArray[np.bool_]:
        """[token, layer]: False where the model skipped the layer."""
        found: NDArray[np.bool_] = self._journal.rows[: self._rows]["present"].copy()
        return found

    # -- tokens, steps, drafts ---------------------------------------------------------------------------------

    @property
    def tokens(self) -> Tokens:
        return self.tokens_of()

    def tokens_of(self, seq: int | None = None) -> Tokens:
        """The tokens of one sequence with its ancestors', or of all rows."""
        return tokens_of(self._row_records(seq), self.pieces, list(layout.CODES["mode"]))

    def tokens_at(self, rows: NDArray[np.int64]) -> Tokens:
        """The tokens of the rows with these indices."""
        return tokens_of(self._journal.rows[rows], self.pieces, list(layout.CODES["mode"]))

    @property
    def pieces(self) -> Pieces:
        """Raw piece and bytes of every token. Raises StoreError when their file cannot be read."""
        self._pieces.advance(self.path / layout.PIECES, self._journal.last.pieces_bytes)
        return self._pieces

    @property
    def steps(self) -> pd.DataFrame:
        """One line a decode step; times in nanoseconds."""
        return self.steps_between(*EVERY)

    @property
    def drafts(self) -> pd.DataFrame:
        """One line a drafted token, accepted or not."""
        return self.drafts_between(*EVERY)

    def steps_between(self, start: int, stop: int) -> pd.DataFrame:
        """The lines of ``steps`` from step ``start`` up to, not including, ``stop``."""
        records = self._journal.steps[: self._commit.steps]
        found = records[slice(*np.searchsorted(records["step"], [start, stop]))]
        return words(frame(found), mode="mode", reason="step_reason")

    def drafts_between(self, start: int, stop: int) -> pd.DataFrame:
        """The lines of ``drafts`` of those steps."""
        records = self._journal.drafts[: self._commit.drafts]
        found = records[slice(*np.searchsorted(records["step"], [start, stop]))]
        return words(frame(found), reason="draft_reason")

    def steps_at(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """[token] the step that computed each of the rows with these indices."""
        found: NDArray[np.int32] = self._journal.rows["step"][rows]
        return found

    def positions_at(self, rows: NDArray[np.int64]) -> NDArray[np.int32]:
        """[token] the position in its sequence of each of the rows with these indices."""
        found: NDArray[np.int32] = self._journal.rows["pos"][rows]
        return found

    def top_at(self, row: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """``top`` of the row with this index: ids [k] and log-probabilities [k]."""
        record = self._journal.rows[row]
        return record["top_id"].copy(), record["top_logprob"].copy()

    @property
    def predicted(self) -> NDArray[np.float32]:
        """The predicted state of every draft [draft, dim]; NaN where none was. Raises StoreError if not recorded."""
        if not self.spec.predicted:
            raise StoreError("this run has no predicted states; record it with --record-predicted.")
        found: NDArray[np.float32] = self._journal.drafts[: self._commit.drafts]["state"].copy()
        return found

    @property
    def sequences(self) -> pd.DataFrame:
        """One line a sequence: prompt length, parent, parent_pos, finish."""
        return words(frame(self._journal.sequences), finish="finish")

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """The committed events, oldest first; of one kind on request."""
        path = self.path / layout.EVENTS
        try:
            with open(path, "rb") as file:
                found = [json.loads(line) for line in file.read(self._commit.events_bytes).splitlines()]
        except (OSError, ValueError) as error:
            raise StoreError(f"{path} cannot be read ({error!r}); states and tokens can.") from error
        return [event for event in found if kind is None or event.get("kind") == kind]

    # -- other views -------------------------------------------------------------------------------------------

    def to_xarray(self) -> xr.Dataset:
        """States (lazily, as float32), scalars and token columns as one xarray Dataset with a ``layer`` coordinate."""
        rows = self._journal.rows[: self._rows]
        data: dict[str, Any] = {}
        coords: dict[str, Any] = {"layer": ("layer", np.array(self.spec.layers))}
        for site in self.spec.sites:
            data[site.name] = lazy_variable(self._arrays[site.name], site.dims, self._rows)
            if site.layers is not None and site.dims[1] != "layer":
                coords[site.dims[1]] = (site.dims[1], np.array(site.layers))
        for scalar in self.spec.scalars:
            data[scalar.name] = (scalar.dims, rows[f"scalar_{scalar.name}"], {"units": scalar.unit})
        for name in ("token_id", "next_id", "seq_id", "pos", "step", "mode", "segment"):
            data[name] = ("token", rows[name])
        data["present"] = (("token", "layer"), rows["present"])
        data["top_id"] = (("token", "k"), rows["top_id"])
        data["top_logprob"] = (("token", "k"), rows["top_logprob"])
        return xr.Dataset(data, coords=coords, attrs={"run": str(self.path), "complete": int(self.complete)})

    def info(self) -> dict[str, Any]:
        """What this run is, in plain values: model, settings, counts, outcome, bytes."""
        outcome = self.events("outcome")
        config = self.events("config")
        return {
            "run": str(self.path),
            "complete": self.complete,
            "recording": self.recording,
            "rows": self._rows,
            "sequences": len(self._journal.sequences),
            "steps": self._commit.steps,
            "drafts": self._commit.drafts,
            "sites": {site.name: {"row": list(site.row), "dtype": site.dtype} for site in self.spec.sites},
            "layers": self.layers,
            "scalars": self.scalar_names,
            "bytes": _disk_bytes(self.path),
            "model": self.attributes.get("model", {}),
            "settings": config[0].get("settings", {}) if config else {},
            "versions": config[0].get("versions", {}) if config else {},
            "outcome": {k: v for k, v in outcome[-1].items() if k not in ("kind", "time")} if outcome else None,
            "alarms": [{k: v for k, v in event.items() if k != "kind"} for event in self.events("alarm")],
            "damage": self.damage or None,
        }

    # -- helpers -----------------------------------------------------------------------------------------------

    def _row_records(self, seq: int | None) -> NDArray[Any]:
        rows = self._journal.rows[: self._rows]
        if seq is None:
            return rows
        found: NDArray[Any] = rows[lineage_rows(rows, self._journal.sequences, seq)]
        return found

    def _site(self, name: str) -> layout.SiteSpec:
        try:
            return self.spec.site(name)
        except KeyError:
            raise StoreError(f"{self.path.name}: {unknown('recorded site', name, self.sites)}") from None

    def _layer_index(self, spec: layout.SiteSpec, layer: int) -> int:
        if spec.layers is None:
            raise StoreError(f"{spec.name} has no layers; leave out layer=.")
        wanted = layer if layer >= 0 else list(spec.layers)[layer] if -layer <= len(spec.layers) else layer
        if wanted not in spec.layers:
            raise StoreError(f"layer {layer} of {spec.name} was not recorded; recorded are {ranges(spec.layers)}.")
        return spec.layers.index(wanted)


@lru_cache(maxsize=4)
def _reopen(path: str, live: bool) -> Run:
    return Run(Path(path), live=live)


def _disk_bytes(folder: Path) -> int:
    """Bytes the files below ``folder`` take on disk; sparse files take what was written."""
    total = 0
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):  # a temporary file of the publisher
            found = file.lstat()
            total += found.st_blocks * 512 if stat.S_ISREG(found.st_mode) else 0
    return total
