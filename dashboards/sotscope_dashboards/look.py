"""What a tab looks at. All of it is in the URL, so that a link shows the same again; the server keeps none of it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Scalar = Literal["norm", "change", "cosine", "max_abs"]


class Look(BaseModel):
    """A run, one of its sequences, a range of its tokens, a cursor, and how they are shown.

    Tokens are counted along the sequence (its lineage). ``start`` and ``stop`` None: follow the newest ``span`` tokens.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str = ""
    """The opaque id of the run; empty: the one the engine writes, or none."""
    seq: int = Field(default=-1, ge=-1)
    """A sequence of the run; -1: the first, or what recoveries made of it."""
    start: int | None = Field(default=None, ge=0)
    stop: int | None = Field(default=None, ge=1)
    span: int = Field(default=512, ge=16, le=100_000)
    cursor: int | None = Field(default=None, ge=0)
    """A row of the sequence; None: its newest."""
    layer: int | None = None
    """A layer's number; None: the middle one."""
    low: int | None = None
    high: int | None = None
    """Layers of the heatmap, both included; None: all."""
    site: str = Field(default="", max_length=64)
    """The site of the heatmap, one with layers; empty: resid, whose numbers every run has."""
    scalar: Scalar = "norm"
    theme: Literal["light", "dark"] = "light"
