"""Every entry of every catalog keeps its contract; so do entries that another distribution adds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sotscope.capture.plan import anatomy, available, make_plan
from sotscope.catalog import DRAFTERS, FAMILIES, GATES, PREDICTORS, SITES
from sotscope.decode.contracts import Context, Gate, Proposal
from sotscope.errors import DecodeError, SiteError
from sotscope.events import Draft, Step
from sotscope.registry import Registry
from sotscope.testing.drafters import greedy
from sotscope.testing.oracle import check_run, uncached
from sotscope.testing.suites import check_drafter, check_family, check_predictor, check_site
from sotscope.testing.tiny import tiny


@pytest.mark.parametrize("name", SITES.names())
def test_site_keeps_its_contract(name: str) -> None:
    check_site(name)


@pytest.mark.parametrize("name", FAMILIES.names())
def test_family_keeps_its_contract(name: str) -> None:
    check_family(name)


@pytest.mark.parametrize("name", DRAFTERS.names())
def test_drafter_keeps_its_contract(name: str) -> None:
    check_drafter(name)


@pytest.mark.parametrize("kind", PREDICTORS.names())
def test_predictor_keeps_its_contract(kind: str) -> None:
    check_predictor(kind)


NEEDED: dict[str, dict[str, Any]] = {"cost": {"widths": {1: 1.0, 8: 2.0}}, "guard": {"widths": {1: 1.0, 8: 2.0}}}


@pytest.mark.parametrize("name", [name for name in GATES.names() if name != "lstm"])  # that one needs its weights
def test_gate_keeps_its_contract(name: str) -> None:
    gate: Gate = GATES.get(name)(**NEEDED.get(name, {}))
    assert gate.name == name
    context = Context([1, 2, 3], 2, 8, 1 << 30, logprobs=[-1.0], text="a")
    drafts = (Draft(0, 3, 5, 0.9, 0.5, "accepted"), Draft(1, 4, 6, 0.1, 3.0, "later_slot_miss"))
    proposal = Proposal([5, 6], [0.9, 0.1], [0.5, 3.0])
    for number in range(4):
        assert gate.window(context) >= 0
        assert gate.trim(context, proposal) >= 0
        assert gate.trim(context, Proposal()) >= 0
        step = Step(number, 0, "sot", 2, (3, 5), (5, 7), window=2, accepted=1, reason="drafted", drafts=drafts,
                    draft_ns=1000, forward_ns=10_000, accept_ns=1000)  # fmt: skip
        gate.observe(context, step)


def test_the_context_gate_never_widens_past_what_is_left() -> None:
    gate = GATES.get("context")()
    for left in (1, 2, 5):
        assert 0 <= gate.window(Context([1, 2, 3], 3, left, 1 << 30)) <= left - 1
        assert 0 <= gate.window(Context([1, 2, 3], 3, 100, 3 + left)) <= left


@pytest.mark.parametrize(
    ("registry", "name", "meant", "error"),
    [
        (SITES, "redis", "resid", SiteError),
        (FAMILIES, "lama", "llama", SiteError),
        (DRAFTERS, "force", "forced", DecodeError),
        (GATES, "contex", "context", DecodeError),
    ],
)
def test_unknown_name_suggests_the_nearest(
    registry: Registry[Any], name: str, meant: str, error: type[Exception]
) -> None:
    with pytest.raises(error, match=f"unknown {registry.kind} '{name}'; did you mean .*{meant}"):
        registry.get(name)


def test_name_that_resembles_nothing_lists_what_there_is() -> None:
    with pytest.raises(DecodeError, match=r"unknown mode 'qqqq'; there are: ar, forced"):
        DRAFTERS.get("qqqq")


PLUGIN = '''
from dataclasses import replace
from sotscope.capture.contracts import Family, Site
from sotscope.decode.contracts import Drafter, Proposal

SITE = Site(name="attn_in", role="attn", side="in", doc="The input of the attention, after its norm.", also=("ln1",))
FAMILY = Family(
    name="phi",
    model_types=("phi",),
    doc="self_attn.dense, mlp.fc2; attention and MLP side by side",
    roles={
        "blocks": "layers", "final_norm": "final_layernorm", "attn": "self_attn", "attn_out": "self_attn.dense",
        "query": "self_attn.q_proj", "mlp_out": "mlp.fc2", "mlp_act": "mlp.fc2",
    },
    unavailable={"router": "it is a dense model, without experts"},
)

class Echo(Drafter):
    """Drafts the last token again, twice."""
    mode, window = "other", 2

    def propose(self, context, window):
        ids = [context.ids[-1]] * min(2, window)
        return Proposal(ids=ids, probabilities=[1.0] * len(ids))

def make(setup):
    return Echo()
'''
ENTRY_POINTS = """[sotscope.sites]
attn_in = fake_sotscope_plugin:SITE
[sotscope.families]
phi = fake_sotscope_plugin:FAMILY
[sotscope.drafters]
echo = fake_sotscope_plugin:make
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution of somebody else's that adds a site, a family and a drafter."""
    yield from _install(tmp_path / "site", monkeypatch, PLUGIN)


def _install(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> Iterator[None]:
    info = folder / "fake_sotscope_plugin-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-sotscope-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    (folder / "fake_sotscope_plugin.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    for registry in (SITES, FAMILIES, DRAFTERS):
        monkeypatch.setattr(registry, "_loaded", dict(registry._loaded))
    yield
    sys.modules.pop("fake_sotscope_plugin", None)


@pytest.mark.usefixtures("plugin")
def test_plugin_entries_keep_the_contracts_of_our_own() -> None:
    assert not available(anatomy(tiny("phi")))["attn_in"]
    check_family("phi")  # with the plugin's own site among the others
    check_drafter("echo")


@pytest.mark.usefixtures("plugin")
def test_plugin_site_and_drafter_record_end_to_end(llama: Any, go: Any) -> None:
    run = go(llama, sites=["ln1"], max_new_tokens=12, mode="echo", controller="none", guard=False)
    assert run.sites == ["attn_in"]
    assert run.tokens.all_ids[5:] == greedy(llama, [5, 17, 3, 88, 41], 12)
    assert len(run.drafts), "the plugin's drafter was not asked"
    check_run(llama, run)
    before = torch.tensor(uncached(llama, run.tokens.ids, ["embed"])["embed"])
    normed = llama.model.layers[0].input_layernorm(before).detach().numpy()
    assert run.states("attn_in", layer=0) == pytest.approx(normed, abs=1e-5)


def test_plugins_are_gone_when_their_distribution_is() -> None:
    assert "attn_in" not in SITES
    assert anatomy(tiny("phi")).family is None


def test_broken_plugin_is_named_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llama: Any) -> None:
    installed = _install(tmp_path / "site", monkeypatch, "import a_module_that_is_not_there")
    next(installed)
    with pytest.raises(SiteError, match=r"'attn_in' of fake-sotscope-plugin cannot be loaded.*a_module_that"):
        make_plan(llama, ["resid"])
    with pytest.raises(DecodeError, match="mode 'echo' of fake-sotscope-plugin cannot be loaded"):
        DRAFTERS.get("echo")


def test_drafter_with_a_mode_of_its_own_is_refused_before_the_run(
    llama: Any, go: Any, tmp_path: Path, plugin: None
) -> None:
    drafter: Any = DRAFTERS.get("echo")(None)
    drafter.mode = "echo"
    with pytest.raises(DecodeError, match=r"its mode 'echo'.*'other'"):
        go(llama, drafter=drafter)
    assert not list(tmp_path.glob("*.sot"))
