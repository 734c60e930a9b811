"""What recording costs: tokens/s recording to disk over tokens/s of the same loop not recording.

Beside it transformers' own way to the same states, ``generate(output_hidden_states=True)``, over plain ``generate()``
(which keeps them in memory, every step's tuple, and writes nothing).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sotscope.bench.memory import run as peak_memory
from sotscope.bench.stats import Nobody, Report, interleave, ratio
from sotscope.capture.plan import as_it_was
from sotscope.config import CaptureConfig, DecodeConfig, PromptConfig, RunConfig
from sotscope.decode.drafters.ar import Plain
from sotscope.decode.loop import Decoder
from sotscope.decode.sampling import Sampler
from sotscope.models.load import Loaded, load
from sotscope.models.prompt import build_prompt
from sotscope.preparation import versions
from sotscope.recorder import recording

PROMPT = "Write a short story about a lighthouse keeper who learns to bake bread."


def run(
    report: Report = lambda text: None,
    *,
    model: str = "smollm2",
    new_tokens: int = 128,
    pairs: int = 7,
    memory: bool = True,
) -> dict[str, Any]:
    """Figures of ``bench capture``: ratio_resid, ratio_all, peers{name: ratio}, each the median of ``pairs`` rounds.

    ``memory`` also measures the peak of a 4,000-token prompt (some minutes). Prefill, model loading and the
    self-check are outside the clock; waiting until every row is on disk is inside.
    """
    loaded = load(model, report=report)
    prompt = build_prompt(loaded.tokenizer, PROMPT)
    with tempfile.TemporaryDirectory() as folder:
        arms = {
            "plain": lambda: _plain(loaded, prompt.ids, new_tokens),
            "resid": lambda: _recorded(loaded, ["resid"], new_tokens, Path(folder)),
            "all": lambda: _recorded(loaded, ["all"], new_tokens, Path(folder)),
            "generate": lambda: _generate(loaded, prompt.ids, new_tokens, states=False),
            "generate+hidden_states": lambda: _generate(loaded, prompt.ids, new_tokens, states=True),
        }
        interleave({name: arms[name] for name in ("plain", "all", "generate+hidden_states")}, 1, report)
        seen = interleave(arms, pairs, report)
    resid, everything = ratio(seen["resid"], seen["plain"]), ratio(seen["all"], seen["plain"])
    peer = ratio(seen["generate+hidden_states"], seen["generate"])
    return {
        "ratio_resid": resid["median"],
        "ratio_all": everything["median"],
        "peers": {"transformers output_hidden_states (in memory)": peer["median"]},
        "intervals": {"resid": resid, "all": everything, "transformers": peer},
        "tokens_per_second": {name: round(max(values), 2) for name, values in seen.items()},
        "memory_4000_tokens": peak_memory(report, model=model) if memory else None,
        "new_tokens": new_tokens,
        "pairs": pairs,
        "model": model,
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }


def _plain(loaded: Loaded, ids: list[int], new_tokens: int) -> float:
    sampler = Sampler(loaded.model, len(ids), overrides={"do_sample": False, "eos_token_id": []})
    decoder = Decoder(
        loaded.model, Plain(), sampler, sink=Nobody(), tokenizer=loaded.tokenizer, max_new_tokens=new_tokens
    )
    return _tokens_per_second(lambda: decoder.run(ids), lambda: None, new_tokens)


def _recorded(loaded: Loaded, sites: list[str], new_tokens: int, folder: Path) -> float:
    settings = RunConfig(
        input=PromptConfig(prompt=PROMPT),
        capture=CaptureConfig(sites=sites, self_check=False),
        decode=DecodeConfig(max_new_tokens=new_tokens, do_sample=False, eos_token_id=[]),
        out=folder / f"{time.time_ns()}.sot",
    )
    with recording(settings, model=loaded) as recorded:
        return _tokens_per_second(recorded.steps, recorded.writer.flush, new_tokens)


def _tokens_per_second(steps: Callable[[], Any], flush: Callable[[], None], new_tokens: int) -> float:
    """Decoded tokens over the time from the end of the prefill until all is written."""
    start = time.perf_counter()
    for step in steps():
        if step.reason == "prefill":
            start = time.perf_counter()
    flush()
    return new_tokens / (time.perf_counter() - start)


@torch.inference_mode()
def _generate(loaded: Loaded, ids: list[int], new_tokens: int, *, states: bool) -> float:
    inputs = torch.tensor([ids])
    options: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "min_new_tokens": None}
    with as_it_was(loaded.model):
        start = time.perf_counter()
        loaded.model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=new_tokens,
            output_hidden_states=states,
            return_dict_in_generate=True,
            **options,
        )
        return new_tokens / (time.perf_counter() - start)
