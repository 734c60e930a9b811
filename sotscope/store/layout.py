"""What a run consists of: file names, the spec of its arrays, and the fixed-size records of its journal.

Shapes and dtypes are decided once, before the first row, and written into the journal's header; everything else (the
zarr metadata, the reader, verify) is derived from that one description.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import DTypeLike
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt

from sotscope.events import DRAFT_REASONS, FINISH_REASONS, MODES, SEGMENTS, STEP_REASONS
from sotscope.store.dtypes import native

JOURNAL = "journal.bin"
EVENTS = "events.jsonl"
PIECES = "pieces.jsonl"
STATES = "states.zarr"
SUFFIX = ".sot"
FORMAT = 1

CHUNK_BYTES = 8 << 20
"""Target size of a state chunk (4-16 MiB)."""
SMALL_CHUNK_BYTES = 256 << 10
"""Target size of a chunk of the small arrays; they are sparse files until rows arrive."""

Name = Annotated[str, Field(pattern=r"^\w[\w.\-]*$")]
"""Names of arrays are names of folders too: nothing that leads out of the run."""
Row = tuple[NonNegativeInt, ...]


_DRAFT_FIELDS = (
    ("tag", "u1"),
    ("step", "<i4"),
    ("slot", "<i4"),
    ("target", "<i4"),
    ("token", "<i4"),
    ("probability", "<f4"),
    ("entropy", "<f4"),
    ("accepted", "?"),
    ("reason", "u1"),
    ("cosine", "<f4"),
    ("relative_error", "<f4"),
)


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SiteSpec(_Frozen):
    """One state array: ``row`` is the shape of one token's entry, ``dims`` the names of all axes, token first."""

    name: Name
    row: Row
    dims: tuple[Name, ...]
    dtype: str
    source_dtype: str
    layers: tuple[int, ...] | None = None
    """Which layers the second axis holds; None for sites that have no layer axis."""

    @property
    def native(self) -> np.dtype[Any]:
        return native(self.dtype)

    @property
    def row_bytes(self) -> int:
        return math.prod(self.row) * self.native.itemsize


class ScalarSpec(_Frozen):
    """One always-on scalar: ``row`` is () for one number a token, (layers,) for one a token and layer."""

    name: Name
    row: Row = ()
    dims: tuple[Name, ...] = ("token",)
    dtype: Annotated[str, Field(pattern=r"^<[fiu][248]$")] = "<f4"
    unit: str = ""


class RunSpec(_Frozen):
    """Everything that fixes the shape of a run, and of its files."""

    sites: tuple[SiteSpec, ...]
    scalars: tuple[ScalarSpec, ...]
    layers: tuple[int, ...]
    top_k: NonNegativeInt = 10
    predicted: NonNegativeInt = 0
    """Size of the predicted states recorded with the drafts; 0: they are not."""
    chunk_bytes: PositiveInt = CHUNK_BYTES
    small_chunk_bytes: PositiveInt = SMALL_CHUNK_BYTES
    format: int = FORMAT

    @property
    def row_bytes(self) -> int:
        """Bytes of state a row takes on disk, all sites together."""
        return sum(site.row_bytes for site in self.sites)

    @property
    def record_bytes(self) -> int:
        """Bytes a row takes in the journal; its small arrays take about the same again."""
        return self.row_dtype.itemsize

    def site(self, name: str) -> SiteSpec:
        for site in self.sites:
            if site.name == name:
                return site
        raise KeyError(name)

    @cached_property
    def row_dtype(self) -> np.dtype[Any]:
        fields: list[tuple[str, DTypeLike] | tuple[str, DTypeLike, tuple[int, ...]]] = [
            ("tag", "u1"),
            ("token_id", "<i4"),
            ("next_id", "<i4"),
            ("seq_id", "<i4"),
            ("pos", "<i4"),
            ("step", "<i4"),
            ("mode", "u1"),
            ("segment", "u1"),
            ("present", "?", (len(self.layers),)),
            ("top_id", "<i4", (self.top_k,)),
            ("top_logprob", "<f4", (self.top_k,)),
        ]
        fields += [(f"scalar_{scalar.name}", scalar.dtype, scalar.row) for scalar in self.scalars]
        return np.dtype(fields)

    @cached_property
    def draft_dtype(self) -> np.dtype[Any]:
        state = [("state", "<f4", (self.predicted,))] if self.predicted else []
        return np.dtype([*_DRAFT_FIELDS, *state])


STEP_DTYPE = np.dtype(
    [
        ("tag", "u1"),
        ("step", "<i4"),
        ("seq_id", "<i4"),
        ("pos", "<i4"),
        ("rows", "<i4"),
        ("mode", "u1"),
        ("window", "<i4"),
        ("accepted", "<i4"),
        ("reason", "u1"),
        ("draft_ns", "<i8"),
        ("forward_ns", "<i8"),
        ("accept_ns", "<i8"),
        ("capture_ns", "<i8"),
        ("rss", "<i8"),
        ("device_bytes", "<i8"),
    ]
)
SEQUENCE_DTYPE = np.dtype(
    [
        ("tag", "u1"),
        ("seq_id", "<i4"),
        ("prompt_length", "<i4"),
        ("parent", "<i4"),
        ("parent_pos", "<i4"),
        ("finish", "u1"),
    ]
)
COMMIT_DTYPE = np.dtype(
    [
        ("tag", "u1"),
        ("rows", "<i8"),
        ("drafts", "<i8"),
        ("steps", "<i8"),
        ("events_bytes", "<i8"),
        ("pieces_bytes", "<i8"),
        ("time_ns", "<i8"),
        ("states_crc", "<u4"),
        ("crc", "<u4"),
    ]
)
ROW, DRAFT, STEP, SEQUENCE, COMMIT = 0xA1, 0xA2, 0xA3, 0xA4, 0xA5
"""Tags of the record kinds: none is 0, so that a tail of zeros is never taken for a record."""

CODES: dict[str, tuple[str, ...]] = {
    "mode": MODES,
    "segment": SEGMENTS,
    "draft_reason": DRAFT_REASONS,
    "finish": FINISH_REASONS,
    "step_reason": STEP_REASONS,
}
"""The words that the small integer codes stand for; written into the run, so that readers need no table of ours."""


def encode(kind: str, word: str) -> int:
    return CODES[kind].index(word)
