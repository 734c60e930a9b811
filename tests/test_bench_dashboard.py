"""`bench dashboard` with a tiny model: all it claims is found, in sane numbers; how large they are is not tested."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import call, mistake, model_folder, recorded

from sotscope.bench.dashboard import PARTS, Sizes, run
from sotscope.bench.dashboard_synthetic import write
from sotscope.bench.dashboard_timeline import journal_of, timeline
from sotscope.store.reader import open_run

pytestmark = pytest.mark.xdist_group("browser")
TINY = Sizes(tokens=24, switches=2, pairs=1, rows=600, rounds=1, minutes=0.1, delay_ms=40)


@pytest.mark.slow
def test_every_figure_is_there_and_sane() -> None:
    said: list[str] = []
    found = run(said.append, model=str(model_folder()), sizes=TINY)
    for name in ("commit_to_pixels_ms", "commit_to_pixels_simple_ms"):
        one = found[name]
        assert 0 < one["p50"] <= one["p95"] < 60_000
        assert one["tokens"] == TINY.tokens  # none is missed
    assert found["command_to_effect_ms"]["switches"] == TINY.switches
    for name in ("command_to_effect_ms", "step_ms"):
        assert 0 < found[name]["p50"] <= found[name]["p95"] < 60_000
    assert found["over_step_ms"]["p95"] < found["command_to_effect_ms"]["p95"]
    for arm in ("client", "tab"):
        low, high = found[f"decode_ratio_with_{arm}_interval"]
        assert 0 < low <= found[f"decode_ratio_with_{arm}"] <= high
    assert set(found["tokens_per_second"]) == {"alone", "client", "tab"}
    assert found["look_cpu_ms"] > 0
    assert 0 < found["first_paint_ms"] <= found["first_token_ms"]
    assert found["open_600_ms"] > 0
    assert found["open_600_whole_ms"] > 0
    assert abs(found["browser_heap_growth_mb"]) < found["browser_heap_mb"]
    assert abs(found["server_growth_mb"]) < found["server_mb"]
    assert found["rows_shown"] > 100  # at 50 a second, for six seconds
    assert all("\n" not in line for line in said)


def test_a_synthetic_run_repeats_the_decoded_rows_of_a_real_one(tmp_path: Path) -> None:
    source = open_run(recorded(tmp_path))
    write(source.path, tmp_path / "long.sot", 150)
    made, rows = open_run(tmp_path / "long.sot"), np.flatnonzero(np.array(source.tokens.modes) != "prompt")
    again = rows[np.arange(150) % len(rows)]
    assert made.complete
    assert (made.sites, made.layers) == (["resid"], source.layers)
    np.testing.assert_array_equal(made.tokens.ids, source.tokens.ids[again])
    np.testing.assert_array_equal(made.scalars("norm"), source.scalars("norm")[again])
    np.testing.assert_allclose(made.states("resid"), source.take("resid", again), rtol=2**-8)  # bfloat16
    assert made.steps["rows"].tolist() == [1] * 150


def test_times_are_those_of_the_journal(tmp_path: Path) -> None:
    run = open_run(recorded(tmp_path))
    written = timeline(journal_of(run.path))
    prompt = int(run.sequences["prompt_length"][0])
    assert list(written.chosen) == list(range(prompt, len(run) + 1))
    assert written.token_ms(prompt) == written.committed_ms[written.modes != "prompt"][0]
    assert written.token_ms(len(run)) == written.committed_ms[-1]
    assert np.all(np.diff(written.committed_ms) >= 0)
    first = written.committed_ms[written.modes != "prompt"][0]
    expected = (len(run) - prompt) / (written.committed_ms[-1] - first) * 1000
    assert written.tokens_per_second == pytest.approx(expected)
    assert written.first_in("ar", written.committed_ms[3]) == 4
    assert written.first_in("ar", written.committed_ms[-1]) == -1


def test_without_playwright_or_chromium_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    line = mistake("bench", "dashboard", "--only", "open")
    assert "pip install playwright" in line
    assert "Chromium" in line
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "/nowhere")
    assert "Chromium" in mistake("bench", "dashboard", "--only", "open")


def test_an_unknown_part_is_refused_and_the_help_has_an_example() -> None:
    line = mistake("bench", "dashboard", "--only", "pixel")
    assert "pixels" in line
    assert list(PARTS) == ["pixels", "command", "decode", "open", "growth"]
    shown = call("bench", "dashboard", "--help").out
    assert "sotscope bench dashboard --json" in shown
