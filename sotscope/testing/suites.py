"""Contract suites: what every site, family, drafter and predictor must do. Plugin authors run them on their own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sotscope.capture.contracts import Family, Site
from sotscope.capture.plan import anatomy, available, hook_counts, site_names
from sotscope.catalog import DRAFTERS, FAMILIES, SITES
from sotscope.config import DecodeConfig
from sotscope.decode.cache import CachedModel
from sotscope.decode.contracts import Context, Drafter, Setup
from sotscope.decode.history import History
from sotscope.decode.predictors.bundle import load_bundle
from sotscope.decode.predictors.contracts import Predictor
from sotscope.events import MODES
from sotscope.models.load import fingerprint
from sotscope.recorder import record
from sotscope.testing.bundles import tiny_bundle
from sotscope.testing.drafters import anti, greedy, mix, oracle
from sotscope.testing.oracle import check_run
from sotscope.testing.tiny import CONFIGS, tiny
from sotscope.testing.tokenizers import byte_tokenizer

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
    """A drafter keeps to its window, proposes as many probabilities as tokens, and names its mode and policy.

    Decoding with it changes no token and no row: the text is that of uncached greedy decoding (or the given one), and
    every row equals the oracle's.
    """
    with tempfile.TemporaryDirectory() as folder:
        setup = _setup(Path(folder))
        drafter: Drafter = DRAFTERS.get(name)(setup)
        assert drafter.mode in MODES, f"mode {drafter.mode!r} is not a word of the run format; use 'other'"
        assert drafter.policy in ("", "forced")
        context = Context(list(PROMPT), len(PROMPT), 8, 128, history=_history(drafter, setup.model))
        for window in range(5):
            with torch.inference_mode():  # as in the loop
                proposal = drafter.propose(context, window)
            assert len(proposal) <= window
            assert len(proposal.probabilities) == len(proposal)
            assert proposal.states is None or len(proposal.states) == len(proposal)
        _check_drafted(setup.model, DRAFTERS.get(name)(setup), Path(folder) / "a.sot")


def _check_drafted(model: Any, drafter: Drafter, out: Path) -> None:
    run = record(
        model,
        " ".join(map(str, PROMPT)),
        sites=["resid", "final"],
        max_new_tokens=2 * NEW,
        drafter=drafter,
        window=None if drafter.mode in ("ar", "forced") else 4,
        controller="none",
        guard=False,
        out=out,
    )
    given = getattr(drafter, "ids", None) if drafter.policy == "forced" else None
    assert run.tokens.all_ids[len(PROMPT) :] == (given or greedy(model, PROMPT, 2 * NEW)), "another text"
    assert not run.info()["alarms"], run.info()["alarms"]
    check_run(model, run)


def check_predictor(kind: str) -> None:
    """A predictor drafts what it was trained for, in whatever pieces rows come; saving and loading keep it.

    Compared are ``rollout`` with the true tokens and ``absorb``, ``first`` and ``then``; what it was not shown because
    it lies before the last ``context_rows`` rows makes no difference.
    """
    bundle = tiny_bundle(tiny("llama"), kind)
    predictor, config, rows = bundle.predictor, bundle.predictor.config, 11
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(rows, config.states, config.dim, generator=generator)
    embeds = torch.randn(rows + config.slots - 1, config.dim, generator=generator)
    with torch.inference_mode():
        trained = predictor.rollout(states[None], embeds[None], config.slots)
        assert trained.shape == (1, rows, config.slots, config.dim)
        _check_unroll(predictor, states, embeds, trained)
        _check_drafting(predictor, states, embeds, trained[0, -1])
        with tempfile.TemporaryDirectory() as folder:
            bundle.save(Path(folder))
            kept = load_bundle(Path(folder), fingerprint=bundle.fingerprints[0])
        assert kept.predictor.config == config
        assert torch.equal(kept.vocabulary, bundle.vocabulary)
        loaded = kept.predictor.rollout(states[None], embeds[None], config.slots)
        assert torch.allclose(loaded, trained, atol=2e-2), "half precision weights give other states"


def _check_unroll(predictor: Predictor, states: Tensor, embeds: Tensor, trained: Tensor) -> None:
    """Some rows only, and rows in another order, against all rows in order."""
    rows, slots = len(states), predictor.config.slots
    fed = torch.stack([embeds[slot : slot + rows] for slot in range(slots)], 1)[None]
    fewer = [torch.arange(0, rows, 2**slot) for slot in range(slots)]
    for slot, some in enumerate(predictor.unroll(states[None], fed, fewer)):
        assert torch.allclose(some, trained[:, fewer[slot], slot], atol=1e-5), "fewer rows give other states"
    mixed = torch.arange(rows - 1, -1, -1)
    anywhere = torch.stack(predictor.unroll(states[None, mixed], fed[:, mixed], [torch.arange(rows)] * slots), 2)
    same = torch.allclose(anywhere, trained[:, mixed], atol=1e-5)
    assert same is predictor.alone, "alone says whether a row needs no other one"


def _check_drafting(predictor: Predictor, states: Tensor, embeds: Tensor, trained: Tensor) -> None:
    """The slots after the last row, ``trained [slot, dim]``, the way they are drafted."""
    rows, slots = len(states), predictor.config.slots
    for pieces in ([rows], [1, rows - 1], [rows - 1, 1], [4, 3, rows - 7]):
        found = _drafted(predictor, states, embeds, pieces)
        assert torch.allclose(found, trained, atol=1e-5), f"rows in pieces of {pieces}"
    few = min(rows, predictor.config.context_rows)
    found = _drafted(predictor, states[-few:], embeds[-few - slots + 1 :], [few])
    assert torch.allclose(found, trained, atol=1e-5), f"it looks at more than {few} rows"
    other = embeds.clone()
    other[rows:] += 1
    ignored = torch.equal(_drafted(predictor, states, embeds, [rows]), _drafted(predictor, states, other, [rows]))
    assert ignored is not predictor.feedback, "feedback says whether the drafted tokens are looked at"


def _drafted(predictor: Predictor, states: Tensor, embeds: Tensor, pieces: Sequence[int]) -> Tensor:
    """The slots after the last row [slot, dim], the way they are drafted; rows come in ``pieces``."""
    memory = None
    parts = zip(states.split(list(pieces)), embeds[: len(states)].split(list(pieces)), strict=True)
    for some, following in parts:
        memory = predictor.absorb(memory, some, following)
    state, carry = predictor.first(memory)
    found = [state]
    for embed in embeds[len(states) :]:
        state, carry = predictor.then(carry, embed)
        found.append(state)
    return torch.stack(found)


def _setup(folder: Path) -> Setup:
    """A tiny model, with all that a drafter of any mode may ask for; ``folder`` is for trained ones."""
    model = tiny("llama")
    tokenizer = byte_tokenizer()  # its first ids are the printable letters: the model knows them

    def find(mode: str) -> Path:
        tiny_bundle(model, "heads" if mode == "dmtd" else "attention").save(folder / mode)
        return folder / mode

    settings = DecodeConfig(force="A-text-to-force.", drafter="another", mode="forced")
    return Setup(
        model, tokenizer, settings, "tiny llama", fingerprint(model),
        find=find, load=lambda name: (tiny("llama", seed=1), tokenizer),
    )  # fmt: skip


def _history(drafter: Drafter, model: Any) -> History | None:
    """Rows of any states, for a drafter that reads some."""
    if drafter.layers is None:
        return None
    history = History(drafter.context_rows, drafter.layers)
    hidden = model.config.get_text_config().hidden_size
    history.add(0, torch.randn(len(PROMPT) - 1, len(drafter.layers) + 1, hidden))
    return history


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
