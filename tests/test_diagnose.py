"""`diagnose`: what it finds in finished runs whose trouble is known, in Python and on the command line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_helpers import call, mistake

from sotscope.config import RunConfig
from sotscope.errors import HealthError
from sotscope.health.contracts import Row
from sotscope.health.diagnose import ALWAYS, diagnose
from sotscope.health.moved import HEAD_FAR, SPAN, first_moved
from sotscope.recorder import recording
from sotscope.store.reader import Run, open_run
from sotscope.testing.health import DIM, LAYERS, healthy_rows, token_rows, troubled_rows
from sotscope.testing.runs import write_run

BUILT_IN: dict[str, dict[str, Any]] = {
    name: {} for name in ("non_finite", "norms", "collapse", "repetition", "entropy", "perplexity", "heads", "lag")
}


def run_of(folder: Path, rows: Sequence[Row], *, states: bool = True, **more: Any) -> Run:
    """A finished run with these rows; token 7 is called " seven"."""
    scalars = {name: np.stack([getattr(row, name) for row in rows]) for name in (*ALWAYS, "head_norm")}
    draws = np.random.default_rng(0).normal(size=(len(rows), LAYERS, DIM)).astype(np.float32)
    sites = {"resid" if states else "mlp_act": draws}
    return write_run(
        folder / "made.sot", sites, ids=[row.token for row in rows], scalars=scalars, prompt=8,
        words={7: " seven", 8: " eight"}, last=rows[-1].next_id, **more,
    )  # fmt: skip


def test_a_healthy_run_says_so_in_one_line(tmp_path: Path) -> None:
    run = run_of(tmp_path, healthy_rows())
    found = diagnose(run, BUILT_IN)
    assert (found.verdict, found.rows, found.monitors) == ("healthy", 200, tuple(BUILT_IN))
    asked = [part for name in BUILT_IN for part in ("--monitor", name)]
    said = call("diagnose", run.path, *asked).out.splitlines()
    assert said[0] == "healthy: nothing wrong in 200 rows, 8 monitors."
    assert all(line.startswith("not judged: ") for line in said[1:])


def test_a_loop_is_told_with_its_place_its_words_and_what_to_try(tmp_path: Path) -> None:
    tokens = [*range(100, 160), *[7, 8] * 30, *range(200, 240)]
    run = run_of(tmp_path, token_rows(tokens, prompt=8))
    found = diagnose(run, BUILT_IN)
    (alarm,) = found.sequences[0].alarms
    assert (alarm.kind, alarm.onset, alarm.pos, alarm.end) == ("repetition", 60, 82, 118)
    assert alarm.words.startswith(" seven eight seven")
    assert alarm.evidence["cycle"] == [7, 8]
    said = call("diagnose", run.path, "--monitor", "repetition").out
    assert said.startswith("critical: repetition from position 60 on, for 59 tokens: ")
    assert "> seven eight" in said
    assert "  try: --recover rollback" in said
    assert said.splitlines()[-2].startswith("judged: ")


def test_everything_that_is_wrong_is_found_by_onset_and_what_moved_first_is_named(tmp_path: Path) -> None:
    found = diagnose(run_of(tmp_path, troubled_rows()), BUILT_IN)
    alarms = found.sequences[0].alarms
    assert found.verdict == "critical"
    assert {alarm.kind for alarm in alarms} == set(BUILT_IN) - {"collapse"}, "the states themselves are sound here"
    assert [alarm.onset for alarm in alarms] == sorted(alarm.onset for alarm in alarms)
    norms = next(alarm for alarm in alarms if alarm.kind == "norms")
    assert norms.moved["layer"]["pos"] in range(92, 101), "spans that reach into the trouble"
    assert abs(norms.moved["layer"]["by"]) > 1.75
    heads = next(alarm for alarm in alarms if alarm.kind == "heads")
    assert heads.moved["head"]["by"] > 4


def test_json_has_what_a_program_needs(tmp_path: Path) -> None:
    run = run_of(tmp_path, troubled_rows())
    found = call("diagnose", run.path, "--json", "--monitor", "repetition", "--monitor", "norms:rows=2").json
    assert set(found) >= {"run", "sequences", "left_out", "verdict", "monitors", "rows"}
    assert found["verdict"] == "critical"
    (one,) = found["sequences"]
    assert (one["seq"], one["rows"]) == (0, 260)
    assert {"kind", "severity", "onset", "pos", "end", "message", "evidence", "advice"} <= set(one["alarms"][0])
    assert next(alarm for alarm in one["alarms"] if alarm["kind"] == "norms")["pos"] == 101, "rows=2"


def test_what_could_not_be_judged_is_said(tmp_path: Path) -> None:
    found = diagnose(run_of(tmp_path, healthy_rows(), states=False), BUILT_IN)
    assert "collapse" not in found.monitors
    assert any("collapse" in line and "states" in line for line in found.left_out)
    assert any("no baseline" in line for line in found.left_out)


def test_all_monitors_judge_by_default(tmp_path: Path) -> None:
    found = diagnose(run_of(tmp_path, healthy_rows()))
    assert set(BUILT_IN) <= set(found.monitors)


@pytest.mark.parametrize("count", [1, 2, 9])
def test_a_short_run_is_healthy(tmp_path: Path, count: int) -> None:
    assert diagnose(run_of(tmp_path, healthy_rows(count)), BUILT_IN).verdict == "healthy"


def test_mistakes_are_answered_in_one_line(tmp_path: Path) -> None:
    run = run_of(tmp_path, healthy_rows(20))
    assert "repetition" in mistake("diagnose", run.path, "--monitor", "repetitoin")
    assert "tokens" in mistake("diagnose", run.path, "--monitor", "repetition:token=3")
    assert "needs" in mistake("diagnose", run.path, "--monitor", "repetition:tokens=0")
    assert "NAME:PARAM=VALUE" in mistake("diagnose", run.path, "--monitor", "repetition:")
    assert "does not exist" in mistake("diagnose", tmp_path / "no.sot")
    bare = write_run(tmp_path / "bare.sot", {"resid": np.zeros((3, 2, 4), np.float32)})
    with pytest.raises(HealthError, match=r"^bare.sot has no norm, [^\n]*record it anew"):
        diagnose(bare)


def test_a_branch_is_not_blamed_for_what_its_parent_did(tmp_path: Path, llama: Any) -> None:
    settings = RunConfig.model_validate(
        {"out": tmp_path / "b.sot", "input": {"prompt": "5 17 3 88 41"}, "decode": {"max_new_tokens": 60}}
    )
    with recording(settings, model=llama) as recorded:
        list(recorded.steps())
        list(recorded.branch(0, 60, 12))
    run = open_run(settings.out or "")
    loops = {"repetition": {"tokens": 6, "repeats": 2.0}}
    parent, branch = diagnose(run, loops).sequences
    assert (parent.seq, branch.seq, parent.rows) == (0, 1, 64)
    assert branch.rows == len(run.rows(1)) - 60
    assert parent.alarms, "an untrained model loops soon"
    assert all(alarm.pos >= 60 for alarm in branch.alarms)


def test_diagnosing_needs_no_torch(tmp_path: Path) -> None:
    run = run_of(tmp_path, troubled_rows())
    code = (
        "import sys; sys.modules['torch'] = None\nfrom sotscope.cli.main import run\n"
        f"run(['diagnose', {str(run.path)!r}, '--monitor', 'repetition', '--monitor', 'collapse'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "critical: repetition" in done.stdout


# -- what moved first ----------------------------------------------------------------------------------------------


def numbers(layers: int = 5) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(size=(120, layers))


def test_the_layer_that_left_its_past_first_is_found() -> None:
    norm, heads = numbers(), np.random.default_rng(1).normal(size=(120, 5, 3))
    norm[66:, 3] += 8
    norm[60:, 1] -= 8
    heads[70:, 4, 2] += 20
    found = first_moved({"norm": norm, "head": heads}, [0, 2, 4, 6, 8], 64, 90)
    assert found is not None
    assert (found["what"], found["layer"]) == ("norm", 2)
    assert found["by"] < -1.75
    assert 60 - SPAN < found["row"] <= 60
    found = first_moved({"head": heads}, [0, 2, 4, 6, 8], 64, 90, HEAD_FAR)
    assert found is not None
    assert (found["layer"], found["head"]) == (8, 2)


def test_one_odd_row_is_no_move_and_a_short_past_knows_nothing() -> None:
    norm = numbers()
    norm[70] = 1e6
    assert first_moved({"norm": norm}, range(5), 64, 110) is None
    norm[10:] += 50
    assert first_moved({"norm": norm[:38]}, range(5), 10, 37) is None


def test_layers_that_were_skipped_never_move() -> None:
    norm = numbers()
    norm[:, 2] = np.nan
    assert first_moved({"norm": norm}, range(5), 64, 110) is None
    assert replace(healthy_rows(1)[0], pos=3).pos == 3
