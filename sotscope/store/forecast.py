"""What a recording will take on disk, before it begins."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass
from pathlib import Path

from sotscope.errors import CostError
from sotscope.store.layout import RunSpec

LIMIT_BYTES = 10_000_000_000
LIMIT_SHARE = 0.2


@dataclass(frozen=True)
class Forecast:
    """Bytes on disk for ``rows`` rows of a spec, and which site takes how much of it."""

    rows: int
    bytes: int
    per_site: dict[str, int]

    @classmethod
    def of(cls, spec: RunSpec, rows: int) -> Forecast:
        small = 2 * spec.record_bytes
        return cls(rows, rows * (spec.row_bytes + small), {site.name: site.row_bytes * rows for site in spec.sites})


def check_forecast(forecast: Forecast, path: Path, limit: int | None = None) -> None:
    """Raise CostError if the run takes more than ``limit`` bytes (by default 10 GB or a fifth of the free disk)."""
    existing = next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    allowed = limit if limit is not None else min(LIMIT_BYTES, int(free * LIMIT_SHARE))
    if forecast.bytes <= allowed:
        return
    largest = max(forecast.per_site, key=lambda name: forecast.per_site[name], default="resid")
    raise CostError(
        f"this recording would take {human(forecast.bytes)} ({forecast.rows} rows), more than {human(allowed)} allowed "
        f"({human(free)} free). Cheaper: --layers 'every 4', fewer --sites ({largest} alone takes "
        f"{human(forecast.per_site.get(largest, 0))}), --store-dtype bfloat16, fewer --max-new-tokens; "
        f"or --max-bytes {math.ceil(forecast.bytes / 1e9)}GB."
    )


def human(count: float) -> str:
    """Bytes as a person reads them: 999 B, 1.2 kB, 3.4 MB, 5.6 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")
