"""The tab panels: pure functions of a scene that draw the run's own numbers, and odd data as a sentence."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from numpy.typing import NDArray
from store_helpers import Source, make_spec, piece_of, rows_at

from sotscope.analysis.run import analyze
from sotscope.events import Branch, Draft, Piece, Step
from sotscope.store.layout import RunSpec
from sotscope.store.reader import Run, open_run
from sotscope.store.writer import RunWriter
from sotscope.testing.runs import write_run
from sotscope_dashboards.look import Look
from sotscope_dashboards.panels.contract import Panel
from sotscope_dashboards.panels.dimensions import ROWS, Dimensions, sampled
from sotscope_dashboards.panels.drafts import Drafts
from sotscope_dashboards.panels.events import NEWEST, Events
from sotscope_dashboards.panels.heads import Heads
from sotscope_dashboards.panels.latency import BARS, Latency
from sotscope_dashboards.panels.layers import Layers
from sotscope_dashboards.panels.projection import POINTS, Projection
from sotscope_dashboards.scene import Scene

PANELS: list[type[Any]] = [Layers, Drafts, Heads, Latency, Events, Dimensions, Projection]
FIGURES = [panel for panel in PANELS if panel.kind == "figure"]
RNG = np.random.default_rng(3)
STATES = RNG.normal(size=(12, 3, 8)).astype(np.float32)
Drawn = dict[str, Any]


def read(spec: Any) -> NDArray[Any]:
    """What plotly.js makes of a typed array."""
    if isinstance(spec, list):
        return np.array(spec)
    values = np.frombuffer(base64.b64decode(spec["bdata"]), "<" + spec["dtype"])
    return values.reshape([int(n) for n in spec["shape"].split(",")]) if "shape" in spec else values


def texts(drawn: Drawn) -> str:
    """All sentences of a figure or a grid."""
    if "rows" in drawn:
        return str(drawn["note"])
    return " ".join(note["text"].replace("<br>", " ") for note in drawn["layout"].get("annotations", []))


def strict(panel: type[Any], scene: Scene) -> Drawn:
    """What the panel draws, once its JSON was found to be strict and its figure to be plotly's."""
    drawn: Drawn = panel().draw(scene)
    json.loads(json.dumps(drawn, allow_nan=False))
    if panel.kind == "figure":
        go.Figure(drawn)
    else:
        assert set(drawn) == {"columns", "rows", "note"}
        assert {column["field"] for column in drawn["columns"]} <= {"alarm", *(drawn["rows"] or [{}])[0]} or not drawn[
            "rows"
        ]
    return drawn


def traces(drawn: Drawn, name: str) -> list[Drawn]:
    return [trace for trace in drawn["data"] if trace["name"] == name]


def scene_of(run: Run, **look: Any) -> Scene:
    return Scene(Look(**look), run)


