"""The engine process: commands at step boundaries, branches, refusals, and a kill that loses nothing committed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from cli_helpers import model_folder

from sotscope.errors import LiveError
from sotscope.live.client import Engine
from sotscope.live.commands import command_of
from sotscope.store.reader import Run, open_run

LONG = {"max_new_tokens": 120, "do_sample": False, "eos_token_id": [259]}


def start(engine: Engine, delay_ms: float = 0, paused: bool = False, **decode: Any) -> Run:
    settings = {"input": {"prompt": "why?"}, "decode": LONG | decode}
    answer = engine.send({"kind": "start", "settings": settings, "delay_ms": delay_ms, "paused": paused})
    assert answer.error == ""
    return open_run(engine.status.run, live=True)


def ended(engine: Engine, run: Run) -> Run:
    assert engine.wait_for("ended").state == "ended"
    run.refresh()
    return run


def test_it_writes_the_run_that_record_writes(engine: Engine, tmp_path: Path) -> None:
    from sotscope.recorder import record

    run = ended(engine, start(engine))
    assert engine.send({"kind": "stop"}).error == ""
    run.refresh()
    assert run.complete
    assert not run.recording
    alone = record(str(model_folder()), "why?", out=tmp_path / "a.sot", **LONG)
    assert run.tokens.ids.tolist() == alone.tokens.ids.tolist()
    np.testing.assert_array_equal(run.states("resid"), alone.states("resid"))


def test_pause_step_resume_stop(engine: Engine) -> None:
    run = start(engine, paused=True)
    assert engine.status.state == "paused"
    rows = []
    for _ in range(3):
        assert engine.send({"kind": "step"}).error == ""
        engine.wait_for("paused")
        run.refresh()
        rows.append(len(run))
    assert np.diff(rows).tolist() == [1, 1]
    time.sleep(0.2)
    assert run.refresh() == 0  # paused is paused
    assert engine.send({"kind": "pace", "delay_ms": 20}).error == ""
    assert engine.send({"kind": "resume"}).error == ""
    assert engine.send({"kind": "pause"}).error == ""
    assert engine.status.state == "paused"
    run.refresh()
    before = len(run)
    assert engine.send({"kind": "stop"}).error == ""
    run.refresh()
    assert len(run) == before
    assert engine.status.state == "idle"
    assert run.sequences.finish.tolist() == ["interrupted"]


def test_a_mode_changes_at_a_step_boundary_and_the_run_says_so(engine: Engine) -> None:
    run = start(engine, paused=True)
    engine.send({"kind": "step"})
    engine.wait_for("paused")
    assert engine.send({"kind": "set", "changes": {"mode": "lookup", "window": 3}}).error == ""
    assert engine.send({"kind": "resume"}).error == ""
    run = ended(engine, run)
    assert engine.status.settings["mode"] == "lookup"
    (command,) = run.events("command")
    assert command["changes"] == {"mode": "lookup", "window": 3}
    modes = run.tokens.modes
    assert set(modes[command["pos"] :]) == {"lookup"}
    assert "lookup" not in modes[: command["pos"]]
    plain = ended(engine, start(engine))
    assert run.tokens.ids.tolist() == plain.tokens.ids.tolist()


def test_sampling_changes_while_it_decodes(engine: Engine) -> None:
    run = start(engine, paused=True)
    for _ in range(20):
        engine.send({"kind": "step"})
        engine.wait_for("paused")
    assert engine.send({"kind": "set", "changes": {"do_sample": True, "temperature": 3.0}}).error == ""
    engine.send({"kind": "resume"})
    sampled = ended(engine, run).tokens.ids.tolist()
    greedy = ended(engine, start(engine)).tokens.ids.tolist()
    at = run.events("command")[0]["pos"]
    assert sampled[: at + 1] == greedy[: at + 1]
    assert sampled != greedy


def test_a_branch_is_what_that_prefix_would_have_given(engine: Engine) -> None:
    run = ended(engine, start(engine))
    pos, token = 40, 65
    before = len(run)
    assert engine.send({"kind": "branch", "seq": 0, "pos": pos, "token": token}).error == ""
    assert engine.status.seq == 1
    run = ended(engine, run)
    branch = run.tokens_of(1)
    assert branch.ids[:pos].tolist() == run.tokens_of(0).ids[:pos].tolist()
    assert branch.ids[pos] == token
    assert run.sequences[["parent", "parent_pos"]].iloc[1].tolist() == [0, pos]
    # the truth: one uncached forward over the branch's own tokens
    truth = greedy_after(branch.ids[: pos + 1].tolist(), len(branch) - pos)
    assert branch.all_ids[pos + 1 :] == truth
    states = uncached_states(branch.ids.tolist())
    np.testing.assert_allclose(run.states("resid", seq=1), states, rtol=1e-4, atol=1e-5)
    assert len(run) - before == len(branch) - pos  # the prefix is not recorded again
    # a branch of a branch
    assert engine.send({"kind": "branch", "seq": 1, "pos": pos + 5, "token": 66}).error == ""
    run = ended(engine, run)
    assert run.tokens_of(2).ids[: pos + 5].tolist() == branch.ids[: pos + 5].tolist()


def greedy_after(ids: list[int], count: int) -> list[int]:
    """``count`` tokens by argmax over full uncached forwards."""
    import torch

    from sotscope.models.load import load

    model, found = load(str(model_folder())).model, []
    with torch.inference_mode():
        for _ in range(count):
            found.append(int(model(torch.tensor([ids + found]), use_cache=False).logits[0, -1].argmax()))
    return found


def uncached_states(ids: list[int]) -> Any:
    """[token, layer, dim] outputs of the blocks in one uncached forward."""
    import torch

    from sotscope.models.load import load

    model = load(str(model_folder())).model
    kept: list[Any] = []

    def keep(module: Any, args: Any, output: Any) -> None:
        kept.append((output[0] if isinstance(output, tuple) else output)[0].numpy().copy())

    hooks = [block.register_forward_hook(keep) for block in model.model.layers]
    with torch.inference_mode():
        model(torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return np.stack(kept, axis=1)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ({"kind": "resume"}, "resume does nothing while the engine is ended"),
        ({"kind": "set", "changes": {"mode": "warp"}}, "unknown mode 'warp'"),
        ({"kind": "set", "changes": {"seed": 3}}, "'seed' cannot change while decoding"),
        ({"kind": "branch", "seq": 0, "pos": 4000, "token": 1}, "position 4000 of sequence 0 cannot be branched at"),
        ({"kind": "branch", "seq": 7, "pos": 4, "token": 1}, "sequence 7 is not in this run"),
        ({"kind": "branch", "seq": 0, "pos": 4, "token": 99999}, "token id 99999 is not one of the model's"),
        ({"kind": "start", "settings": {"decode": {"mood": "ar"}}}, "unknown setting"),
        ({"kind": "start", "settings": {"input": {"prompt": ""}}}, "prompt"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(engine: Engine, command: dict[str, Any], said: str) -> None:
    if engine.status.state != "ended":
        ended(engine, start(engine))
    answer = engine.send(command)
    assert said in answer.error
    assert "\n" not in answer.error


@pytest.mark.parametrize(
    "data", [{}, {"kind": "explode"}, {"kind": "pace", "delay_ms": -1}, {"kind": "stop", "x": 1}, 3]
)
def test_what_is_no_command_is_refused_before_it_is_sent(data: Any) -> None:
    with pytest.raises(LiveError):
        command_of(data)


def test_a_killed_engine_says_so_and_start_works_again(tmp_path: Path) -> None:
    engine = Engine(tmp_path, str(model_folder()))
    run = start(engine, delay_ms=5)
    while len(run) < 30:
        time.sleep(0.01)
        run.refresh()
    engine._process.kill()
    status = engine.wait_for("dead")
    assert "killed by signal 9" in status.text
    assert "press Start" in engine.send({"kind": "pause"}).error
    run.refresh()
    assert not run.recording
    assert len(run) >= 30
    assert np.isfinite(run.states("resid")).all()  # what was committed can be read
    again = ended(engine, start(engine))
    assert again.path != run.path
    engine.close()
    assert engine._process.exitcode == 0


def test_a_model_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    engine = Engine(tmp_path, str(tmp_path / "nowhere"))
    answer = engine.send({"kind": "start", "settings": {}})
    assert "nowhere" in answer.error
    assert engine.status.state == "idle"
    engine.close()


PARENT = """
import sys, time
from pathlib import Path
from sotscope.live.client import Engine
if __name__ == "__main__":
    engine = Engine(Path(sys.argv[1]), sys.argv[2])
    settings = {"input": {"prompt": "why?"}, "decode": {"max_new_tokens": 120}}
    answer = engine.send({"kind": "start", "delay_ms": 50, "settings": settings})
    print(engine._process.pid, engine.status.run, answer.error, flush=True)
    time.sleep(600)
"""


def test_the_child_leaves_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    command = [sys.executable, str(script), str(tmp_path), str(model_folder())]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, path = parent.stdout.readline().split()
    parent.kill()
    parent.wait()
    until = time.monotonic() + 30
    while psutil.pid_exists(int(pid)) and psutil.Process(int(pid)).status() != "zombie":
        assert time.monotonic() < until, "the child is still there"
        time.sleep(0.1)
    run = open_run(path)
    assert not run.recording
    assert run.sequences.finish.tolist() == ["interrupted"]
