"""T(width): what a forward of so many tokens costs on this machine, measured once and kept."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sotscope.decode.cache import CachedModel

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16)
ROUNDS = 5
CONTEXT = 64


@torch.inference_mode()
def measure(model: Any) -> dict[int, float]:
    """Median milliseconds of a forward by width, after ``CONTEXT`` tokens; the widths take turns."""
    cached = CachedModel(model)
    cached.forward([0] * CONTEXT, all_logits=False)
    cached.keep(0)
    if not cached.croppable:
        return {1: 1.0}
    times: dict[int, list[float]] = {width: [] for width in WIDTHS}
    for number in range(ROUNDS + 1):
        for width in WIDTHS:
            begin = time.perf_counter()
            cached.forward([0] * width).amax(-1).tolist()
            took = (time.perf_counter() - begin) * 1e3
            cached.keep(width)
            if number:  # the first round warms up
                times[width].append(took)
    return {width: statistics.median(found) for width, found in times.items()}


def widths(model: Any, key: str, folder: Path, report: Callable[[str], None] = lambda text: None) -> dict[int, float]:
    """``measure``, kept in ``folder`` under ``key``, the type, the device and the number of threads."""
    kind = str(model.dtype).removeprefix("torch.")
    file = folder / f"widths-{key}-{kind}-{model.device.type}-{torch.get_num_threads()}.json"
    try:
        return {int(width): float(ms) for width, ms in json.loads(file.read_text()).items()}
    except (OSError, ValueError, AttributeError):
        pass
    report("measuring what a forward of each width costs here (once)")
    found = measure(model)
    folder.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(found))
    part.replace(file)
    return found
