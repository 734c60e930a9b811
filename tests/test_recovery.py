"""Recovery while decoding: what is retracted, what comes instead, how often it is tried; health costs nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sotscope.config import HealthConfig, RunConfig
from sotscope.errors import HealthError
from sotscope.events import Alarm
from sotscope.health.contracts import Subject
from sotscope.health.diagnose import diagnose
from sotscope.monitoring import Monitoring
from sotscope.recorder import recording
from sotscope.store.reader import Run, open_run
from sotscope.testing.drafters import anti, greedy, mix, oracle
from sotscope.testing.oracle import check_run
from sotscope.testing.tiny import tiny

PROMPT = [5, 17, 3, 88, 41]
LOOPS = 100
"""Tokens in which the tiny llama has fallen into a loop of one token."""


def run_of(model: Any, out: Path, health: dict[str, Any], n: int = LOOPS, drafter: Any = None, **more: Any) -> Run:
    data = {"input": {"prompt": "5 17 3 88 41"}, "health": health, "out": out}
    decode = {"max_new_tokens": n, "controller": "none", "guard": False, "eos_token_id": [95], **more}
    with recording(RunConfig.model_validate({**data, "decode": decode}), model=model, drafter=drafter) as recorded:
        for _ in recorded.steps():
            pass
    return open_run(out)


def last(run: Run) -> int:
    return int(run.sequences["seq_id"].iloc[-1])


def final_ids(run: Run) -> list[int]:
    return list(run.tokens_of(last(run)).all_ids)


def nan_once(model: Any, layer: int, position: int, times: int = 1) -> Any:
    """The block's output at ``position`` is NaN the first ``times`` times that it is computed while decoding."""
    left = [times + 1]  # the probe of shapes feeds the first two tokens without a cache
    if position > 1:
        left = [times]

    def hook(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
        positions = kwargs["position_ids"][0].tolist()
        if position in positions and left[0] > 0:
            left[0] -= 1
            output = output.clone()
            output[:, positions.index(position)] = torch.nan
        return output

    return model.model.layers[layer].register_forward_hook(hook, with_kwargs=True)


def test_a_recovery_is_shown_nothing_that_came_after_the_alarmed_row() -> None:
    """A wide step commits rows after it: what is planned must not depend on them."""
    subject = Subject((0, 1), (1,))
    made = Monitoring(HealthConfig(recover={"rollback": {}}), subject, {"states"}, lambda kind, **fields: None)
    alarm = Alarm("repetition", "a loop", {"cycle": [7]}, "critical", onset=25, pos=8, episode=0)
    plans = []
    for ids in (range(10), range(30)):  # the row at 8 chose the token at 9
        made.trouble = alarm
        plans.append(made.plan(list(ids), 3))
        made.restart([])
        made._spent.clear()
    assert plans[0] == plans[1]
    assert plans[0] is not None
    assert plans[0].keep == 10, "a token that is not there cannot be kept"


# -- rollback ----------------------------------------------------------------------------------------------------


def test_a_loop_is_rolled_back_to_before_its_second_turn_and_does_not_come_back(tmp_path: Path) -> None:
    model = tiny("llama")
    plain = run_of(model, tmp_path / "a.sot", {"monitors": {"repetition": {}}})
    alarm = plain.events("alarm")[0]
    cycle, onset = alarm["cycle"], alarm["onset"]
    run = run_of(model, tmp_path / "b.sot", {"recover": {"rollback": {}}})
    sequences = run.sequences
    assert sequences["finish"].tolist()[:-1] == ["rolled_back"] * (len(sequences) - 1)
    keep = onset + len(cycle)
    first = run.tokens_of(1)
    assert list(first.all_ids)[:keep] == list(plain.tokens.all_ids)[:keep], "what came before the loop is kept"
    assert list(first.all_ids)[keep : keep + len(cycle)] != cycle, "the second turn is not"
    assert len(final_ids(run)) == len(PROMPT) + LOOPS, "taken-back tokens do not count"
    retracted = run.events("retracted")
    assert retracted[0]["pos"] == keep
    assert retracted[0]["tokens"] == alarm["pos"] + 2 - keep
    assert not set(cycle) & set(final_ids(run)[keep:]), "a ban of one token holds through later recoveries, too"
    outcomes = [event["outcome"] for event in run.events("recovery_outcome")]
    assert outcomes[-1] == "recovered"
    assert len(outcomes) == len(run.events("recovery"))


def test_a_ban_outlasts_the_next_recovery(tmp_path: Path) -> None:
    data = {"input": {"prompt": "5 17 3 88 41"}, "health": {"recover": {"rollback": {}}}, "out": tmp_path / "a.sot"}
    decode = {"max_new_tokens": LOOPS, "eos_token_id": [95]}
    with recording(RunConfig.model_validate({**data, "decode": decode}), model=tiny("llama")) as recorded:
        for _ in recorded.steps():
            if recorded.sequence == 1 and recorded.decoder.decode_steps == 30:
                recorded.recover("rollback")  # of no cycle: it bans nothing itself
            if recorded.sequence == 2:
                break
        held = recorded.decoder.sampler.processors
    cycle = open_run(tmp_path / "a.sot").events("alarm")[0]["cycle"]
    ids = recorded.decoder.context.ids
    scores = torch.zeros(1, 97)
    for processor in held:
        scores = processor(torch.tensor([ids]), scores)
    assert torch.isinf(scores[0, cycle[0]])


def test_every_row_of_a_rolled_back_sequence_equals_the_uncached_forward(tmp_path: Path) -> None:
    model = tiny("llama")
    run = run_of(model, tmp_path / "a.sot", {"recover": {"rollback": {}}})
    for seq in run.sequences["seq_id"]:
        check_run(model, run, seq=int(seq))
        cosines = run.scalars("cosine", int(seq))[:, -1]
        states = run.states("resid", -1, seq=int(seq)).astype(np.float64)
        units = states / np.linalg.norm(states, axis=-1, keepdims=True)
        np.testing.assert_allclose(cosines[1:], (units[1:] * units[:-1]).sum(-1), atol=1e-5)


@pytest.mark.parametrize("kind", ["oracle", "anti", "mix"])
def test_the_recovered_text_is_the_same_whatever_the_width_of_a_step(kind: str, tmp_path: Path) -> None:
    model = tiny("llama")
    health = {"recover": {"rollback": {}}}
    plain = run_of(model, tmp_path / "a.sot", health)
    text = final_ids(plain)[len(PROMPT) :]
    drafter = {
        "oracle": lambda: oracle(text, 5),
        "anti": lambda: anti(text, 5, 97),
        "mix": lambda: mix(greedy(model, PROMPT, LOOPS), 5, 97),
    }[kind]()
    drafted = run_of(model, tmp_path / "b.sot", health, drafter=drafter)
    assert final_ids(drafted) == final_ids(plain)
    keys = ("alarm", "onset", "pos", "episode")
    assert [[e[k] for k in keys] for e in drafted.events("alarm")] == [
        [e[k] for k in keys] for e in plain.events("alarm")
    ]


def test_where_nothing_is_wrong_the_run_is_byte_for_byte_the_same(tmp_path: Path) -> None:
    model = tiny("llama")
    plain = run_of(model, tmp_path / "a.sot", {}, n=20)
    watched = run_of(model, tmp_path / "b.sot", {"monitor": True, "recover": {"rollback": {}, "stop": {}}}, n=20)
    assert final_ids(watched) == final_ids(plain)
    assert watched.states("resid").tobytes() == plain.states("resid").tobytes()
    assert not watched.events("recovery")


def test_a_loop_across_a_change_of_mode_is_rolled_back_to_before_it(tmp_path: Path) -> None:
    model = tiny("llama")
    onset = run_of(model, tmp_path / "a.sot", {"monitors": {"repetition": {}}}).events("alarm")[0]["onset"]
    data = {"input": {"prompt": "5 17 3 88 41"}, "health": {"recover": {"rollback": {}}}, "out": tmp_path / "b.sot"}
    decode = {"max_new_tokens": LOOPS, "controller": "none", "guard": False, "eos_token_id": [95]}
    with recording(RunConfig.model_validate({**data, "decode": decode}), model=model) as recorded:
        for step in recorded.steps():
            if step.seq == 0 and step.pos == onset + 5:
                recorded.controls.set(mode="lookup")
    run = open_run(tmp_path / "b.sot")
    assert "lookup" in run.tokens_of(0).modes
    check_run(model, run, seq=last(run))
    assert final_ids(run) == final_ids(run_of(model, tmp_path / "c.sot", {"recover": {"rollback": {}}}))


def test_a_loop_in_a_branch_is_rolled_back_within_it(tmp_path: Path) -> None:
    model = tiny("llama")
    data = {"input": {"prompt": "5 17 3 88 41"}, "health": {"recover": {"rollback": {}}}, "out": tmp_path / "a.sot"}
    decode = {"max_new_tokens": LOOPS, "eos_token_id": [95]}
    with recording(RunConfig.model_validate({**data, "decode": decode}), model=model) as recorded:
        steps = recorded.steps()
        for _ in range(12):
            next(steps)
        for _ in recorded.branch(0, 8, 60):
            pass
    run = open_run(tmp_path / "a.sot")
    assert len(run.sequences) > 2
    assert all(ids.all_ids[8] == 60 for ids in map(run.tokens_of, run.sequences["seq_id"][1:]))
    check_run(model, run, seq=last(run))


@pytest.mark.parametrize("drafted", [False, True])
def test_a_diagnosis_afterwards_says_what_was_said_while_it_was_decoded(drafted: bool, tmp_path: Path) -> None:
    model = tiny("llama")
    drafter = mix(greedy(model, PROMPT, LOOPS), 4, 97) if drafted else None
    run = run_of(model, tmp_path / "a.sot", {"monitor": True, "recover": {"rollback": {}}}, drafter=drafter)
    live = [(e["seq"], e["alarm"], e["onset"], e["pos"], e["severity"], e["message"]) for e in run.events("alarm")]
    found = diagnose(run)
    # a sequence that was rolled back ends with the step that raised the alarm; after it nobody judged
    replayed = [(one.seq, a.kind, a.onset, a.pos, a.severity, a.message) for one in found.sequences for a in one.alarms]
    assert live
    assert sorted(live) == sorted(replayed)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_a_run_of_hardly_a_token_is_watched_and_recovered_like_any_other(n: int, tmp_path: Path) -> None:
    run = run_of(tiny("llama"), tmp_path / "a.sot", {"monitor": True, "recover": {"rollback": {}, "stop": {}}}, n=n)
    assert not run.events("alarm")
    assert diagnose(run).verdict == "healthy"


# -- values that are not finite --------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 2, 4, 9])
@pytest.mark.parametrize("policy", ["refresh", "rollback"])
def test_a_nan_that_comes_once_leaves_no_trace(position: int, policy: str, tmp_path: Path) -> None:
    model = tiny("llama")
    clean = run_of(model, tmp_path / "a.sot", {}, n=12)
    health = {"recover": {policy: {}}}
    handle = nan_once(model, 2, position)
    run = run_of(model, tmp_path / "b.sot", health, n=12)
    handle.remove()
    onsets = [e["onset"] for e in run.events("alarm") if e["alarm"] == "non_finite"]
    assert len(onsets) == 1
    assert onsets[0] == position or (position == 2 and onsets[0] == 0), "0 * NaN spoils the rows before it in a block"
    assert final_ids(run) == final_ids(clean)
    seq = last(run)
    assert seq == 1
    np.testing.assert_allclose(run.states("resid", seq=seq), clean.states("resid"), rtol=1e-4, atol=1e-5)
    check_run(model, run, seq=seq)
    assert run.events("recovery_outcome")[-1]["outcome"] == "recovered"


def test_a_nan_that_stays_ends_after_its_attempts(tmp_path: Path) -> None:
    model = tiny("llama")
    model.model.layers[2].mlp.down_proj.weight.data[3, 5] = torch.nan
    run = run_of(model, tmp_path / "a.sot", {"recover": {"refresh": {}, "rollback": {}}, "attempts": 2}, n=12)
    assert [e["policy"] for e in run.events("recovery")] == ["refresh"] * 2 + ["rollback"] * 2
    assert run.events("recovery_outcome")[-1]["outcome"] == "given up"
    assert run.info()["outcome"]["finish_reason"] == "non_finite"


def test_stop_ends_the_text_where_it_went_wrong(tmp_path: Path) -> None:
    model = tiny("llama")
    run = run_of(model, tmp_path / "a.sot", {"recover": {"stop": {}}})
    alarm = run.events("alarm")[0]
    assert run.sequences["finish"].tolist() == ["stopped"]
    assert len(run) == alarm["pos"] + 1


def test_plain_goes_on_one_token_at_a_time(tmp_path: Path) -> None:
    model = tiny("llama")
    text = greedy(model, PROMPT, LOOPS)
    run = run_of(model, tmp_path / "a.sot", {"recover": {"plain": {}}, "attempts": 1}, drafter=oracle(text, 4))
    assert final_ids(run) == PROMPT + text
    assert set(run.tokens_of(1).modes[run.events("retracted")[0]["pos"] :]) == {"ar"}


def test_a_recovery_is_done_when_a_person_asks_for_it(tmp_path: Path) -> None:
    model = tiny("llama")
    data = {"input": {"prompt": "5 17 3 88 41"}, "out": tmp_path / "a.sot", "decode": {"max_new_tokens": 40}}
    with recording(RunConfig.model_validate(data), model=model) as recorded:
        steps = recorded.steps()
        with pytest.raises(HealthError, match="nothing is written"):
            recorded.recover("rollback")
        for _ in range(30):
            next(steps)
        recorded.recover("rollback")
        for _ in steps:
            pass
    run = open_run(tmp_path / "a.sot")
    assert run.events("retracted")[0]["tokens"] == 24
    assert final_ids(run)[:10] == final_ids(run_of(model, tmp_path / "b.sot", {}, n=40))[:10]


def test_a_forced_text_is_watched_and_never_changed(tmp_path: Path) -> None:
    model = tiny("llama")
    model.model.layers[2].mlp.down_proj.weight.data[3, 5] = torch.nan
    words = [60] * 40
    run = run_of(model, tmp_path / "a.sot", {"recover": {"rollback": {}}}, n=40, drafter=oracle(words, 4, "forced"))
    assert run.events("alarm")
    assert not run.events("recovery")
    assert len(run.sequences) == 1


@pytest.mark.parametrize("family", ["mistral-sliding", "gpt2", "mamba"])
def test_caches_that_cannot_be_cut_are_computed_anew(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    n = 24
    plain = run_of(model, tmp_path / "a.sot", {}, n=n)
    data = {
        "input": {"prompt": "5 17 3 88 41"},
        "out": tmp_path / "b.sot",
        "decode": {"max_new_tokens": n, "eos_token_id": [95]},
    }
    with recording(RunConfig.model_validate(data), model=model) as recorded:
        steps = recorded.steps()
        for _ in range(20):
            next(steps)
        recorded.recover("refresh")
        for _ in steps:
            pass
    run = open_run(tmp_path / "b.sot")
    assert final_ids(run) == final_ids(plain)
    check_run(model, run, seq=1)
