"""Records the two small runs that `sotscope demo` opens: python docs/make_demo_runs.py (needs the embedded model)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import sotscope
from sotscope.config import CaptureConfig, DecodeConfig, PromptConfig, RunConfig
from sotscope.recorder import recording

FOLDER = Path(__file__).parents[1] / "dashboards" / "sotscope_dashboards" / "demo_runs"
LAYERS = "0,3,6,10,13,16,19,23,26,29"
SWITCHES = {24: "sot", 60: "dmtd"}
"""Tokens after which the mode of the first run changes."""


def record(name: str, prompt: str, mode: str, tokens: int, switches: dict[int, str]) -> None:
    settings = RunConfig(
        input=PromptConfig(prompt=prompt),
        capture=CaptureConfig(sites=["resid"], layers=LAYERS, dtype="float16"),
        decode=DecodeConfig(mode=mode, max_new_tokens=tokens, do_sample=False),
        out=Path(name),  # relative: no path of this machine is in the run
    )
    new = 0
    with recording(settings, model="smollm2") as recorded:
        for step in recorded.steps():
            new += 0 if step.mode == "prompt" else step.rows
            for count in [count for count in switches if new >= count]:
                recorded.controls.set(mode=switches.pop(count))


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    os.chdir(FOLDER)
    record("sky-ar-sot-dmtd.sot", "Why is the sky blue?", "ar", 96, dict(SWITCHES))
    text = "Say this line three times: The sea is wide, the sea is deep, the sea is never quite asleep."
    record("copy-combine.sot", text, "combine", 80, {})
    for path in sorted(FOLDER.glob("*.sot")):
        print(path.name, len(sotscope.open_run(path)))
