"""Peak memory of a long prompt recorded with every site, over that of the same run not recorded.

Each arm is a process of its own, so that its peak is its own; the prompt is real text: the source of ``argparse``.
"""

from __future__ import annotations

import argparse
import inspect
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sotscope.bench.peak import peak_mb
from sotscope.bench.stats import Nobody, Report
from sotscope.config import CaptureConfig, DecodeConfig, PromptConfig, RunConfig
from sotscope.decode.drafters.ar import Plain
from sotscope.decode.loop import Decoder
from sotscope.decode.sampling import Sampler
from sotscope.models.load import load
from sotscope.recorder import recording

NEW_TOKENS = 8


def run(report: Report = lambda text: None, *, model: str = "smollm2", tokens: int = 4000) -> dict[str, Any]:
    """Peak resident megabytes of both arms and their difference, for a prompt of ``tokens`` tokens."""
    peaks: dict[str, float] = {}
    for arm in ("plain", "all"):
        report(f"memory: a prompt of {tokens} tokens, {arm}")
        command = [sys.executable, "-m", "sotscope.bench.memory", arm, model, str(tokens)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks[arm] = json.loads(done.stdout.splitlines()[-1])["peak_mb"]
    return {"plain_mb": peaks["plain"], "all_mb": peaks["all"], "extra_mb": round(peaks["all"] - peaks["plain"], 1)}


def _measure(arm: str, model: str, tokens: int) -> float:
    loaded = load(model)
    text = inspect.getsource(argparse)
    ids = loaded.tokenizer(text)["input_ids"][:tokens]
    prompt = loaded.tokenizer.decode(ids)
    if arm == "plain":
        sampler = Sampler(loaded.model, len(ids), overrides={"do_sample": False})
        # the block that a recording of this size gets, so that only the recording differs
        decoder = Decoder(loaded.model, Plain(), sampler, sink=Nobody(), max_new_tokens=NEW_TOKENS, prefill_block=125)
        for _ in decoder.run(ids):
            pass
    else:
        with tempfile.TemporaryDirectory() as folder:
            settings = RunConfig(
                input=PromptConfig(prompt=prompt, raw=True),
                capture=CaptureConfig(sites=["all"]),
                decode=DecodeConfig(max_new_tokens=NEW_TOKENS, do_sample=False),
                out=Path(folder) / "memory.sot",
            )
            with recording(settings, model=loaded) as recorded:
                for _ in recorded.steps():
                    pass
    return peak_mb()


if __name__ == "__main__":
    print(json.dumps({"peak_mb": _measure(sys.argv[1], sys.argv[2], int(sys.argv[3]))}))
