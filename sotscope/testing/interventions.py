"""The contract suite of interventions. Plugin authors run it on their own, with options that change something."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sotscope.capture.intervening import Intervening
from sotscope.capture.interventions import Intervention, InterventionConfig, read_intervention
from sotscope.capture.plan import hook_counts, make_plan
from sotscope.capture.tap import Tap
from sotscope.catalog import INTERVENTIONS
from sotscope.recorder import record
from sotscope.store.reader import Run
from sotscope.testing.drafters import anti, mix, oracle
from sotscope.testing.oracle import row_error, uncached
from sotscope.testing.tiny import tiny

PROMPT = [5, 17, 3, 88, 41, 9]
NEW = 18
MODELS = ("llama", "gpt2", "gpt_neox")
EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "prune": {"k": 1.5},
    "rescale": {},
    "steer": {"dim": 3, "value": 2.0},
    "temperature": {"value": 3.0},
    "freeze": {"dims": "1,4-6"},
    "skip": {"above": 0.5, "layers": "1,2"},
}
"""What makes each kind of ours change a tiny model. Others are called with their defaults, or with what is given."""


def check_intervention(name: str, **settings: Any) -> None:
    """An intervention keeps its contract on models with separate, fused and interleaved queries.

    ``settings`` are fields of InterventionConfig or options of the kind; they must make it change something. Strength 0
    and ``on: false`` change no bit; decoding with good, bad and mixed drafts gives the tokens and rows of plain
    decoding, which are those of one uncached forward; rows before the token range stay; no hook is left.
    """
    with tempfile.TemporaryDirectory() as folder:
        for model_name in MODELS:
            model = tiny(model_name)
            given = settings or EXAMPLES.get(name) or _of_a_run(name, model, Path(folder) / f"{model_name}.sot")
            _check(model, read_intervention({"kind": name, **given}), Path(folder) / model_name)


def _of_a_run(name: str, model: Any, path: Path) -> Mapping[str, Any]:
    """For ``transfer``: the rows of another prompt's run."""
    if name != "transfer":
        return {}
    record(model, "60 2 7 30 11 12 9 88", sites=["resid"], max_new_tokens=4, out=path)
    return {"source": str(path), "rows": "4-7", "reference": "1-3", "layers": "1"}


def _check(model: Any, config: InterventionConfig, folder: Path) -> None:
    entry: type[Intervention] = INTERVENTIONS.get(config.kind)
    assert entry.name == config.kind
    assert entry.__doc__, "its docstring says what it does"
    sites = sorted({"resid", "final", config.site or entry.site})
    hooks = hook_counts(model)
    run = check_widths(model, [config], folder, sites)
    _check_nothing(model, config, run.tokens.all_ids, sites)
    _check_token_range(model, config, run.tokens.all_ids)
    assert hook_counts(model) == hooks, "hooks were left behind"


def check_widths(model: Any, configs: Sequence[InterventionConfig], folder: Path, sites: Sequence[str]) -> Run:
    """Tokens and rows under ``configs`` are the same whatever is drafted, and differ from those without; returns the
    run of plain decoding."""
    folder.mkdir(exist_ok=True)
    run = recorded(model, configs, folder / "ar.sot", sites)
    text = run.tokens.all_ids[len(PROMPT) :]
    ids = [int(token) for token in run.tokens.ids]
    vocab = model.config.get_text_config().vocab_size
    truth = rows_of(model, ids, configs, sites)
    for drafter in (None, oracle(text, 4), anti(text, 4, vocab), mix(text, 4, vocab)):
        other = recorded(model, configs, folder / f"{id(drafter)}.sot", sites, drafter) if drafter else run
        assert other.tokens.all_ids == run.tokens.all_ids, "the width of a step changes the text"
        for site in sites:
            error = row_error(truth[site], other.states(site))
            assert error <= 1e-4, f"{site}: a row is {error:.1e} of its norm from that of one forward"
    untouched = rows_of(model, ids, [], sites)
    assert any(np.abs(untouched[site] - truth[site]).max() > 1e-3 for site in sites), "nothing was changed"
    if "resid" in sites:  # the oracle shares no code with the tap that records
        with Intervening(model, configs, len(PROMPT)):
            assert row_error(uncached(model, ids, ["resid"])["resid"], run.states("resid")) <= 1e-4
    return run


def _check_nothing(model: Any, config: InterventionConfig, ids: Sequence[int], sites: Sequence[str]) -> None:
    untouched = rows_of(model, ids, [], sites)
    for field, value in (("strength", 0.0), ("on", False)):
        same = rows_of(model, ids, [config.model_copy(update={field: value})], sites)
        assert all(np.array_equal(same[site], untouched[site]) for site in sites), f"{field} {value} changes rows"


def _check_token_range(model: Any, config: InterventionConfig, ids: Sequence[int]) -> None:
    sites = ["resid", "final"]
    late = config.model_copy(update={"tokens": "8-"})
    changed, untouched = rows_of(model, ids, [late], sites), rows_of(model, ids, [], sites)
    for site in sites:
        assert np.array_equal(changed[site][:8], untouched[site][:8]), "rows before the token range are changed"
    assert any(np.abs(changed[site][8:] - untouched[site][8:]).max() > 1e-3 for site in sites), "no row in the range is"


def recorded(
    model: Any, configs: Sequence[Any], out: Path, sites: Sequence[str] = ("resid",), drafter: Any = None
) -> Run:
    """``PROMPT`` and ``NEW`` tokens decoded and recorded under ``configs``."""
    prompt = " ".join(map(str, PROMPT))
    with Intervening(model, configs, len(PROMPT)):
        return record(model, prompt, sites=list(sites), max_new_tokens=NEW, drafter=drafter, out=out)


@torch.inference_mode()
def rows_of(
    model: Any, ids: Sequence[int], configs: Sequence[Any], sites: Sequence[str]
) -> dict[str, NDArray[np.float32]]:
    """The rows [token, ...] of one uncached forward under ``configs``, in float32."""
    with Intervening(model, configs, len(PROMPT)), Tap(make_plan(model, sites)) as tap:
        model(torch.tensor([list(ids)], device=model.device), use_cache=False)
    states = tap.take(len(ids), (-1,) * len(ids), logits=False).states
    return {site: states[site].astype(np.float32) for site in sites}