def with_scalars(states: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """The scalars of each layer and head that a recording has."""
    with np.errstate(all="ignore"):
        size = np.abs(states.astype(np.float32))
        norm = np.sqrt((size**2).sum(-1))
        return {
            "norm": norm, "max_abs": size.max(-1, initial=0), "cosine": norm * 0 + 0.5,
            "head_norm": np.stack([norm, 2 * norm], -1),
        }  # fmt: skip


def drafts_at(count: int) -> dict[int, list[Draft]]:
    return {row: [Draft(0, row + 1, 5, 0.5, 1.0, "accepted", np.nan)] for row in range(1, count, 2)}


def odd(states: NDArray[Any], dtype: str = "float32", **more: Any) -> Callable[[Path], Scene]:
    def make(path: Path) -> Scene:
        run = write_run(
            path / "odd.sot", {"resid": states}, dtype=dtype, scalars=with_scalars(states),
            drafts=drafts_at(len(states)), **more,
        )  # fmt: skip
        return scene_of(run)

    return make


def mixed() -> NDArray[np.float16]:
    states = STATES.astype(np.float16)
    states[2, 1, 3], states[4], states[5, 0, 0] = np.nan, np.inf, -np.inf
    return states


def deleted(path: Path) -> Scene:
    scene = odd(STATES)(path)
    shutil.rmtree(path / "odd.sot")
    return scene


def bare(path: Path) -> Scene:
    """Without a scalar, a draft or a head; one site without layers."""
    return scene_of(write_run(path / "odd.sot", {"final": STATES[:, 0]}))


ODD: dict[str, Callable[[Path], Scene]] = {
    "no run": lambda path: Scene(Look()),
    "0 rows": odd(STATES[:0]),
    "1 row": odd(STATES[:1]),
    "2 rows": odd(STATES[:2]),
    "3 rows": odd(STATES[:3]),
    "all NaN": odd(np.full((12, 3, 8), np.nan, np.float16), "float16"),
    "NaN and Inf": odd(mixed(), "float16"),
    "all the same": odd(np.ones((12, 3, 8), np.float32)),
    "zeros": odd(np.zeros((12, 3, 8), np.float32)),
    "huge": odd(STATES * np.float32(1e37)),
    "bfloat16": odd(STATES, "bfloat16"),
    "one dimension": odd(STATES[:, :, :1]),
    "repeated tokens": odd(STATES, ids=[1] * 12, words={1: "<b>\u202e & \x07"}),
    "deleted": deleted,
    "bare": bare,
    "an empty range": lambda path: Scene(Look(start=9, stop=4), odd(STATES)(path).run),
    "beyond the end": lambda path: Scene(Look(start=90, stop=99, cursor=99, layer=77), odd(STATES)(path).run),
    "no such sequence": lambda path: Scene(Look(seq=7), branched(path).run),
    "a long name": lambda path: Scene(Look(), why="<b>bold</b> " * 40),
}


def branched(path: Path) -> Scene:
    with RunWriter(path / "odd.sot", make_spec(), piece_of=piece_of) as writer:
        writer.sequence(Branch(0, 2))
        Source(writer).step(4)
        writer.sequence(Branch(1, 3, parent=0, parent_pos=2))
    return scene_of(open_run(path / "odd.sot"))


# -- the contract ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ODD)
def test_c34_odd_data_is_a_valid_picture(case: str, tmp_path: Path) -> None:
    scene = ODD[case](tmp_path)
    for panel in PANELS:
        for theme in ("light", "dark"):
            drawn = strict(panel, Scene(scene.look.model_copy(update={"theme": theme}), scene.run, scene.why))
            assert texts(drawn) or drawn.get("data") or drawn.get("rows"), (panel, case)
            assert "<b>" not in texts(drawn) or panel.kind == "grid", (panel, case)
            assert not drawn.get("data") or "nan" not in texts(drawn).lower().replace("nan or inf", ""), (panel, case)
        table = panel().table(scene)
        assert len(table.columns) > 2, (panel, case)
        if not drawn.get("data") and not drawn.get("rows"):
            assert not len(table) or panel is Latency, (panel, case)  # of a prefill there are numbers, but no bars


def test_c34_a_run_that_is_being_written_is_drawn_as_it_grows(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "live.sot", make_spec(), piece_of=piece_of) as writer:
        writer.sequence(Branch(0, 5))
        source = Source(writer)
        run = open_run(tmp_path / "live.sot", live=True)
        assert {texts(strict(panel, scene_of(run))) for panel in FIGURES} == {"No token yet."}
        for _ in range(6):
            source.step(3, drafts=2)
        writer.flush()
        run.refresh()
        for panel in PANELS:
            strict(panel, scene_of(run))
        assert len(traces(strict(Projection, scene_of(run)), "rows")) == 1
        assert Events().table(scene_of(run)).what.tolist() == ["sequence 0 begins with a prompt of 5 tokens"]


@pytest.mark.parametrize("panel", PANELS)
def test_each_panel_says_what_it_is(panel: type[Any]) -> None:
    assert issubclass(panel, Panel)
    for text in (panel.shows, panel.look_for, panel.not_meant):
        assert len(text) > 40
        assert text.endswith(".")
        assert text[0].isupper()
    assert panel.title
    assert panel.by_cursor == (panel in (Layers, Heads, Projection))


def test_the_same_scene_is_drawn_the_same(tmp_path: Path) -> None:
    scene = odd(STATES)(tmp_path)
    for panel in PANELS:
        assert panel().draw(scene) == panel().draw(scene_of(open_run(tmp_path / "odd.sot")))


def test_c07_repeated_tokens_stay_apart_and_are_shown_as_text(tmp_path: Path) -> None:
    words = dict(enumerate(["the", "cat", "the", " 1", "1", "2024-01-01", "<b>", "the"]))
    run = write_run(tmp_path / "a.sot", {"resid": STATES[:8]}, words=words)
    points = traces(strict(Projection, scene_of(run)), "rows")[0]
    assert read(points["customdata"]).tolist() == [*range(8)]
    assert points["hovertext"] == [
        "row 0 “the”", "row 1 “cat”", "row 2 “the”", "row 3 “␣1”", "row 4 “1”", "row 5 “2024-01-01”",
        "row 6 “&lt;b&gt;”", "row 7 “the”",
    ]  # fmt: skip
    assert read(points["x"]).dtype == np.float32
    assert Projection().table(scene_of(run)).position.tolist() == [*range(8)]


def test_c37_what_is_not_finite_is_blank_and_counted(tmp_path: Path) -> None:
    scene = odd(mixed(), "float16")(tmp_path)
    # rows 2, 4, 5: the layer is 1, which row 5 has intact
    assert "2 rows not drawn: NaN or infinity" in texts(strict(Projection, scene))
    assert "Left out: rows 2, 4 (NaN or infinity)" in texts(strict(Dimensions, scene))
    at_2 = scene_of(scene.run, cursor=2)  # type: ignore[arg-type]
    assert "No norm, max_abs, cosine of this row in layers 1:" in texts(strict(Layers, at_2))
    heads = strict(Heads, at_2)
    assert "2 of 6 cells are blank" in texts(heads)
    assert np.isnan(read(heads["data"][0]["z"])[:, 1]).all()
    assert heads["data"][0]["zmax"] == pytest.approx(200 / 3)


# -- layers ---------------------------------------------------------------------------------------------------------


def test_layers_show_the_scalars_at_the_cursor_over_the_band_of_the_view(tmp_path: Path) -> None:
    norm = RNG.uniform(1, 2, (12, 3)).astype(np.float32)
    run = write_run(tmp_path / "a.sot", {"resid": STATES}, scalars={"norm": norm, "cosine": norm / 4})
    scene = scene_of(run, cursor=7, start=2, stop=11)
    drawn = strict(Layers, scene)
    line, _ = traces(drawn, "row 7")
    assert read(line["x"]).tolist() == [0, 1, 2]
    np.testing.assert_array_equal(read(line["y"]), norm[7])
    for name, level in (("p5", 5), ("median", 50), ("p95", 95)):
        np.testing.assert_allclose(
            read(traces(drawn, name)[0]["y"]), np.percentile(norm[2:11], level, axis=0), rtol=1e-6
        )
    assert "row 7 “␣7”" in texts(drawn)
    assert "rows 2–10" in texts(drawn)
    table = Layers().table(scene)
    np.testing.assert_array_equal(table.cosine, norm[7] / 4)
    np.testing.assert_allclose(table.norm_p95, np.percentile(norm[2:11], 95, axis=0))
    assert table.token.unique().tolist() == ["␣7"]


def test_layers_take_a_log_axis_only_where_it_hides_nothing(tmp_path: Path) -> None:
    norm = np.tile([1.0, 40.0, 900.0], (12, 1)).astype(np.float32)
    run = write_run(tmp_path / "a.sot", {"resid": STATES}, scalars={"norm": norm, "max_abs": norm - 1})
    drawn = strict(Layers, scene_of(run))["layout"]
    assert drawn["yaxis"]["type"] == "log"
    assert drawn["yaxis"]["ticktext"][:4] == ["1", "2", "5", "10"]
    assert drawn["yaxis"]["title"]["text"] == "L2 norm (log)"
    assert drawn["yaxis2"].get("type") != "log"  # a zero would be lost


# -- drafts ---------------------------------------------------------------------------------------------------------

TRIED = {
    3: [
        Draft(0, 4, 1, 0.5, 1.0, "accepted", 0.9), Draft(1, 5, 2, 0.5, 1.0, "later_slot_miss", 0.5),
        Draft(2, 6, 3, 0.5, 1.0, "after_miss"),
    ],
    5: [Draft(0, 6, 1, 0.5, 1.0, "outside_vocabulary", 0.1), Draft(1, 7, 1, 0.5, 1.0, "after_miss")],
    9: [Draft(0, 10, 1, 0.5, 1.0, "accepted", 0.7)],
}  # fmt: skip


def test_drafts_count_acceptance_by_slot_reasons_and_cosines(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a.sot", {"resid": STATES}, drafts=TRIED, prompt=2)
    drawn = strict(Drafts, scene_of(run))
    slots, reasons, cosines = drawn["data"]
    assert read(slots["x"]).tolist() == [0, 1]
    np.testing.assert_allclose(read(slots["y"]), [200 / 3, 0])
    assert slots["text"] == ["2/3", "0/1"]
    assert drawn["layout"]["yaxis2"]["ticktext"] == [
        "accepted", "wrong in a later slot", "true token unknown to drafter", "after a miss, not looked at",
    ]  # fmt: skip
    assert read(reasons["x"]).tolist() == [2, 1, 1, 2]
    np.testing.assert_allclose(read(cosines["y"]), [0.7, 0.5])
    assert "2 of 6 drafts accepted (33%) in 3 of 11 steps in view" in texts(drawn)
    assert "1.67 tokens" in texts(drawn)
    assert "slot 2: 1 draft there, none looked at" in texts(drawn)
    table = Drafts().table(scene_of(run))
    assert table.drafted.tolist() == [3, 2, 1, 2, 1, 1, 2]
    np.testing.assert_allclose(table.per_position_acceptance_rate[:3], [2 / 3, 0, 0])


def test_drafts_are_those_of_steps_in_view(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a.sot", {"resid": STATES}, drafts=TRIED, prompt=2)
    drawn = strict(Drafts, scene_of(run, start=4, stop=8))
    assert drawn["data"][0]["text"] == ["0/1"]
    assert "0 of 2 drafts accepted (0%) in 1 of 4 steps" in texts(drawn)


def test_a_view_without_drafts_says_what_that_means(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a.sot", {"resid": STATES}, prompt=6)
    assert "mode ar writes one token a forward" in texts(strict(Drafts, scene_of(run)))
    assert "Only the prompt is in view" in texts(strict(Drafts, scene_of(run, start=0, stop=3)))
    assert "drafted" in Drafts().table(scene_of(run)).columns


# -- heads ----------------------------------------------------------------------------------------------------------


def test_heads_are_shares_of_their_layer(tmp_path: Path) -> None:
    norm = RNG.uniform(1, 2, (12, 3, 4)).astype(np.float32)
    run = write_run(tmp_path / "a.sot", {"resid": STATES}, scalars={"head_norm": norm})
    scene = scene_of(run, cursor=5)
    drawn = strict(Heads, scene)
    share = norm[5] / norm[5].sum(1, keepdims=True)
    np.testing.assert_allclose(read(drawn["data"][0]["z"]), 100 * share.T, rtol=1e-6)
    layer, head = np.unravel_index(share.argmax(), share.shape)
    assert f"Largest: head {head} of layer {layer} with {share.max():.0%}" in texts(drawn)
    assert "even: 25.0%" in texts(drawn)
    table = Heads().table(scene)
    np.testing.assert_allclose(table.set_index(["layer", "head"]).share.loc[(2, 1)], share[2, 1], rtol=1e-6)


def test_heads_come_from_their_states_or_name_the_flag(tmp_path: Path) -> None:
    heads = RNG.normal(size=(6, 2, 3, 4)).astype(np.float32)
    run = write_run(tmp_path / "a.sot", {"head_out": heads})
    norm = np.linalg.norm(heads[5], axis=-1)
    found = read(strict(Heads, scene_of(run))["data"][0]["z"])
    np.testing.assert_allclose(found, 100 * (norm / norm.sum(1, keepdims=True)).T, rtol=1e-5)
    without = write_run(tmp_path / "b.sot", {"resid": STATES})
    assert "--sites head_out" in texts(strict(Heads, scene_of(without)))


def test_c35_many_heads_and_steps_and_points_are_few_and_the_outlier_stays(tmp_path: Path) -> None:
    count = 4100
    norm = np.ones((count, 1, 130), np.float32)
    norm[-1, 0, 77] = 50
    times = np.full(count, 1_000_000)
    times[2000] = 77_000_000
    states = RNG.normal(size=(count, 1, 4)).astype(np.float32)
    run = write_run(tmp_path / "a.sot", {"resid": states}, scalars={"head_norm": norm}, step_ns=times.tolist())
    scene = scene_of(run, start=0, stop=count, cursor=count - 1)
    heads = strict(Heads, scene)
    cells = read(heads["data"][0]["z"])
    assert cells.shape == (44, 1)
    assert cells.max() == pytest.approx(100 * 50 / 179)
    assert "Neighbouring heads or layers share a cell, which shows the largest" in texts(heads)
    latency = strict(Latency, scene)
    forward = read(traces(latency, "forward")[0]["y"])
    assert len(forward) <= BARS
    assert forward.max() == 77
    assert "Each bar is the slowest of 9 steps" in texts(latency)
    projection = strict(Projection, scene)
    assert len(read(traces(projection, "rows")[0]["x"])) == POINTS
    assert "4,000 of the 4,100 rows in view" in texts(projection)
    assert traces(projection, "cursor")
    dimensions = strict(Dimensions, scene)
    assert "1,024 of 4,100 rows in view (pairs of neighbours, evenly spread)" in texts(dimensions)
    for drawn in (heads, latency, projection, dimensions, strict(Layers, scene)):
        assert len(json.dumps(drawn)) < 1_000_000


# -- latency --------------------------------------------------------------------------------------------------------


def test_latency_stacks_the_parts_of_the_steps_in_view(tmp_path: Path) -> None:
    times = np.arange(1, 13) * 1_000_000
    run = write_run(tmp_path / "a.sot", {"resid": STATES}, prompt=3, step_ns=times.tolist())
    drawn = strict(Latency, scene_of(run))
    # rows 0 and 1 are the prompt's; its last one is the first that decodes
    np.testing.assert_allclose(read(traces(drawn, "forward")[0]["y"]), np.arange(3, 13))
    assert read(traces(drawn, "forward")[0]["x"]).tolist() == [*range(2, 12)]
    assert read(traces(drawn, "draft")[0]["y"]).tolist() == [0] * 10
    for name, level in (("p50", 50), ("p95", 95), ("p99", 99)):
        value = np.percentile(np.arange(3, 13), level)
        assert traces(drawn, name)[0]["y"] == [pytest.approx(value)] * 2
        assert f"{name} {value:.4g} ms" in texts(drawn)
    assert "the prefill of 2 tokens, 3 ms" in texts(drawn)
    assert "Memory was not recorded" in texts(drawn)
    part = strict(Latency, scene_of(run, start=6, stop=9))
    np.testing.assert_allclose(read(traces(part, "forward")[0]["y"]), [7, 8, 9])
    assert Latency().table(scene_of(run, start=6, stop=9)).total_ms.tolist() == [7, 8, 9]
    assert "the prefill of 2 tokens" in texts(strict(Latency, scene_of(run, start=0, stop=2)))


def test_latency_draws_memory_in_mb(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "a.sot", make_spec(), piece_of=piece_of) as writer:
        writer.sequence(Branch(0, 1))
        for row in range(4):
            step = Step(row, 0, "ar", row, (1,), (2,), draft_ns=500_000, forward_ns=2_000_000, accept_ns=250_000)
            writer.commit(
                step, rows_at(writer.spec, np.array([row])), capture_ns=100_000 * row, rss=(900 + row) * 10**6,
                device_bytes=row * 10**6,
            )  # fmt: skip
    drawn = strict(Latency, scene_of(open_run(tmp_path / "a.sot")))
    assert read(traces(drawn, "memory of the process")[0]["y"]).tolist() == [900, 901, 902, 903]
    assert read(traces(drawn, "memory of the device")[0]["y"]).tolist() == [0, 1, 2, 3]
    for name, values in {"draft": [0.5] * 4, "accept": [0.25] * 4, "capture": [0, 0.1, 0.2, 0.3]}.items():
        np.testing.assert_allclose(read(traces(drawn, name)[0]["y"]), values, rtol=1e-6)
    assert read(traces(drawn, "forward")[0]["customdata"])[3].tolist() == pytest.approx([3, 3.05])
    assert "900 MB at first, 903 MB at last" in texts(drawn)


# -- events ---------------------------------------------------------------------------------------------------------


def told(path: Path) -> Run:
    spec = RunSpec(sites=(), scalars=(), layers=())
    with RunWriter(path, spec, piece_of=lambda token: Piece(token, "", b"")) as writer:
        writer.sequence(Branch(0, 4))
        writer.event(
            "config", settings={"decode": {"mode": "sot"}, "model": {"name": "tiny"}}, policy="typical", lossy=True,
            warnings=["the cache cannot be cropped"],
        )  # fmt: skip
        writer.event("command", id=3, changes={"mode": "lookup", "window": 4}, step=2, pos=17)
        writer.event("alarm", alarm="repetition", message="<b>period 5\u202e", onset=21, period=5)
        writer.sequence(Branch(0, 4, finish="branched"))
        writer.sequence(Branch(1, 9, parent=0, parent_pos=8))
        writer.event("branch", seq=1, parent=0, pos=8, token=12)
        writer.event("news", odd=float("nan"), more=[1, 2])
        writer.sequence(Branch(1, 9, parent=0, parent_pos=8, finish="max_new_tokens"))
        writer.event("outcome", finish_reason="max_new_tokens", new_tokens=7, tokens_per_second=20.5, detail="")
    return open_run(path)


def test_events_say_in_words_what_happened(tmp_path: Path) -> None:
    drawn = strict(Events, scene_of(told(tmp_path / "a.sot")))
    assert [(line["kind"], line["position"], line["what"]) for line in drawn["rows"]] == [
        ("config", None, "recording starts: mode sot, model tiny, policy typical (lossy)"),
        ("warning", None, "the cache cannot be cropped"),
        ("command", 17, "mode is now lookup; window is now 4"),
        ("ALARM", 21, "repetition: <b>period 5<U+202E> (period 5)"),
        ("branch", 8, "sequence 1 continues sequence 0 from position 8 with token id 12"),
        ("news", None, "odd null, more [1, 2]"),
        ("sequence", 0, "sequence 0 begins with a prompt of 4 tokens, ended: branched"),
        ("sequence", 8, "sequence 1 ended: max new tokens"),
        ("outcome", None, "finish max_new_tokens, new tokens 7, tokens/s 20.5"),
    ]
    assert [line["alarm"] for line in drawn["rows"]].count(True) == 1
    assert drawn["note"] == "9 events, 1 alarm."
    times = [line["after_s"] for line in drawn["rows"] if line["after_s"] is not None]
    assert times[0] == 0
    assert times == sorted(times)
    assert Events().table(scene_of(told(tmp_path / "b.sot"))).what.iloc[3] == "repetition: <b>period 5\u202e (period 5)"


def test_events_that_are_many_or_broken_are_listed_as_far_as_they_go(tmp_path: Path) -> None:
    run = told(tmp_path / "a.sot")
    events = tmp_path / "a.sot" / "events.jsonl"
    kept = run.events()
    many = [{"kind": "alarm", "time": None, "position": True, "message": "x" * 999}] * (NEWEST + 1)
    run.events = lambda kind=None: [*kept, {}, {"kind": 7, "settings": 3}, *many]  # type: ignore[method-assign]
    drawn = strict(Events, scene_of(run))
    assert len(drawn["rows"]) == NEWEST
    assert "the newest 1,000 are listed, all are in the CSV" in drawn["note"]
    assert "… (all of it in the CSV)" in drawn["rows"][-1]["what"]
    assert len(Events().table(scene_of(run))) > NEWEST
    del run.events
    events.unlink()
    assert "cannot be read" in strict(Events, scene_of(run))["note"]


# -- dimensions -----------------------------------------------------------------------------------------------------


def test_dimensions_are_those_that_analyze_finds(tmp_path: Path) -> None:
    states = (RNG.normal(size=(60, 3, 80)) * np.exp(RNG.normal(size=80))).astype(np.float32)
    states[0] *= 1000  # a sink
    states[:, :, 7] += 500  # an outlier that does not vary more
    states[:, :, 9] = 2.5
    run = write_run(tmp_path / "a.sot", {"resid": states})
    scene = scene_of(run, layer=1)
    table = Dimensions().table(scene).set_index("dim")
    truth = analyze("dims", run).tables["by_dim"].sel(layer=1).to_dataframe()  # type: ignore[operator]
    assert table.index.tolist() == truth.variance.sort_values(ascending=False).index[:50].tolist()
    for column, factor in (("variance", 1), ("share", 100), ("entropy", 1), ("stability", 1)):
        np.testing.assert_allclose(table[column], factor * truth.loc[table.index, column], rtol=1e-6, atol=1e-9)
    drawn = strict(Dimensions, scene)
    first = drawn["rows"][0]
    assert first["variance"] == float(f"{table.variance.iloc[0]:.4g}")
    assert len(first["trend"]) == 48
    values = states[1:, 1, first["dim"]]
    assert first["trend"][0] in [float(f"{value:.4g}") for value in values[:2]]
    assert max(first["trend"]) == float(f"{values.max():.4g}")
    assert "Left out: row 0 (norm far above the others', a sink)" in drawn["note"]
    assert "1 dimension never changes" in drawn["note"]
    assert "7 (outlier)" in drawn["note"] or {"dim": 7, "outlier": "outlier"}.items() <= next(
        row.items() for row in drawn["rows"] if row["dim"] == 7
    )
    assert "resid of layer 1, rows 0–59: the 50 of 80 dimensions" in drawn["note"]


def test_dimensions_know_where_a_sink_is_large(tmp_path: Path) -> None:
    states = RNG.normal(size=(30, 1, 6)).astype(np.float32)
    states[0, 0, 4] = 3000
    rows = strict(Dimensions, scene_of(write_run(tmp_path / "a.sot", {"resid": states})))["rows"]
    assert {row["dim"]: row["outlier"] for row in rows} == {0: "", 1: "", 2: "", 3: "", 4: "in sinks only", 5: ""}


def test_rows_of_a_long_view_are_pairs_of_neighbours() -> None:
    assert sampled(ROWS).tolist() == [*range(ROWS)]
    found = sampled(20_000)
    assert (len(found), found[0], found[-1]) == (ROWS, 0, 19_999)
    assert (np.diff(found) == 1).sum() >= ROWS // 2
    assert len(sampled(ROWS + 1)) <= ROWS


def test_dimensions_of_heads_and_of_a_site_without_layers(tmp_path: Path) -> None:
    heads = RNG.normal(size=(9, 2, 3, 4)).astype(np.float32)
    drawn = strict(Dimensions, scene_of(write_run(tmp_path / "a.sot", {"head_out": heads}), layer=1))
    flat = heads[:, 1].reshape(9, 12)
    assert [row["dim"] for row in drawn["rows"]] == np.argsort(-flat.var(0)).tolist()
    assert "head_out of layer 1" in drawn["note"]
    drawn = strict(Dimensions, scene_of(write_run(tmp_path / "b.sot", {"final": STATES[:, 0]})))
    assert drawn["note"].startswith("final, rows 0–11: 8 dimensions, with 100 % of the variance")


# -- projection -----------------------------------------------------------------------------------------------------


def plane(count: int) -> NDArray[np.float32]:
    """States in a plane: a projection keeps all distances."""
    flat = np.random.default_rng(5).normal(size=(count, 2)) * [4, 1]
    axes = np.linalg.qr(np.random.default_rng(6).normal(size=(20, 2)))[0]
    states: NDArray[np.float32] = (flat @ axes.T + 3)[:, None].astype(np.float32)
    return states


def points_of(drawn: Drawn) -> NDArray[Any]:
    rows = traces(drawn, "rows")[0]
    return np.stack([read(rows["x"]), read(rows["y"])], 1)


def test_projection_keeps_the_distances_of_a_plane(tmp_path: Path) -> None:
    states = plane(99)
    run = write_run(tmp_path / "a.sot", {"resid": states})
    scene = scene_of(run, cursor=60, start=40, stop=90)
    drawn = strict(Projection, scene)
    points = points_of(drawn)
    assert len(points) == 50
    truth = states[40:90, 0]
    np.testing.assert_allclose(
        np.linalg.norm(points[:, None] - points, axis=-1), np.linalg.norm(truth[:, None] - truth, axis=-1), atol=1e-4
    )
    assert "PCA of 64 of the first 64 rows" in texts(drawn)
    assert "100% of the variance" in texts(drawn)
    assert drawn["layout"]["meta"] == {"basis": 64}
    cursor = traces(drawn, "cursor")[0]
    assert [cursor["x"][0], cursor["y"][0]] == pytest.approx(points[20].tolist(), rel=1e-5)
    assert "row 60" in texts(drawn)
    table = Projection().table(scene)
    np.testing.assert_allclose(table[["x", "y"]], points, rtol=1e-5)
    assert table.position.tolist() == [*range(40, 90)]


def test_the_axes_stay_while_the_run_grows(tmp_path: Path) -> None:
    states = (RNG.normal(size=(120, 1, 20)) * np.linspace(3, 1, 20)).astype(np.float32)
    short = scene_of(write_run(tmp_path / "a.sot", {"resid": states[:70]}))
    long = scene_of(write_run(tmp_path / "b.sot", {"resid": states}))
    np.testing.assert_array_equal(points_of(strict(Projection, short)), points_of(strict(Projection, long))[:70])
    fixed = strict(Projection, scene_of(write_run(tmp_path / "c.sot", {"resid": states[:40]})))
    assert "of the first 32 rows" in texts(fixed)
    centred = states[:32, 0].astype(np.float64) - states[:32, 0].mean(0, dtype=np.float64)
    sizes = np.linalg.svd(centred, compute_uv=False) ** 2
    assert f"component 1 ({sizes[0] / sizes.sum():.1%} of the variance)" in fixed["layout"]["xaxis"]["title"]["text"]


def test_axes_are_fitted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "a.sot", {"resid": STATES})
    memo: dict[Any, Any] = {}
    first = Projection().draw(Scene(Look(), run, memo=memo))
    monkeypatch.setattr("sotscope_dashboards.panels.projection.fit", None)
    assert Projection().draw(Scene(Look(), run, memo=memo)) == first


def test_a_sink_moves_neither_the_axes_nor_the_frame(tmp_path: Path) -> None:
    states = plane(40)
    states[0, 0] += 1e4 * np.random.default_rng(1).normal(size=20)
    drawn = strict(Projection, scene_of(write_run(tmp_path / "a.sot", {"resid": states})))
    points = points_of(drawn)
    low, high = drawn["layout"]["xaxis"]["range"]
    inside = (points[:, 0] > low) & (points[:, 0] < high)
    assert inside[1:].all()
    assert "PCA of 31 of the first 32 rows" in texts(drawn)
    assert "Outside the frame: row 0 (sinks" in texts(drawn)


@pytest.mark.parametrize("rows", [1, 2])
def test_too_few_rows_are_a_sentence(rows: int, tmp_path: Path) -> None:
    drawn = strict(Projection, scene_of(write_run(tmp_path / "a.sot", {"resid": STATES[:rows]})))
    assert not drawn["data"]
    assert "A projection needs three rows" in texts(drawn)
    assert len(points_of(strict(Projection, scene_of(write_run(tmp_path / "b.sot", {"resid": STATES[:3]}))))) == 3
