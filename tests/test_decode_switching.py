"""Mode, window, policy and gates change in the middle of a text, at a step boundary, and the text does not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decode_helpers import PROMPT, bundle_folder, settings

from sotscope.catalog import GATES
from sotscope.decode.contracts import Context, Gate, Proposal
from sotscope.errors import SotscopeError
from sotscope.recorder import Recording, recording
from sotscope.store.reader import Run, open_run
from sotscope.testing.drafters import Scripted, anti, greedy
from sotscope.testing.oracle import check_run
from sotscope.testing.tiny import tiny

COUNT = 40
Change = Callable[[Recording, int], None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_folder(tiny("llama"), tmp_path_factory.mktemp("drafter"))


@pytest.fixture(scope="module")
def truth() -> list[int]:
    return greedy(tiny("llama"), PROMPT, COUNT)


def decode(
    model: Any, out: Path, change: Change, *, folder: Path | None = None, drafter: Any = None, **given: Any
) -> tuple[Run, Recording]:
    """Record, calling ``change(recording, new tokens so far)`` after every step, prefill included."""
    given = {"max_new_tokens": COUNT, "drafter": str(folder) if folder else None, **given}
    with recording(settings(out, sites=("resid", "final"), **given), model=model, drafter=drafter) as recorded:
        new = 0
        for step in recorded.steps():
            new += 0 if step.mode == "prompt" else step.rows
            change(recorded, new)
    return open_run(recorded.path), recorded


def at(turns: dict[int, dict[str, Any]]) -> Change:
    """Ask for each change once so many tokens are there."""
    left = dict(turns)

    def change(recorded: Recording, new: int) -> None:
        for count in [count for count in left if new >= count]:
            recorded.controls.set(**left.pop(count))

    return change


def test_ten_ar_ten_sot_ten_dmtd_ten_ar_are_forty_ar(
    llama: Any, folder: Path, truth: list[int], tmp_path: Path
) -> None:
    plan = {10: {"mode": "sot"}, 20: {"mode": "dmtd"}, 30: {"mode": "ar"}}
    run, _ = decode(llama, tmp_path / "turns.sot", at(plan), folder=folder)
    assert run.tokens.all_ids == [*PROMPT, *truth]
    check_run(llama, run, tolerance=1e-5)
    modes = run.tokens.modes[4:]
    order = [mode for i, mode in enumerate(modes) if i == 0 or modes[i - 1] != mode]
    assert order == ["ar", "sot", "dmtd", "ar"]
    assert modes[:10] == ["ar"] * 10
    assert all(8 <= modes.count(mode) <= 14 for mode in ("sot", "dmtd"))
    assert {"accepted", "first_slot_miss"} <= set(run.drafts["reason"]), "no draft was right, or none was wrong"
    commands = run.events("command")
    assert [command["changes"] for command in commands] == list(plan.values())
    for command in commands:  # each was applied before the step it names, at the position that step begins at
        step = run.steps[run.steps["step"] == command["step"]].iloc[0]
        assert step["pos"] == command["pos"]
        assert step["mode"] == command["changes"]["mode"]
        assert run.steps[run.steps["step"] == command["step"] - 1].iloc[0]["mode"] != step["mode"]


def test_states_switched_on_in_the_middle_have_no_past_and_draft_from_the_second_step_on(
    llama: Any, folder: Path, truth: list[int], tmp_path: Path
) -> None:
    run, _ = decode(llama, tmp_path / "a.sot", at({10: {"mode": "sot"}}), folder=folder)
    assert run.tokens.all_ids == [*PROMPT, *truth]
    steps = run.steps[run.steps["mode"] == "sot"]
    drafts = run.drafts.groupby("step").size()
    assert steps["step"].iloc[0] not in drafts.index
    assert steps["step"].iloc[1] in drafts.index


def test_of_ten_changes_within_a_step_the_last_one_counts(
    llama: Any, folder: Path, truth: list[int], tmp_path: Path
) -> None:
    numbers: list[int] = []

    def change(recorded: Recording, new: int) -> None:
        if new == 5:
            numbers.extend(recorded.controls.set(mode=mode) for mode in ("sot", "dmtd") * 5)

    run, _ = decode(llama, tmp_path / "a.sot", change, max_new_tokens=12, folder=folder)
    assert run.tokens.all_ids == [*PROMPT, *truth[:12]]
    assert run.tokens.modes[4:] == ["ar"] * 5 + ["dmtd"] * 7
    [command] = run.events("command")
    assert (command["id"], command["changes"]) == (numbers[-1], {"mode": "dmtd"})


def test_a_change_during_prefill_holds_from_the_first_new_token_on(
    llama: Any, folder: Path, truth: list[int], tmp_path: Path
) -> None:
    def change(recorded: Recording, new: int) -> None:
        if not new:
            recorded.controls.set(mode="sot")

    run, _ = decode(llama, tmp_path / "a.sot", change, max_new_tokens=8, prefill_block=2, folder=folder)
    assert run.tokens.all_ids == [*PROMPT, *truth[:8]]
    assert run.tokens.modes == ["prompt"] * 4 + ["sot"] * 8
    assert len(run.drafts)


def test_a_change_after_the_end_does_nothing(llama: Any, folder: Path, truth: list[int], tmp_path: Path) -> None:
    with recording(settings(tmp_path / "a.sot", max_new_tokens=6, drafter=str(folder)), model=llama) as recorded:
        list(recorded.steps())
        recorded.controls.set(mode="sot")
    recorded.controls.set(mode="dmtd")
    run = open_run(recorded.path)
    assert run.complete
    assert run.tokens.all_ids == [*PROMPT, *truth[:6]]
    assert not run.events("command")


def test_another_thread_may_ask(llama: Any, folder: Path, truth: list[int], tmp_path: Path) -> None:
    def change(recorded: Recording, new: int) -> None:
        if new == 4:
            thread = threading.Thread(target=recorded.controls.set, kwargs={"mode": "sot", "window": 2})
            thread.start()
            thread.join()

    run, _ = decode(llama, tmp_path / "a.sot", change, max_new_tokens=12, folder=folder)
    assert run.tokens.modes[4:] == ["ar"] * 4 + ["sot"] * 8
    assert run.steps["window"].max() == 2
    assert run.tokens.all_ids == [*PROMPT, *truth[:12]]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"mode": "soot"}, "did you mean .*sot"),
    ({"mode": "forced"}, "cannot begin"),
    ({"seed": 3}, "'seed' cannot change"),
    ({"window": -1}, "window"),
    ({"policy": "magic"}, "policy"),
    ({"gates": {"entropi": {}}}, "did you mean .*entropy"),
    ({"gates": {"entropy": {"treshold": 2.0}}}, "threshold"),
]


def test_a_change_that_cannot_be_made_raises_where_it_is_asked_for(
    llama: Any, truth: list[int], tmp_path: Path
) -> None:
    def change(recorded: Recording, new: int) -> None:
        if new == 4:
            for asked, says in WRONG:
                with pytest.raises(SotscopeError, match=says) as refusal:
                    recorded.controls.set(**asked)
                assert "\n" not in str(refusal.value)

    run, _ = decode(llama, tmp_path / "a.sot", change, max_new_tokens=8)
    assert run.tokens.all_ids == [*PROMPT, *truth[:8]]
    assert not run.events("command")
    assert not run.info()["alarms"]


def test_a_mode_without_a_trained_drafter_is_an_alarm_and_the_text_goes_on(
    llama: Any, truth: list[int], tmp_path: Path
) -> None:
    run, recorded = decode(
        llama, tmp_path / "a.sot", at({4: {"mode": "sot"}, 6: {"mode": "lookup"}}), max_new_tokens=12
    )
    assert run.tokens.all_ids == [*PROMPT, *truth[:12]]
    [alarm] = run.info()["alarms"]
    assert alarm["alarm"] == "command"
    assert "sotscope train sot" in alarm["message"]
    assert [command["changes"] for command in run.events("command")] == [{"mode": "lookup"}]
    assert run.tokens.modes[4:] == ["ar"] * 6 + ["lookup"] * 6
    assert recorded.prepared.maker.settings.mode == "lookup"


class Shut(Gate):
    name = "shut"

    def window(self, context: Context) -> int:
        return 0


def test_window_and_gates_change_what_is_drafted(
    llama: Any, folder: Path, truth: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GATES._loaded, "shut", Shut)
    monkeypatch.setitem(GATES._entries, "shut", f"{__name__}:Shut")
    plan = {8: {"window": 1}, 16: {"gates": {"shut": {}}}, 24: {"gates": {}}, 32: {"window": 0}}
    run, _ = decode(llama, tmp_path / "a.sot", at(plan), mode="sot", folder=folder)
    assert run.tokens.all_ids == [*PROMPT, *truth]
    starts = [command["step"] for command in run.events("command")]
    parts = np.split(run.steps["window"].to_numpy()[run.steps["mode"] == "sot"], [start - 1 for start in starts])
    assert [set(part.tolist()) for part in parts[1:]] == [{1}, {0}, {1}, {0}]
    assert 4 in parts[0]
    assert set(run.steps["reason"].to_numpy()[starts[1] : starts[2]]) == {"gated"}


def test_a_lossy_policy_for_a_while_marks_the_whole_run(llama: Any, truth: list[int], tmp_path: Path) -> None:
    plan: dict[int, dict[str, Any]] = {6: {"policy": "none"}, 12: {"policy": "exact"}}
    run, recorded = decode(llama, tmp_path / "a.sot", at(plan), drafter=anti(truth, 2, 97), max_new_tokens=20)
    generated = run.tokens.all_ids[5:]
    assert generated[:6] == truth[:6]
    assert generated != truth[:20]
    assert recorded.summary is not None
    assert recorded.summary.lossy
    assert recorded.summary.policy == "exact"
    assert recorded.summary.believed == (run.drafts["reason"] == "believed").sum() > 0
    check_run(llama, run, tolerance=1e-5)


def test_a_drafter_that_failed_comes_back_only_when_its_mode_is_asked_for(
    llama: Any, tmp_path: Path, truth: list[int]
) -> None:
    class Failing(Scripted):
        def propose(self, context: Context, window: int) -> Proposal:
            if context.new_tokens in (4, 5):
                raise RuntimeError("out of cookies")
            return super().propose(context, window)

    drafter = Failing(truth, 1, lambda position, token: token, "sot")
    changes = {8: {"window": 1}, 20: {"mode": "lookup"}}
    run, _ = decode(llama, tmp_path / "a.sot", at(changes), drafter=drafter)
    assert run.tokens.all_ids == [*PROMPT, *truth]
    assert run.tokens.modes[4:24] == ["sot"] * 4 + ["ar"] * 16, "another setting brought it back"
    assert set(run.tokens.modes[25:]) == {"lookup"}
    assert len(run.info()["alarms"]) == 1
