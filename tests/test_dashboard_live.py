"""The live page in a real Chromium: start, watch, switch, pause, step, branch, kill. A tiny model decodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from cli_helpers import model_folder
from dashboard_helpers import Page, Server, chromium, runs_of

from sotscope.store.reader import open_run
from sotscope_dashboards.style import visible

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("live")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    found = Server(folder, "--model", model_folder(), "--token", "a-token-for-tests-only")
    yield found
    found.stop()


@pytest.fixture
def page(browser: Any, server: Server) -> Iterator[Page]:
    found = Page(browser, server.link)
    yield found
    found.close()
    assert found.outside == []
    assert [error for error in found.errors if "favicon" not in error] == []


def newest(folder: Path) -> Any:
    return open_run(max(runs_of(folder), key=lambda path: path.stat().st_mtime), live=True)


def ended(page: Page) -> None:
    page.until(lambda: page.engine() == "ended", "the end of the text", 60)
    page.until(lambda: page.answer()["total"] + 1 == page.answer()["frame"]["last"], "the last tokens")


def test_start_writes_tokens_that_are_those_of_the_run(page: Page, folder: Path) -> None:
    page.start(prompt="why?", max_new_tokens=50, delay=0)
    ended(page)
    run = newest(folder)
    shown = page.ask("window.sotscope.state.tokens.map(t => t.labels)")
    assert shown == [run.pieces.label(i) for i in run.tokens.all_ids]
    entropy = page.ask("window.sotscope.state.tokens.map(t => t.entropy)")
    chosen = [i for i, value in enumerate(entropy) if value is not None]
    np.testing.assert_allclose([entropy[i] for i in chosen], run.scalars("entropy")[[i - 1 for i in chosen]], rtol=1e-6)
    # the next token of the newest row, with the model's own probabilities
    ids, logprobs = run.top_at(len(run) - 1)
    labels = page.ask("[...document.querySelectorAll('.candidate .word')].map(t => t.textContent)")
    assert labels == [run.pieces.label(int(i)) for i in ids]
    values = page.ask("[...document.querySelectorAll('.candidate .value')].map(t => t.textContent)")
    assert values[0] == f"{np.exp(logprobs[0]):.3f}"
    # words of layers: the last one says what the model chose
    words = page.ask("[...document.querySelectorAll('#words tbody tr:first-child td')].map(t => t.textContent)")
    at = page.ask("[...document.querySelectorAll('#words thead th[data-at]')].map(t => Number(t.dataset.at))")
    assert words == [run.pieces.label(int(run.top_at(int(row))[0][0])) for row in at]


def test_the_heatmap_is_the_run_s_norms(page: Page, folder: Path) -> None:
    page.start(prompt="norms", max_new_tokens=40, delay=0)
    page.page.click("#view")
    ended(page)
    run = newest(folder)
    page.until(lambda: (page.figure() or [{}])[0].get("z") and len(page.figure()[0]["z"][0]) == len(run), "all columns")
    heat, bars, entropy, *_ = page.figure()
    norms = run.scalars("norm").astype(float)
    np.testing.assert_allclose(np.array(heat["z"]), (norms / np.median(norms, 0)).T, rtol=1e-5)
    assert sum(bars["y"]) == len(run) - (run.sequences.prompt_length[0] - 1)
    np.testing.assert_allclose(entropy["y"][-5:], run.scalars("entropy")[-5:], rtol=1e-5)


def test_a_mode_switched_mid_run_shows_in_text_band_and_store(page: Page, folder: Path) -> None:
    page.start(prompt="switch", max_new_tokens=200, delay=60)
    page.page.click("#view")
    page.until(lambda: page.answer().get("total", 0) > 20, "some tokens")
    page.page.click("[data-mode=lookup]")
    page.until(lambda: "lookup" in page.ask("window.sotscope.state.tokens.map(t => t.mode)"), "tokens of lookup")
    page.page.locator("#delay").fill("0")
    page.page.locator("#delay").press("Tab")
    ended(page)
    run = newest(folder)
    (command,) = run.events("command")
    assert command["changes"] == {"mode": "lookup"}
    modes = run.tokens.modes
    assert modes.index("lookup") == command["pos"]
    assert page.ask("window.sotscope.state.tokens.map(t => t.mode)")[:-1] == modes
    bands = page.until(lambda: [t for t in page.figure() if t["name"] == "accepted" and "lookup" in t["customdata"]])
    assert bands[0]["customdata"].index("lookup") > 0
    marks = next(t for t in page.figure() if t["name"] == "events")
    assert marks["text"] == ["mode lookup"]
    assert marks["x"] == [command["pos"]]
    assert page.page.locator("[data-mode=lookup]").get_attribute("aria-checked") == "true"


def test_pause_step_resume_stop(page: Page, folder: Path) -> None:
    page.start(prompt="pause", max_new_tokens=200, delay=40)
    page.until(lambda: page.answer().get("total", 0) > 25, "some tokens")
    page.page.keyboard.press("Escape")
    page.page.locator("#text").focus()
    page.page.keyboard.press("Space")
    page.until(lambda: page.engine() == "paused", "pause")
    run = newest(folder)
    before = len(run)
    page.page.click("#step")
    page.until(lambda: run.refresh() or len(run) > before, "one step")
    page.page.wait_for_timeout(300)
    run.refresh()
    assert len(run) == before + 1
    page.until(lambda: page.answer()["total"] == before + 1, "the step on the page")
    page.page.click("#start")
    page.until(lambda: page.answer()["total"] > before + 3, "more tokens")
    page.page.click("#stop")
    page.until(lambda: page.engine() == "idle", "stop")
    run.refresh()
    assert run.sequences.finish.tolist() == ["interrupted"]
    assert not run.recording


def test_a_candidate_that_is_clicked_begins_a_branch(page: Page, folder: Path) -> None:
    page.start(prompt="branch", max_new_tokens=40, delay=0)
    ended(page)
    run = newest(folder)
    at = len(run) - 15
    page.page.click(f"#text .token[data-at='{at}']")
    other = page.page.locator(f".candidate:not(.chosen)[data-at='{at}']").first
    label = other.locator(".word").inner_text()
    other.click()
    page.until(lambda: page.answer().get("seq") == 1 and page.engine() == "ended", "the branch")
    run.refresh()
    branch = run.tokens_of(1)
    assert branch.labels[at + 1] == label
    assert branch.ids[: at + 1].tolist() == run.tokens_of(0).ids[: at + 1].tolist()
    page.until(lambda: page.ask("window.sotscope.state.tokens.map(t => t.labels)")[:-1] == branch.labels, "its tokens")
    # both continuations side by side
    other = page.until(lambda: page.ask("document.querySelector('#other-text p')?.textContent"))
    first = run.pieces.label(int(run.tokens_of(0).ids[at + 1])).replace("␣", " ")
    assert other.startswith(first)


def test_a_zoom_survives_what_comes_and_leaves_follow(page: Page) -> None:
    page.start(prompt="zoom", max_new_tokens=150, delay=50)
    page.page.click("#view")
    page.until(lambda: page.answer().get("total", 0) > 40 and page.figure(), "some tokens")
    page.ask("window.Plotly.relayout(document.querySelector('#graph-states .js-plotly-plot'),"
             " {'xaxis.range[0]': 9.6, 'xaxis.range[1]': 20.4})")  # fmt: skip
    page.until(lambda: page.answer().get("start") == 10 and page.answer()["stop"] == 21, "the view of the zoom")
    total = page.answer()["total"]
    page.until(lambda: page.answer()["total"] > total + 5, "more tokens")
    low, high = page.ask("document.querySelector('#graph-states .js-plotly-plot')._fullLayout.xaxis.range")
    assert (round(low, 1), round(high, 1)) == (9.5, 20.5) or (round(low, 1), round(high, 1)) == (9.6, 20.4)
    assert "start=10" in page.ask("location.search")
    assert page.page.locator("#follow").get_attribute("aria-pressed") == "false"
    page.page.keyboard.press("l")
    page.until(lambda: page.answer()["stop"] == page.answer()["total"] and page.answer()["start"] == 0, "follow again")
    page.page.click("#stop")


def test_two_tabs_one_controls(page: Page, browser: Any, server: Server) -> None:
    page.start(prompt="tabs", max_new_tokens=200, delay=60)
    page.until(lambda: page.engine() == "running")
    other = Page(browser, server.link)
    other.until(lambda: other.answer().get("control") == "other", "the other tab to watch")
    assert other.page.locator("#stop").is_disabled()
    assert other.page.locator("#start").inner_text() == "Take over"
    other.until(lambda: len(other.ask("window.sotscope.state.tokens")) > 5, "what the first tab sees")
    other.page.click("#start")
    other.until(lambda: other.answer().get("control") == "you", "taking over")
    page.until(lambda: page.answer().get("control") == "other", "the first tab to watch")
    other.page.click("#stop")
    other.until(lambda: other.engine() == "idle")
    other.close()


def test_a_killed_engine_is_said_and_start_works_again(page: Page, server: Server, folder: Path) -> None:
    page.start(prompt="kill", max_new_tokens=200, delay=60)
    page.until(lambda: page.answer().get("total", 0) > 15, "some tokens")
    children = psutil.Process(server.process.pid).children(recursive=True)
    for child in children:
        if "spawn_main" in " ".join(child.cmdline()):
            child.kill()
    page.until(lambda: page.engine() == "dead", "the death of the engine")
    banner = page.until(lambda: page.ask("document.getElementById('banner').textContent"))
    assert "killed by signal 9" in banner
    shown = page.answer()["total"]
    assert len(newest(folder)) >= shown > 15  # what was committed stays on the page
    page.start(prompt="again", max_new_tokens=20, delay=0)
    page.until(lambda: page.engine() == "ended", "a new run", 60)
    assert page.ask("document.getElementById('banner').hidden")


def test_bad_settings_are_one_line_on_the_page(page: Page) -> None:
    page.start(prompt="", max_new_tokens=5, delay=0)
    note = page.until(lambda: page.ask("document.querySelector('#prompt-note.bad')?.textContent"))
    assert "prompt" in note
    assert "\n" not in note


def test_the_page_can_be_used_by_keys_alone(page: Page) -> None:
    page.start(prompt="keys", max_new_tokens=30, delay=0)
    ended(page)
    total = page.answer()["total"]
    page.page.locator("#text").focus()
    page.page.keyboard.press("ArrowLeft")
    page.until(lambda: page.ask("window.sotscope.cursor()") == total - 2)
    page.page.keyboard.press("Shift+ArrowLeft")
    page.until(lambda: page.ask("window.sotscope.cursor()") == total - 12)
    page.page.keyboard.press("v")
    page.until(lambda: not page.ask("document.querySelector('main.watch').classList.contains('simple')"))
    page.page.keyboard.press("[")
    page.until(lambda: page.answer()["layer"] == 1, "the layer below the middle")
    page.page.keyboard.press("?")
    page.until(lambda: page.ask("document.getElementById('keys-dialog').open"))
    page.page.keyboard.press("Escape")
    page.page.locator("#tab-words").first.focus()


# -- health and interventions --------------------------------------------------------------------------------------

LOOPS = "why?"
"""What the tiny model answers with a loop, from token 53 on."""
STRUCK = "[...document.querySelectorAll('#text .retracted s')].map(s => s.textContent)"
WAVY = "[...document.querySelectorAll('#text .token.alarmed')].map(t => Number(t.dataset.at))"
TOKENS = "window.sotscope.state.tokens.map(t => t.labels)"


def struck(run: Any) -> str:
    """The text that the first recovery of ``run`` took back, as the page writes it."""
    event = run.events("retracted")[0]
    ids = run.tokens_of(event["seq"]).all_ids[event["pos"] : event["pos"] + event["tokens"]]
    return visible("".join(run.pieces.label(i) for i in ids)).replace("␣", " ").replace("⏎", "\n").strip()


def test_an_alarm_is_told_and_recover_takes_its_text_back(
    page: Page, browser: Any, server: Server, folder: Path
) -> None:
    page.page.click("#view")
    page.start(prompt=LOOPS, max_new_tokens=90, delay=40)
    page.until(lambda: page.page.locator("#news-title").inner_text() == "▲ repetition, critical", "the alarm")
    page.page.click("#start")
    page.until(lambda: page.engine() == "paused", "pause")
    run = newest(folder)
    (alarm,) = run.events("alarm")
    assert f"(since token {alarm['onset']})" in page.page.locator("#news-text").inner_text()
    page.until(lambda: page.ask(WAVY) == list(range(alarm["onset"], len(run) + 1)), "waves below what is wrong")
    assert page.page.locator("#text .token.alarmed").first.get_attribute("title") == f"▲ repetition: {alarm['message']}"
    lane = page.until(lambda: [one for one in page.figure() if one["name"] == "alarms"], "the lane")
    assert lane[0]["text"] == ["▲ repetition"]
    assert page.ask(STRUCK) == []

    page.page.click("#news-recover")
    page.page.click("#start")
    page.until(lambda: page.answer()["seq"] == 1, "the sequence of the recovery")
    ended(page)
    run.refresh()
    (recovery,) = run.events("recovery")
    assert (recovery["policy"], recovery["alarm"]) == ("rollback", "called")
    assert run.events("retracted")[0]["pos"] == alarm["onset"] + len(alarm["cycle"]), "its first turn is kept"
    page.until(lambda: struck(run) in page.ask(STRUCK), "the struck text")
    page.until(lambda: page.ask(TOKENS)[:-1] == run.tokens_of(1).labels, "the new text")
    assert page.page.locator("#news-title").inner_text() == "↺ rollback"
    page.page.click("#news-close")
    assert not page.page.locator("#news").is_visible()

    replay = Page(browser, f"{server.link}&run={page.answer()['run']}&view=full")
    replay.until(lambda: struck(run) in replay.ask(STRUCK), "the same in replay")
    assert replay.ask(TOKENS)[:-1] == run.tokens_of(1).labels
    replay.page.select_option("#sequence", "0")
    replay.until(lambda: replay.ask(TOKENS)[:-1] == run.tokens_of(0).labels, "what was written first")
    assert replay.ask(STRUCK) == []
    assert replay.ask(WAVY)[0] == alarm["onset"]
    replay.close()


def test_a_recovery_of_the_start_form_is_followed_without_a_hand(page: Page, folder: Path) -> None:
    page.page.select_option("#recover-with", "rollback")
    page.start(prompt=LOOPS, max_new_tokens=70, delay=0)
    page.until(lambda: page.answer().get("seq") == 1, "the recovery", 40)
    ended(page)
    run = newest(folder)
    assert run.events("recovery")[0]["alarm"] == "repetition"
    page.until(lambda: page.ask(TOKENS)[:-1] == run.tokens_of(1).labels, "what it wrote instead")
    assert "seq=" not in page.ask("location.search"), "it is the text of the run, not a choice"


def test_interventions_are_added_toggled_and_removed_live(page: Page, folder: Path) -> None:
    page.page.click("#view")
    page.page.click("#tab-interventions")
    page.start(prompt="steer", max_new_tokens=200, delay=50)
    page.until(lambda: page.answer().get("total", 0) > 15, "some tokens")
    page.page.select_option("#iv-kind", "steer")
    page.page.locator("#iv-options").fill("dim=999,value=4")
    page.page.click("#iv-add")
    note = page.until(lambda: page.ask("document.querySelector('#iv-note.bad')?.textContent"))
    assert "dim 999" in note
    assert "\n" not in note
    page.page.locator("#iv-options").fill("dim=3,value=40")
    page.page.locator("#iv-layers").fill("1")
    page.page.click("#iv-add")
    page.until(lambda: [one["on"] for one in page.answer()["engine"]["interventions"]] == [True], "it to hold")
    page.until(lambda: "changed" in page.page.locator(".iv-where").inner_text(), "rows that it changed")
    assert page.ask("document.querySelector('#iv-note.bad')") is None
    page.page.click(".switch")
    page.until(lambda: [one["on"] for one in page.answer()["engine"]["interventions"]] == [False], "it to rest")
    assert page.page.locator(".switch").get_attribute("aria-checked") == "false"
    page.page.locator(".iv-strength").fill("0.5")
    page.page.locator(".iv-strength").press("Tab")
    page.until(lambda: [one["strength"] for one in page.answer()["engine"]["interventions"]] == [0.5], "its strength")
    page.page.click(".iv-remove")
    page.until(lambda: page.answer()["engine"]["interventions"] == [], "it to be gone")
    page.page.click("#stop")
    page.until(lambda: page.engine() == "idle")
    run = newest(folder)
    begin, rest = [event["pos"] for event in run.events("interventions")][:2]
    assert np.flatnonzero(run.scalars("intervened")).tolist() == list(range(begin, rest))
    where = page.until(lambda: page.page.locator(".iv-where").inner_text(), "the list of the replay")
    assert where == f"changed {rest - begin} rows: {begin}-{rest - 1}"
    assert page.page.locator(".switch").count() == 0


def test_the_next_run_starts_with_what_was_added_and_measures_it(page: Page, folder: Path) -> None:
    page.page.click("#view")
    page.page.click("#tab-interventions")
    page.until(lambda: page.engine() in ("idle", "ended"), "an engine that is ready", 60)
    page.page.select_option("#iv-kind", "steer")
    page.page.locator("#iv-options").fill("dim=3,value=40")
    page.page.click("#iv-add")
    page.page.check("#measure")
    page.until(lambda: page.page.locator("#planned").inner_text() == "with 1 intervention", "the start form to say so")
    page.start(prompt="measure", max_new_tokens=12, delay=0)
    ended(page)
    run = newest(folder)
    assert run.events("interventions")[0]["names"] == ["steer"]
    effect = page.until(
        lambda: [one for one in page.figure("graph-tab") or [] if one["name"] == "effect_kl"], "effects"
    )
    values = np.array([np.nan if y is None else y for y in effect[0]["y"]], float)
    np.testing.assert_allclose(values, run.scalars("effect_kl"), rtol=1e-5)
