"""Interventions in a recording: every row says what changed it, the effect is measured, and nothing else is touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sotscope.capture.intervening import Intervening
from sotscope.config import RunConfig
from sotscope.errors import SotscopeError
from sotscope.recorder import recording
from sotscope.store.reader import Run, open_run
from sotscope.testing.drafters import greedy, mix
from sotscope.testing.oracle import check_run
from sotscope.testing.tiny import tiny

PROMPT = [5, 17, 3, 88, 41]
STEER = "steer:dim=3,value=2,layers=1"


def go(model: Any, out: Path, *, drafter: Any = None, at: dict[int, Any] | None = None, **more: Any) -> tuple[Run, Any]:
    """A run; ``at`` maps the length of the text to interventions that hold from there on."""
    data = {"input": {"prompt": "5 17 3 88 41"}, "out": out, **more}
    data["decode"] = {"max_new_tokens": 24, "eos_token_id": [95], **more.get("decode", {})}
    waiting = dict(at or {})
    with recording(RunConfig.build(data, "test"), model=model, drafter=drafter) as recorded:
        for step in recorded.steps():
            length = step.pos + step.rows + 1
            if length in waiting:
                recorded.controls.set(interventions=waiting.pop(length))
    return open_run(out), recorded


def test_every_row_says_which_interventions_changed_it_and_the_self_check_holds(tmp_path: Path) -> None:
    model = tiny("llama")
    interventions = [STEER, "prune:k=3,layers=2,tokens=generated"]
    run, recorded = go(model, tmp_path / "a.sot", interventions=interventions)
    assert run.scalars("intervened").tolist() == [1] * 5 + [3] * (len(run) - 5)
    assert run.events("interventions")[0]["names"] == ["steer", "prune"]
    assert recorded.summary.interventions == ["steer", "prune"]
    assert recorded.summary.self_check["passed"] is True
    with Intervening(model, interventions, 5):
        check_run(model, run)
    with pytest.raises(AssertionError):
        check_run(model, run)


def test_a_run_without_interventions_says_so(tmp_path: Path) -> None:
    run, recorded = go(tiny("llama"), tmp_path / "a.sot")
    assert not run.scalars("intervened").any()
    assert recorded.summary.interventions == []


@pytest.mark.parametrize("drafted", [False, True])
def test_a_toggle_holds_from_the_next_row_on_whatever_the_width(drafted: bool, tmp_path: Path) -> None:
    model = tiny("llama")
    at = {12: [STEER], 20: []}
    drafter = mix(greedy(model, PROMPT, 24), 4, 97) if drafted else None
    run, _ = go(model, tmp_path / "a.sot", drafter=drafter, at=at)
    changed = np.flatnonzero(run.scalars("intervened"))
    if not drafted:
        assert changed.tolist() == list(range(11, 19))
    engine = Intervening(model, [], 5)
    for event in run.events("interventions"):
        engine.set([{k: v for k, v in one.items() if v is not None} for one in event["active"]], event["pos"])
    with engine:
        check_run(model, run)


def test_the_measured_effect_is_that_of_two_forwards(tmp_path: Path) -> None:
    model = tiny("llama")
    run, _ = go(
        model, tmp_path / "a.sot", interventions=["steer:dim=3,value=2,layers=1,tokens=generated"], measure=True
    )
    found = {name: run.scalars(f"effect_{name}") for name in ("kl", "top1_changed", "state_distance")}
    assert np.isnan(found["kl"][:4]).all(), "the prompt is not measured"
    assert (found["kl"][4:5] == 0).all(), "the last prompt token is not changed"
    ids = run.tokens.all_ids
    for row in (5, 9, 20):  # the row alone without the intervention: all earlier ones with it
        with Intervening(model, [f"steer:dim=3,value=2,layers=1,tokens=5-{row}"], 5), torch.inference_mode():
            with_it = model(torch.tensor([ids[: row + 1]]), use_cache=False).logits[0, -1]
        where = f"tokens=5-{row - 1}" if row > 5 else "tokens=90"
        with Intervening(model, [f"steer:dim=3,value=2,layers=1,{where}"], 5), torch.inference_mode():
            without = model(torch.tensor([ids[: row + 1]]), use_cache=False).logits[0, -1]
        p, q = (torch.log_softmax(logits.double(), -1) for logits in (with_it, without))
        np.testing.assert_allclose(found["kl"][row], float((p.exp() * (p - q)).sum()), rtol=1e-3, atol=1e-6)
        assert found["top1_changed"][row] == float(with_it.argmax() != without.argmax())
    plain, _ = go(model, tmp_path / "b.sot", interventions=["steer:dim=3,value=2,layers=1,tokens=generated"])
    assert plain.tokens.all_ids == ids, "measuring changes nothing"
    np.testing.assert_array_equal(plain.states("resid"), run.states("resid"))


@pytest.mark.parametrize(
    ("given", "says"),
    [("prunes:k=3", "did you mean prune"), ("steer:dim=999,value=1", "dim"), ("prune:k=nan", "k"),
     ("prune:layers=9", "layer 9"), ("prune:site=logits", "site")],
)  # fmt: skip
def test_a_wrong_intervention_is_one_line_and_makes_no_run(given: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(SotscopeError, match=says) as caught:
        go(tiny("llama"), tmp_path / "a.sot", interventions=[given])
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "a.sot").exists()


def test_a_wrong_toggle_is_refused_to_whoever_asks_and_changes_nothing(tmp_path: Path) -> None:
    model = tiny("llama")
    plain, _ = go(model, tmp_path / "a.sot")
    with recording(
        RunConfig.build({"input": {"prompt": "5 17 3 88 41"}, "out": tmp_path / "b.sot",
                         "decode": {"max_new_tokens": 24, "eos_token_id": [95]}}, "test"), model=model,
    ) as recorded:  # fmt: skip
        for _ in recorded.steps():
            with pytest.raises(SotscopeError):
                recorded.controls.set(interventions=["steer:dim=999,value=1"])
    assert open_run(tmp_path / "b.sot").tokens.all_ids == plain.tokens.all_ids


def test_an_intervention_that_ruins_everything_raises_an_alarm_and_ends(tmp_path: Path) -> None:
    run, _ = go(tiny("llama"), tmp_path / "a.sot", interventions=["steer:dim=3,value=1e38,strength=1e38,layers=1"])
    alarm = run.events("alarm")[0]
    assert (alarm["alarm"], alarm["first_bad_layer"], alarm["first_bad_position"]) == ("non_finite", 1, 0)
    assert run.info()["outcome"]["finish_reason"] == "non_finite"


def test_rescale_holds_the_norms_where_they_exploded(tmp_path: Path) -> None:
    model = tiny("llama")
    health = {"recover": {"rescale": {"hold": 40}}, "recover_on": ["norms"], "attempts": 1}
    grow = {"kind": "rescale", "site": "mlp_out", "options": {"factor": 300.0}, "tokens": "30-60"}
    run, recorded = go(model, tmp_path / "a.sot", interventions=[grow], health=health, decode={"max_new_tokens": 60})
    assert run.events("recovery"), "the norms exploded"
    seq = int(run.sequences["seq_id"].iloc[-1])
    onset = run.events("alarm")[0]["onset"]
    norms = run.scalars("norm", seq)
    usual = np.median(norms[5:onset], axis=0)
    assert (run.scalars("norm", 0)[onset] > 5 * usual).any()
    assert (norms[onset : onset + 20] < 3 * usual).all()
    assert recorded.summary.self_check["passed"] is None


def test_a_branch_before_a_toggle_has_what_held_when_it_began(tmp_path: Path) -> None:
    model = tiny("llama")
    data = {"input": {"prompt": "5 17 3 88 41"}, "out": tmp_path / "a.sot", "decode": {"max_new_tokens": 24}}
    with recording(RunConfig.build(data, "test"), model=model) as recorded:
        steps = recorded.steps()
        for step in steps:
            if step.pos == 12:
                recorded.controls.set(interventions=[STEER])
            if step.pos == 20:
                recorded.controls.set(interventions=[])
            if step.pos == 22:
                break
        for _ in recorded.branch(0, 9, 7):
            pass
    run = open_run(tmp_path / "a.sot")
    assert np.flatnonzero(run.scalars("intervened", 0)).tolist() == list(range(13, 21))
    assert not run.scalars("intervened", 1).any()
    check_run(model, run, seq=1)


@pytest.mark.parametrize("site", ["embed", "resid", "attn_out", "mlp_out", "mlp_act", "head_out", "query", "final"])
def test_the_self_check_holds_at_every_site_that_is_changed(site: str, tmp_path: Path) -> None:
    steer = f"steer:site={site},dim=3,value=2" + ("" if site in ("embed", "final") else ",layers=1")
    _, recorded = go(tiny("llama"), tmp_path / "a.sot", interventions=[steer], capture={"sites": ["all"]})
    assert recorded.summary.self_check["passed"] is True
