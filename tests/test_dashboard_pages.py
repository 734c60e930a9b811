"""The pages in a real Chromium, without decoding: replay, links, runs, compare, exports, themes, restarts, safety."""

from __future__ import annotations

import base64
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pandas as pd
import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from cli_helpers import call, model_folder
from dashboard_helpers import Page, Server, chromium
from PIL import Image

from sotscope.analysis.comparison import compare
from sotscope.analysis.pool import Threads
from sotscope.store.reader import open_run
from sotscope.testing.runs import write_run
from sotscope_dashboards.catalog import PANELS
from sotscope_dashboards.library import Library
from sotscope_dashboards.look import Look
from sotscope_dashboards.scene import Scene
from sotscope_dashboards.style import visible

pytestmark = pytest.mark.xdist_group("browser")

TOKEN = "a-token-for-tests-only"
NASTY = ["<b>x</b>", "<s>", "\u202eabc", "\x1b[31m", "&amp;", " the", " the", " the", "\n", "\u200b", "<|im_end|>", "é"]
TABS = [name for name in PANELS.names() if name not in ("states", "candidates")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


def scalars_of(states: Any) -> dict[str, Any]:
    """What every recording has besides ``states [token, layer, dim]``; the numbers mean nothing."""
    norm = np.linalg.norm(states, axis=2)
    layered = dict.fromkeys(("norm", "cosine", "max_abs"), norm)
    return layered | dict.fromkeys(("entropy", "logprob", "margin"), norm[:, 0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    common = ("-m", model_folder(), "--sites", "resid,head_out,final", "--quiet")
    for name, count, mode in (("plain", 60, "ar"), ("copied", 60, "lookup"), ("long", 200, "lookup")):
        answer = call("record", "why?", "-n", count, "--mode", mode, "-o", folder / f"{name}.sot", *common)
        assert answer.code == 0, answer.err
    ill = ("--monitor", "--recover", "rollback", "--intervene", "steer:dim=3,value=0.001,layers=1", "--measure")
    answer = call("record", "why?", "-n", 90, *ill, "-o", folder / "ill.sot", *common)
    assert answer.code == 0, answer.err
    states = np.random.default_rng(1).normal(size=(24, 3, 8)).astype(np.float32)
    write_run(folder / "nasty.sot", {"resid": states}, ids=[i % 12 for i in range(24)], words=dict(enumerate(NASTY)),
              scalars=scalars_of(states), prompt=2)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    found = Server(folder, "--model", model_folder(), "--token", TOKEN)
    yield found
    found.stop()


def link(server: Server, folder: Path, name: str = "plain", page: str = "", **look: object) -> str:
    """An address that shows a run; the token is exchanged for the cookie on the way."""
    query = {"token": TOKEN, **({"run": Library(folder).id_of(folder / f"{name}.sot")} if name else {}), **look}
    return f"{server.address}{page}?{urlencode(query)}"


@pytest.fixture
def opened(browser: Any, server: Server, folder: Path) -> Iterator[Any]:
    """Opens pages; at the end none of them has complained, or asked for anything outside this machine."""
    pages: list[Page] = []

    def open_page(name: str = "plain", page: str = "", view: dict[str, Any] | None = None, **look: object) -> Page:
        pages.append(Page(browser, link(server, folder, name, page, **look), **(view or {})))
        return pages[-1]

    yield open_page
    for page in pages:
        page.close()
        assert page.outside == []
        assert [error for error in page.errors if "favicon" not in error] == []


def truth(folder: Path, name: str = "plain", **look: Any) -> Scene:
    run = open_run(folder / f"{name}.sot")
    return Scene(Look(run=Library(folder).id_of(run.path), **look), run)


def here(page: Page) -> dict[str, Any]:
    """What the page says of its cursor, wherever it does."""
    script = """(() => {
      const number = (s) => { const at = document.querySelector(s); return at ? Number(at.dataset.at) : null; };
      const plot = document.querySelector('#graph-states .js-plotly-plot');
      return { text: number('#text .token.here'), line: plot && plot.layout.shapes ? plot.layout.shapes[0].x0 : null,
        words: number('#words th.here'), candidates: number('.candidate'), scrub: Number(sotscope.$('scrub').value) };
    })()"""
    found: dict[str, Any] = page.ask(script)
    return found


def scrub(page: Page, at: int) -> None:
    page.ask(f"(() => {{ const s = sotscope.$('scrub'); s.value = {at}; "
             "s.dispatchEvent(new Event('input', { bubbles: true })); })()")  # fmt: skip


# -- replay and links ----------------------------------------------------------------------------------------------


def test_replay_shows_the_run_and_one_cursor_moves_everything(opened: Any, folder: Path) -> None:
    run = open_run(folder / "plain.sot")
    page = opened()
    page.page.click("#view")
    labels = page.until(lambda: page.ask("sotscope.state.tokens.map(t => t.labels)"))
    assert labels == [run.pieces.label(i) for i in run.tokens.all_ids]
    assert page.ask("document.getElementById('when').textContent") == "replay"
    for at in (len(run) - 20, len(run) - 7):
        scrub(page, at)
        page.until(lambda at=at: set(here(page).values()) == {at}, f"a cursor at {at}")
        ids, logprobs = run.top_at(at)
        values = page.ask("[...document.querySelectorAll('.candidate .value')].map(t => t.textContent)")
        assert values[:3] == [f"{p:.3f}" for p in np.exp(logprobs[:3].astype(np.float64))]
        words = page.ask("[...document.querySelectorAll('.candidate .word')].map(t => t.textContent)")
        assert words == [visible(run.pieces.label(int(i))) for i in ids]
        entropy = run.scalars("entropy")[at - 1]
        assert f"entropy {entropy:.2f} nats" in page.ask("document.getElementById('readout').textContent")
    page.page.click(f"#words th[data-at='{len(run) - 9}']")
    page.until(lambda: set(here(page).values()) == {len(run) - 9}, "a cursor set in the table")


def test_a_link_reproduces_the_view(opened: Any, browser: Any, server: Server, folder: Path) -> None:
    page = opened("long")
    page.page.click("#view")
    page.page.click("#tab-layers")
    page.page.select_option("#scalar", "max_abs")
    page.page.select_option("#colour", "norm")
    page.page.select_option("#layer", "1")
    page.page.locator("#low").fill("1")
    page.page.locator("#low").press("Tab")
    page.ask("Plotly.relayout(sotscope.plot('graph-states'), {'xaxis.range[0]': 99.6, 'xaxis.range[1]': 150.4})")
    page.until(lambda: page.answer().get("start") == 100, "the range")
    page.page.click("#text .token[data-at='120']")
    wanted = {"run": Library(folder).id_of(folder / "long.sot"), "view": "full", "tab": "layers", "scalar": "max_abs",
              "colour": "norm", "layer": "1", "low": "1", "start": "100", "stop": "151", "cursor": "120"}  # fmt: skip
    query = "Object.fromEntries(new URLSearchParams(location.search))"
    page.until(lambda: page.ask(query) == wanted, "the view in the address")
    other = Page(browser, f"{server.address}?{urlencode(wanted | {'token': TOKEN})}")

    def is_there(one: Page) -> bool:
        stack, tab = one.figure() or [{}], one.figure("graph-tab") or []
        line = here(one)["line"] == 120 and len(stack[0].get("z") or []) == 3
        return line and "row 120" in {trace["name"] for trace in tab}

    page.until(lambda: is_there(page), "the view")
    other.until(lambda: is_there(other), "the same view")
    for id_ in ("graph-states", "graph-tab"):
        assert page.figure(id_) == other.figure(id_)
    assert (other.answer()["start"], other.answer()["stop"], other.answer()["layer"]) == (100, 151, 1)
    assert other.ask("document.getElementById('colour').value") == "norm"
    other.close()


# -- every panel, and what is exported -----------------------------------------------------------------------------


def flat(value: Any) -> Any:
    """Numbers of a trace, as ``style.typed`` packed them or as they are; NaN for null."""
    if isinstance(value, dict) and "bdata" in value:
        array = np.frombuffer(base64.b64decode(value["bdata"]), np.dtype(value["dtype"]))
        return array.reshape([int(n) for n in value["shape"].split(",")]) if "shape" in value else array
    return np.array([np.nan if one is None else one for one in value], np.float64)


def same_figure(shown: list[dict[str, Any]], drawn: dict[str, Any]) -> None:
    assert [trace["type"] for trace in shown] == [trace["type"] for trace in drawn["data"]]
    for trace, wanted in zip(shown, drawn["data"], strict=True):
        for axis in ("x", "y", "z"):
            if axis in wanted and len(wanted[axis]):
                found = np.array(
                    [[np.nan if v is None else v for v in row] if isinstance(row, list) else row for row in trace[axis]]
                    if axis == "z"
                    else [np.nan if v is None else v for v in trace[axis]],
                    np.float64,
                )
                np.testing.assert_allclose(found, flat(wanted[axis]), rtol=1e-6)


AT = {"layer": 2, "cursor": 40}
GRID = """(() => { const found = [], api = dash_ag_grid.getApi('grid-tab');
  if (api) api.forEachNode((node) => found.push(node.data)); return found; })()"""
WORDS = "[...document.querySelectorAll('#words tbody tr')].map(r => [...r.children].map(c => c.textContent))"


def test_every_panel_is_drawn_as_its_function_draws_it(opened: Any, folder: Path) -> None:
    page = opened("copied", **AT)
    page.page.click("#view")
    for name in ["states", *TABS]:
        if name in TABS:
            page.page.click(f"#tab-{name}")
        panel = PANELS.get(name)()
        drawn = panel.draw(truth(folder, "copied", **AT))
        if panel.kind == "figure":
            figure_is(page, "graph-states" if name == "states" else "graph-tab", drawn)
        elif panel.kind == "grid":
            page.until(lambda rows=drawn["rows"]: page.ask(GRID) == json.loads(json.dumps(rows)), f"the rows of {name}")
            page.until(lambda: page.page.locator("#body-grid [role=gridcell]").count() > 0, "cells")
            head = page.page.locator("#body-grid [role=columnheader]").first
            assert head.bounding_box()["height"] < 60, "the grid has its style"
        else:
            lines = zip(drawn["layers"], drawn["cells"], strict=True)
            wanted = [[str(layer), *(word for word, _ in cells)] for layer, cells in lines]
            page.until(lambda wanted=wanted: page.ask(WORDS) == wanted, "the words")
        chosen = "[...document.querySelectorAll('[role=tab]')].filter(t => t.ariaSelected === 'true').map(t => t.id)"
        assert name == "states" or page.ask(chosen) == [f"tab-{name}"]
        assert all(page.page.locator(f"#tab-{one}").is_visible() for one in TABS), "no tab hides another"


def figure_is(page: Page, id_: str, drawn: dict[str, Any]) -> None:
    """Its numbers, and its size: not cut, and no gap below."""
    names = [trace.get("name") for trace in drawn["data"]]
    if not names:  # a sentence, which plotly breaks into lines
        words = drawn["layout"]["annotations"][0]["text"].split("<br>")[0]
        page.until(lambda: words in (page.ask(f"sotscope.plot('{id_}')?.textContent") or ""), words)
    page.until(lambda: [trace["name"] for trace in page.figure(id_) or []][: len(names)] == names, f"{names}")
    same_figure(page.figure(id_), drawn)
    high = f"sotscope.plot('{id_}').getBoundingClientRect().height"
    page.until(lambda: abs(page.ask(high) - drawn["layout"]["height"]) <= 1, f"{drawn['layout']['height']} pixels")


def test_csv_of_every_panel_is_the_run_s_numbers(opened: Any, folder: Path) -> None:
    page, run = opened("copied", **AT), open_run(folder / "copied.sot")
    page.page.click("#view")
    page.until(lambda: page.figure(), "the page")
    found = {}
    for name in PANELS.names():
        if name in TABS:
            page.page.click(f"#tab-{name}")
        with page.page.expect_download() as caught:
            page.page.click(f".csv[data-panel='{name}']")
        assert caught.value.suggested_filename == f"copied-{name}.csv"
        text = Path(caught.value.path()).read_text(encoding="utf-8")
        assert text == PANELS.get(name)().table(truth(folder, "copied", **AT)).to_csv(index=False)
        found[name] = pd.read_csv(io.StringIO(text))
    np.testing.assert_allclose(found["states"].entropy, run.scalars("entropy"), rtol=1e-5)
    assert found["states"]["mode"].tolist() == run.tokens.modes
    np.testing.assert_allclose(found["candidates"].probability, np.exp(run.top_at(40)[1].astype(np.float64)), rtol=1e-6)
    np.testing.assert_allclose(found["latency"].forward_ms, run.steps.forward_ns / 1e6, rtol=1e-9)
    norms = np.linalg.norm(run.take("head_out", np.array([40]))[0].astype(np.float64), axis=-1)
    np.testing.assert_allclose(found["heads"].norm, norms.ravel(), rtol=1e-5)


def test_png_of_a_figure(opened: Any) -> None:
    page = opened(tab="projection")
    page.page.click("#view")
    page.until(lambda: page.figure("graph-tab"), "the figure")
    for id_ in ("graph-states", "graph-tab"):
        box = page.ask(f"(({{ width, height }}) => [width, height])(sotscope.plot('{id_}').getBoundingClientRect())")
        page.page.locator(f"#{id_}").hover()
        with page.page.expect_download() as caught:
            page.page.click(f"#{id_} [data-title*='Download']")
        image = Image.open(caught.value.path())
        assert image.format == "PNG"
        assert image.size == pytest.approx((2 * box[0], 2 * box[1]), abs=3), "twice as fine as the screen"
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 50, "it is not blank"


def test_a_lasso_in_the_projection_lights_tokens(opened: Any) -> None:
    page = opened(tab="projection")
    page.page.click("#view")
    page.until(lambda: [t["name"] for t in page.figure("graph-tab") or []] == ["rows", "cursor"], "the projection")
    plot = page.page.locator("#graph-tab .nsewdrag").first
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    left, top, wide, high = box["x"] + 3, box["y"] + 3, box["width"] / 2, min(box["height"], 300) - 6
    mouse = page.page.mouse
    mouse.move(left, top)
    mouse.down()
    for x, y in ((wide, 0), (wide, high), (0, high), (0, 0)):
        mouse.move(left + x, top + y, steps=6)
    mouse.up()
    lit = page.until(lambda: page.ask("[...document.querySelectorAll('#text .token.lit')].map(t => +t.dataset.at)"))
    chosen = page.ask("(() => { const t = sotscope.plot('graph-tab')._fullData[0];"
                      " return t.selectedpoints.map((i) => t.customdata[i]); })()")  # fmt: skip
    assert sorted(lit) == sorted(chosen)
    assert 0 < len(lit) < page.answer()["total"]


# -- texts that are not what they seem -----------------------------------------------------------------------------


def test_token_texts_are_shown_as_text_everywhere(opened: Any, folder: Path) -> None:
    page = opened("nasty")
    page.page.click("#view")
    page.until(lambda: page.figure(), "the figure")
    assert page.ask("document.querySelectorAll('#text b, #text .token s, .candidate b, #words b').length") == 0
    texts = page.ask("[...document.querySelectorAll('#text .token')].slice(0, 12).map(t => t.textContent)")
    assert texts == ["<b>x</b>", "<s>", "<U+202E>abc", "<U+001B>[31m", "&amp;", " the", " the", " the", "↵", "<U+200B>",
                     "<|im_end|>", "é"]  # fmt: skip
    everything = page.ask("document.body.textContent + [...document.querySelectorAll('[title]')].map(t => t.title)")
    assert not set("\u202e\x1b\u200b") & set(everything)
    ticks = page.ask("[...document.querySelectorAll('#graph-states .xtick text')].map(t => t.textContent)")
    assert any("<b>x</b>" in text for text in ticks)


def test_c07_repeated_tokens_keep_their_own_columns(opened: Any, folder: Path) -> None:
    page = opened("nasty")
    page.page.click("#view")
    heat = page.until(lambda: page.figure())[0]
    assert np.shape(heat["z"]) == (3, 24)
    norm = open_run(folder / "nasty.sot").scalars("norm").astype(float)
    np.testing.assert_allclose(np.array(heat["z"]), (norm / np.median(norm, 0)).T, rtol=1e-5)
    rows = page.ask("[...document.querySelectorAll('#words th[data-at]')].map(t => +t.dataset.at)")
    assert len(set(rows)) == len(rows)


def test_c34_a_run_without_rows_and_one_that_is_deleted_are_sentences(opened: Any, folder: Path) -> None:
    states = np.zeros((0, 2, 4), np.float32)
    write_run(folder / "empty.sot", {"resid": states}, scalars=scalars_of(states))
    page = opened("empty", tab="layers")
    page.page.click("#view")
    said = "[...document.querySelectorAll('#graph-{} .annotation-text')].map(t => t.textContent).join(' ')"
    page.until(lambda: page.ask(said.format("states")) == "No token yet.", "a sentence in the stack")
    page.until(lambda: page.ask(said.format("tab")) == "No token yet.", "and in the tab")
    shutil.rmtree(folder / "empty.sot")
    banner = page.until(lambda: page.ask("document.getElementById('banner').textContent"), "a word about it")
    assert "moved or deleted" in banner


# -- runs and compare ----------------------------------------------------------------------------------------------


def cells(page: Page, column: str) -> list[str]:
    """Texts of a column of the list of runs, from top to bottom."""
    script = f"""[...document.querySelectorAll('#runs-grid .ag-center-cols-container [role=row]')]
      .sort((a, b) => a.getAttribute('row-index') - b.getAttribute('row-index'))
      .map((row) => row.querySelector('[col-id={column}]').textContent)"""
    return [str(text) for text in page.ask(script)]


def test_the_list_of_runs(opened: Any, folder: Path) -> None:
    page = opened(name="", page="runs")
    entries = {Path(entry["name"]).stem: entry for entry in Library(folder).entries()}
    page.until(lambda: len(cells(page, "name")) == len(entries), "all runs")
    names = cells(page, "name")
    assert sorted(names) == sorted(entries)
    found = {
        column: dict(zip(names, cells(page, column), strict=True)) for column in ("mode", "rows", "bytes", "state")
    }
    for name, entry in entries.items():
        assert found["mode"][name] == entry["mode"]
        assert found["rows"][name] == f"{entry['rows']:,}"
        assert found["bytes"][name] == f"{entry['bytes'] / 1e6:,.1f}"
        assert found["state"][name] == "complete"
    started = pd.to_datetime(cells(page, "started"), format="%Y-%m-%d %H:%M")
    assert started.is_monotonic_decreasing, "a date, the newest first"
    page.page.click("#runs-grid [role=columnheader][col-id=rows]")
    by_rows = sorted(entries, key=lambda name: entries[name]["rows"])
    page.until(lambda: cells(page, "name")[0] == by_rows[0] and cells(page, "name")[-1] == by_rows[-1], "the order")
    page.page.locator("#runs-search").fill("copied")
    page.until(lambda: cells(page, "name") == ["copied"], "what was searched")
    page.page.click("#runs-grid a")
    page.until(lambda: page.ask("window.sotscope?.state?.run") == entries["copied"]["id"], "the run")


def test_deleting_runs_asks_first(opened: Any, folder: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree(folder / "plain.sot", folder / f"{name}.sot")
    page = opened(name="", page="runs")
    page.until(lambda: {"one", "two"} <= set(cells(page, "name")), "the runs")
    assert page.page.locator("#runs-delete").is_disabled()
    row = page.page.locator("#runs-grid [role=row]", has=page.page.get_by_text("one", exact=True))
    row.locator("input[type=checkbox]").check()
    page.page.click("#runs-delete")
    assert "Delete one.sot (" in page.page.locator("#delete-question").inner_text()
    page.page.click("#delete-no")
    page.page.wait_for_timeout(300)
    assert (folder / "one.sot").is_dir()
    page.page.click("#runs-delete")
    page.page.click("#delete-yes")
    page.until(lambda: "one" not in cells(page, "name"), "it to go from the list")
    assert not (folder / "one.sot").exists()
    assert (folder / "two.sot").is_dir()
    shutil.rmtree(folder / "two.sot")
    page.until(lambda: "two" not in cells(page, "name"), "the list to follow what happens elsewhere")


def test_two_runs_are_compared(opened: Any, folder: Path) -> None:
    page = opened(name="", page="runs")
    for name in ("plain", "long"):
        page.until(lambda name=name: name in cells(page, "name"))
        row = page.page.locator("#runs-grid [role=row]", has=page.page.get_by_text(name, exact=True))
        row.locator("input[type=checkbox]").check()
    page.page.click("#runs-compare")
    page.until(lambda: page.page.locator("h1").inner_text() == "Compare", "the page")
    order = page.ask("new URLSearchParams(location.search).get('runs').split(',')")
    library = Library(folder)
    report = compare([library.open(one) for one in order], Threads())
    said = page.ask("[...document.querySelectorAll('.findings li')].map(t => t.textContent)")
    assert said == [f"{found.severity} {found.text}" for found in report.findings]
    heads = page.ask("[...document.querySelectorAll('thead th')].map(t => t.textContent)")
    assert heads == ["", *(library.open(one).path.name for one in order)]
    page.until(lambda: page.ask("document.querySelectorAll('figure .js-plotly-plot .plot-container').length")
               == len(report.figures), "the figures")  # fmt: skip
    traces = page.ask("""[...document.querySelectorAll('figure .js-plotly-plot')].map((p) => p._fullData.map((t) =>
      ({ type: t.type, x: t.x ? Array.from(t.x) : [], y: t.y ? Array.from(t.y) : [],
         z: t.z ? Array.from(t.z, (r) => Array.from(r)) : [] })))""")
    for shown, name in zip(traces, report.figures, strict=True):
        same_figure(shown, json.loads(report.figure(name).to_json()))
    heights = page.ask("[...document.querySelectorAll('figure .js-plotly-plot')].map(p => p.clientHeight)")
    assert min(heights) >= 250


# -- a run that another process writes, and servers that come and go -----------------------------------------------

WRITER = """
import sys, time
from pathlib import Path
import numpy as np
from sotscope.store import writer
from sotscope.testing.runs import write_run
commit = writer.RunWriter.commit
def slowly(self, *given):
    time.sleep(0.03)
    return commit(self, *given)
writer.RunWriter.commit = slowly
states = np.random.default_rng(0).normal(size=(150, 2, 8)).astype(np.float32)
norm = np.linalg.norm(states, axis=2)
of_token = {name: norm[:, 0] for name in ("entropy", "logprob", "margin")}
write_run(Path(sys.argv[1]), {"resid": states}, scalars={"norm": norm, "cosine": norm, "max_abs": norm, **of_token})
"""


def test_a_run_that_another_process_writes_is_followed(opened: Any, folder: Path) -> None:
    path = folder / "followed.sot"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)])
    page = opened(name="", page="runs")
    page.until(lambda: "followed" in cells(page, "name"), "the run in the list", 40)
    page.page.get_by_text("followed", exact=True).click()
    followed = "window.sotscope?.answer?.state === 'recording' && window.sotscope.answer.total > 5"
    page.until(lambda: page.ask(followed), "it to be followed")
    assert page.ask("document.getElementById('when').textContent") == "live"
    first = page.answer()["total"]
    page.until(lambda: page.answer()["total"] > first + 10, "more tokens")
    assert page.ask("sotscope.state.tokens.length") >= page.answer()["total"] > first
    assert writer.wait(60) == 0
    page.until(lambda: page.answer()["state"] == "complete" and page.answer()["total"] == 150, "the end")
    assert page.ask("sotscope.state.tokens.map(t => t.labels)")[:-1] == open_run(path).tokens.labels
    page.until(lambda: len(page.figure()[0]["z"][0]) == 150, "all columns")
    shutil.rmtree(path)


def only_lost(page: Page) -> None:
    """Browsers complain of requests that nobody answers, or that are refused; of nothing else."""
    page.errors[:] = [error for error in page.errors if "Failed to load resource" not in error]


def banner(page: Page) -> str:
    return str(page.ask("(b => b.hidden ? '' : b.textContent)(document.getElementById('banner'))"))


def test_a_page_comes_back_by_itself_when_the_server_does(browser: Any, folder: Path) -> None:
    server = Server(folder, "--model", model_folder(), "--token", TOKEN)
    page = Page(browser, link(server, folder, "long", cursor=50))
    page.until(lambda: page.answer().get("total"), "the run")
    server.kill()
    page.until(lambda: "does not answer" in banner(page), "a word about it")
    assert page.ask("document.querySelectorAll('#text .token').length") > 100, "what was there stays"
    seen = page.ask("sotscope.seen")
    again = Server(folder, "--model", model_folder(), "--token", TOKEN, port=server.port)
    page.until(lambda: not banner(page) and page.ask("sotscope.seen") > seen, "the page to come back", 30)
    assert here(page)["text"] == 50
    page.close()
    again.stop()


def test_a_restart_with_another_token_asks_for_the_new_link(browser: Any, folder: Path) -> None:
    server = Server(folder, "--model", model_folder())
    page = Page(browser, server.link)
    server.kill()
    again = Server(folder, "--model", model_folder(), port=server.port)
    page.until(lambda: "open the link" in banner(page), "what to do", 30)
    other = page.context.new_page()
    other.goto(again.link)
    page.until(lambda: not banner(page), "the page to go on", 30)
    page.close()
    again.stop()


# -- requests ------------------------------------------------------------------------------------------------------


def test_a_hidden_tab_asks_for_nothing(opened: Any) -> None:
    page = opened()
    asked: list[str] = []
    page.ask("Object.defineProperty(document, 'hidden', { configurable: true, get: () => window.away })")
    page.ask("window.away = true")
    page.page.wait_for_timeout(1500)  # the one that is under way ends
    page.page.on("request", lambda request: asked.append(request.url))
    page.page.wait_for_timeout(2000)
    assert asked == []
    page.ask("window.away = false; document.dispatchEvent(new Event('visibilitychange')) && 0")
    page.until(lambda: asked, "it to ask again")


def test_c27_answers_that_are_slow_are_waited_for(opened: Any) -> None:
    page = opened("long")
    page.ask("""(() => {
      const real = window.fetch; window.flying = 0; window.most = 0;
      window.fetch = async (...given) => {
        window.most = Math.max(window.most, ++window.flying);
        try { const found = await real(...given); await new Promise((r) => setTimeout(r, 900)); return found; }
        finally { window.flying--; }
      };
    })()""")
    seen = page.ask("sotscope.seen")
    for at in range(60, 90, 2):
        scrub(page, at)
        page.page.wait_for_timeout(100)
    page.until(lambda: page.answer()["cursor"] == 88 and page.ask("sotscope.seen") > seen + 2, "the last of them")
    assert page.ask("window.most") == 1
    page.until(lambda: set(here(page).values()) - {None} == {88})


# -- looks ---------------------------------------------------------------------------------------------------------


def test_dark_is_dark(opened: Any) -> None:
    colours = """(() => { const of = (s, what) => getComputedStyle(document.querySelector(s))[what];
      return [of('body', 'backgroundColor'), of('.card', 'backgroundColor'), of('body', 'color'),
        of('#graph-states .xtick text', 'fill')]; })()"""
    dark = ["rgb(15, 19, 26)", "rgb(23, 28, 38)", "rgb(231, 234, 240)", "rgb(154, 164, 181)"]
    light = ["rgb(246, 248, 251)", "rgb(255, 255, 255)", "rgb(27, 34, 48)", "rgb(102, 112, 133)"]
    for scheme, first, second in (("dark", dark, light), ("light", light, dark)):
        page = opened(view={"scheme": scheme})
        page.page.click("#view")
        page.until(lambda page=page, first=first: page.figure() and page.ask(colours) == first, f"{scheme} by system")
        page.page.click("#theme")
        page.until(lambda page=page, second=second: page.ask(colours) == second, "the other by button")


PLACES = ["simple", "full", "health", "runs", "compare"]


def place(opened: Any, folder: Path, name: str, **view: Any) -> Any:
    if name == "runs":
        page = opened(name="", page="runs", view=view)
        page.until(lambda: cells(page, "name"), "the list")
    elif name == "compare":
        ids = ",".join(Library(folder).id_of(folder / f"{run}.sot") for run in ("plain", "long"))
        page = opened(name="", page="compare", view=view, runs=ids)
        page.until(lambda: page.page.locator("figure .main-svg").count(), "figures")
    elif name == "health":
        page = opened("ill", tab="interventions", view=view)
        page.page.click("#view")
        page.until(lambda: page.page.locator("details.retracted").count(), "what was taken back")
        page.page.locator("details.retracted").first.evaluate("one => { one.open = true; }")
        page.until(lambda: page.page.locator("#interventions-list li").count(), "the interventions")
    else:
        page = opened("copied", view=view, refused=1)
        if name == "full":
            page.page.click("#view")
            page.until(lambda: page.figure(), "figures")
        page.until(lambda: page.page.locator("#words td").count(), "words")
    return page


@pytest.mark.parametrize("name", PLACES)
def test_at_900_pixels_nothing_is_wider_than_the_page(name: str, opened: Any, folder: Path) -> None:
    page = place(opened, folder, name, width=900)
    assert page.ask("document.documentElement.scrollWidth") <= 900


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PLACES)
def test_axe_finds_nothing_serious(name: str, scheme: str, opened: Any, folder: Path) -> None:
    page = place(opened, folder, name, scheme=scheme)
    found = Axe().run(page.page).response["violations"]
    grave = [
        (one["id"], [node["target"] for node in one["nodes"]][:4], one["nodes"][0]["failureSummary"])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
    assert grave == []


def test_the_keyboard_reaches_every_tab(opened: Any) -> None:
    page = opened()
    page.page.click("#view")
    page.page.locator("#tab-words").focus()
    for name in [*TABS[1:], TABS[0]]:
        page.page.keyboard.press("ArrowRight")
        assert page.ask("document.activeElement.id") == f"tab-{name}"
        assert page.page.locator(f"#tab-{name}").get_attribute("aria-selected") == "true"
    width = page.ask("getComputedStyle(document.activeElement).outlineWidth")
    assert width == "2px"
