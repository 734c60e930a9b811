"""Contract suites: what every site, family and drafter must do. Plugin authors run them on their own entries."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from sotscope.capture.contracts import Family, Site
from sotscope.capture.plan import anatomy, available, hook_counts, site_names
from sotscope.catalog import DRAFTERS, FAMILIES, SITES
from sotscope.decode.cache import CachedModel
from sotscope.decode.contracts import Context
from sotscope.events import MODES
from sotscope.recorder import record
from sotscope.testing.drafters import anti, greedy, mix, oracle
from sotscope.testing.oracle import check_run
from sotscope.testing.tiny import CONFIGS, tiny

PROMPT = [5, 17, 3, 88, 41]
NEW = 12


def models_of(family: str) -> list[str]:
    """The tiny models that belong to a family."""
    types = set(FAMILIES.get(family).model_types)
    return [name for name, (model_type, _) in CONFIGS.items() if model_type in types]


def check_site(name: str) -> None:
    """A site has a doc, names nobody else claims, and is recorded truly on a model of every family that has it."""
    site: Site = SITES.get(name)
    assert site.name == name
    assert site.doc.endswith("."), "doc: one sentence"
    assert all(site_names([other]) == [name] for other in (name, *site.also)), "an alias leads to another site"
    if name == "attn":
        return  # stored for chosen layers only, and compared with transformers' own weights elsewhere
    first = [tiny(models[0]) for models in map(models_of, FAMILIES.names()) if models]
    having = [model for model in first if not available(anatomy(model))[name]]
    assert having, f"no tiny model has site {name}"
    for model in having:
        _check_recording(model, [name], ("mix",))


def check_family(name: str, make: Callable[[], Any] | None = None) -> None:
    """A family finds its models' blocks, explains every site it lacks, and every row equals the oracle.

    ``make`` gives a model of a family that has no tiny model here. Rows are checked in plain decoding and while
    drafts are mixed, for the first model also all right and all wrong (where the cache can roll back).
    """
    family: Family = FAMILIES.get(name)
    assert family.doc
    assert family.model_types
    models = [make()] if make else [tiny(model_name) for model_name in models_of(name)]
    assert models, f"no tiny model of family {name}: give make="
    for number, model in enumerate(models):
        body = anatomy(model)
        assert body.family is family, f"{body.config.model_type} was taken for {body.family_name}"
        reasons = available(body)
        for site, why in reasons.items():
            assert not why or site in family.unavailable or site == "attn", f"{site}: say why {name} has none ({why})"
        sites = [site for site, why in reasons.items() if not why and site != "attn"]
        assert {"embed", "resid", "final"} <= set(sites)
        _check_recording(model, sites, ("plain", "mix") if number else ("plain", "oracle", "anti", "mix"))


def check_drafter(name: str) -> None:
    """A drafter keeps to its window, proposes as many probabilities as tokens, and names its mode and policy."""
    drafter = DRAFTERS.get(name)(_setup(name))
    assert drafter.mode in MODES, f"mode {drafter.mode!r} is not a word of the run format; use 'other'"
    assert drafter.policy in ("", "forced")
    context = Context(list(PROMPT), len(PROMPT), 8, 128)
    for window in range(5):
        proposal = drafter.propose(context, window)
        assert len(proposal.ids) <= window
        assert len(proposal.probabilities) == len(proposal.ids)


def _check_recording(model: Any, sites: list[str], drafts: Sequence[str]) -> None:
    hooks = hook_counts(model)
    truth = greedy(model, PROMPT, NEW)
    vocab = model.config.get_text_config().vocab_size
    makers: dict[str, Any] = {
        "oracle": oracle(truth, 4),
        "anti": anti(truth, 4, vocab),
        "mix": mix(truth, 4, vocab),
    }
    drafters = [makers.get(kind) for kind in drafts] if _rolls_back(model) else [None]
    with tempfile.TemporaryDirectory() as folder:
        for number, drafter in enumerate(drafters):
            run = record(
                model,
                " ".join(map(str, PROMPT)),
                sites=sites,
                max_new_tokens=NEW,
                drafter=drafter,
                out=Path(folder) / f"{number}.sot",
            )
            assert run.tokens.all_ids == [*PROMPT, *truth], "the text differs from uncached greedy decoding"
            assert len(run) == len(PROMPT) + NEW - 1
            check_run(model, run)
            check = run.info()["outcome"]["self_check"]
            assert check["passed"] is not False, check  # None: nothing that it could compare
    assert hook_counts(model) == hooks, "hooks were left behind"


@torch.inference_mode()
def _rolls_back(model: Any) -> bool:
    cached = CachedModel(model)
    list(cached.prefill(PROMPT, len(PROMPT), all_logits=False))
    return bool(cached.croppable)
