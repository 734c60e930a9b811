"""open_run: following a run that another process writes, and what it gives of a finished one."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import store_helpers as helpers

from sotscope.errors import StoreError
from sotscope.events import Branch
from sotscope.store import lock
from sotscope.store.journal import JournalReader
from sotscope.store.layout import JOURNAL
from sotscope.store.reader import open_run


def test_a_live_handle_follows_another_process_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.sot"
    with helpers.writer_process(path, steps=300, pause=0.001) as writer:
        helpers.wait_until((path / JOURNAL).exists)
        live, published = open_run(path, live=True), open_run(path)
        ahead = 0
        while live.refresh() or len(live.steps) < 300:
            rows, before = len(live), len(published)
            published.refresh()
            journal = JournalReader(path / JOURNAL)
            journal.advance()
            assert rows <= len(journal.rows)  # never beyond the last commit
            assert rows in {commit.rows for commit in journal.commits} | {0}
            assert before <= len(published) <= len(journal.rows)
            ahead += rows > len(published)
            helpers.check_run(live, rows)
            helpers.check_run(published, len(published))
            assert live.recording
            assert not live.complete
        assert ahead > 0
        assert writer.stdin is not None
        print(file=writer.stdin, flush=True)
        helpers.wait_until(lambda: [run.refresh() for run in (live, published)] == [0, 0] and live.complete)
    for run in (live, published):
        run.refresh()
        assert (run.complete, run.recording) == (True, False)
        assert list(run.sequences["finish"]) == ["eos"]
        helpers.check_run(run, int(run.steps["rows"].sum()))
        assert len(run.steps) == 300


def test_published_view_shows_nothing_beyond_the_published_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sotscope.store.writer.PUBLISH_EVERY_S", 1e6)
    with helpers.RunWriter(tmp_path / "a.sot", helpers.make_spec(), piece_of=helpers.piece_of) as writer:
        source = helpers.Source(writer)
        source.step(3, drafts=2)
        writer.publish()
        source.step(2, drafts=4)
        writer.event("note")
        writer.flush()
        run, live = open_run(tmp_path / "a.sot"), open_run(tmp_path / "a.sot", live=True)
        assert (len(run), len(run.steps), len(run.drafts), run.events()) == (3, 1, 2, [])
        assert (run.info()["steps"], run.info()["drafts"]) == (1, 2)
        assert run.to_xarray().sizes["token"] == 3
        helpers.check_run(run, 3)
        assert (len(live), len(live.steps), len(live.drafts), len(live.events("note"))) == (5, 2, 6, 1)
    assert run.refresh() == 2
    assert len(run.events("note")) == 1


def test_readers_do_not_take_each_other_for_a_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = helpers.make_run(tmp_path / "a.sot") / JOURNAL
    seen: list[bool] = []
    unlock = lock.unlock

    def look_too(handle: int) -> None:
        if not seen:
            seen.append(True)
            seen.append(lock.is_held(journal))  # a second reader looks while the first one does
        unlock(handle)

    monkeypatch.setattr(lock, "unlock", look_too)
    assert not lock.is_held(journal)
    assert seen == [True, False]


def test_one_handle_refreshed_by_many_threads_counts_every_row_once(tmp_path: Path) -> None:
    with helpers.RunWriter(tmp_path / "a.sot", helpers.make_spec(), piece_of=helpers.piece_of) as writer:
        run = open_run(tmp_path / "a.sot", live=True)
        source = helpers.Source(writer)
        done = threading.Event()

        def follow() -> None:
            while not done.is_set():
                run.refresh()

        threads = [threading.Thread(target=follow, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(200):
            source.step(2)
        writer.flush()
        done.set()
        for thread in threads:
            thread.join()
        run.refresh()
        helpers.check_run(run, 400)


def test_rows_and_layers_that_are_not_there_are_named(tmp_path: Path) -> None:
    run = open_run(helpers.make_run(tmp_path / "a.sot"))
    for tokens in (10, -11):
        with pytest.raises(StoreError, match=f"row {tokens} is out of range; there are 10 rows"):
            run.states("resid", tokens=tokens)
        with pytest.raises(StoreError, match=f"row {tokens} is out of range; there are 10 rows"):
            run.states("resid", tokens=tokens, seq=0)
    with pytest.raises(StoreError, match="layer 9 of resid was not recorded; recorded are 0-2"):
        run.states("resid", layer=9)
    with pytest.raises(StoreError, match="final has no layers"):
        run.states("final", layer=0)
    with pytest.raises(StoreError, match="resid"):
        run.states("resids")
    with pytest.raises(StoreError, match="entropy"):
        run.scalars("entropie")
    with pytest.raises(StoreError, match="sequence 3 is not in this run"):
        run.states("resid", seq=3)
    with pytest.raises(StoreError, match="positive step"):
        run.states("resid", tokens=slice(None, None, -1))


@pytest.mark.parametrize("seq", [None, 0])
@pytest.mark.parametrize(
    "tokens",
    [None, 0, 4, -1, -10, np.int64(3), slice(2, 7), slice(-3, None), slice(1, 9, 3), slice(7, 2), slice(5, 99)],
)
def test_tokens_select_like_numpy(tmp_path: Path, tokens: int | slice | None, seq: int | None) -> None:
    run = open_run(helpers.make_run(tmp_path / "a.sot", chunk_bytes=200))
    index = slice(None) if tokens is None else tokens
    for site in ("resid", "head_out", "final"):
        whole = helpers.states_at(site, np.arange(10))
        np.testing.assert_array_equal(run.states(site, tokens=tokens, seq=seq), whole[index])
    whole = helpers.states_at("resid", np.arange(10))
    for layer in (0, 2, -1):
        np.testing.assert_array_equal(run.states("resid", layer, tokens, seq), whole[:, layer][index])


def test_to_xarray_is_lazy_and_equals_states_whatever_is_asked(tmp_path: Path) -> None:
    run = open_run(helpers.make_run(tmp_path / "a.sot", dtype="float16", chunk_bytes=100))
    dataset = run.to_xarray()
    keys = (3, -1, slice(2, 8, 3), slice(None, None, -1), [4, 0, 0, 9], np.array([-1, 2]), slice(4, 4))
    for site in run.sites:
        states = run.states(site)
        assert dataset[site].dtype == np.float32
        np.testing.assert_array_equal(dataset[site], states)
        for key in keys:
            np.testing.assert_array_equal(dataset[site].isel(token=key), states[key])
    resid = run.states("resid")
    np.testing.assert_array_equal(dataset.resid.isel(token=[3, 1], layer=-1, dim=slice(2, 5)), resid[[3, 1], -1, 2:5])
    np.testing.assert_array_equal(dataset.resid.isel(token=2, layer=[2, 0], dim=[7, 1]), resid[2][[2, 0]][:, [7, 1]])
    np.testing.assert_array_equal(dataset.resid.isel(token=[3, 1], layer=1, dim=[7, 0]), resid[[3, 1], 1][:, [7, 0]])
    np.testing.assert_array_equal(dataset.resid.sel(layer=1), run.states("resid", layer=1))
    np.testing.assert_array_equal(dataset.norm, run.scalars("norm"))
    np.testing.assert_array_equal(dataset.top_id, run.top[0])
    (run.path / "states.zarr/resid/c/0/0/0").unlink()  # lazily: only who reads it notices
    fresh = open_run(run.path).to_xarray()
    np.testing.assert_array_equal(fresh.final, run.states("final"))
    with pytest.raises(StoreError, match="missing or too short"):
        fresh.resid.isel(token=0).load()


def test_steps_drafts_and_sequences_are_frames_with_words(tmp_path: Path) -> None:
    run = open_run(helpers.make_run(tmp_path / "a.sot"))
    assert list(run.steps["rows"]) == [5, 1, 3, 1]
    assert list(run.steps["pos"]) == [0, 5, 6, 9]
    assert list(run.steps["mode"]) == ["sot", "ar", "sot", "ar"]
    assert list(run.steps["reason"]) == ["drafted", "plain", "drafted", "plain"]
    assert list(run.drafts["token"]) == list(range(6))
    assert list(run.drafts["reason"]) == ["first_slot_miss", "accepted"] * 3
    assert list(run.drafts["accepted"]) == [False, True] * 3
    assert list(run.drafts["target"]) == [0, 1, 2, 3, 6, 7]
    assert run.sequences.to_dict("records") == [
        {"seq_id": 0, "prompt_length": 5, "parent": -1, "parent_pos": -1, "finish": "eos"}
    ]


def test_only_committed_events_are_given(tmp_path: Path) -> None:
    path = helpers.make_run(tmp_path / "a.sot")
    with open(path / "events.jsonl", "a") as file:
        file.write('{"kind": "note"}\n{"kind": "ha')
    run = open_run(path)
    assert [event["kind"] for event in run.events()] == ["config"]
    assert run.events("config")[0]["settings"] == {"a": 1}


def test_a_lost_text_file_costs_the_text_only(tmp_path: Path) -> None:
    path = helpers.make_run(tmp_path / "a.sot")
    (path / "pieces.jsonl").unlink()
    (path / "events.jsonl").write_bytes(b"{")
    run = open_run(path)
    np.testing.assert_array_equal(run.states("resid"), helpers.states_at("resid", np.arange(10)))
    with pytest.raises(StoreError, match=r"pieces\.jsonl cannot be read"):
        _ = run.tokens
    with pytest.raises(StoreError, match=r"events\.jsonl cannot be read"):
        run.events()


def test_info_while_the_publisher_replaces_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sotscope.store.writer.PUBLISH_EVERY_S", 0.0)
    monkeypatch.setattr("sotscope.store.writer.CHILDREN_EVERY_S", 0.0)
    with helpers.RunWriter(tmp_path / "a.sot", helpers.make_spec(), piece_of=helpers.piece_of) as writer:
        source = helpers.Source(writer)
        for _ in range(60):
            source.step(1)
            assert open_run(tmp_path / "a.sot").info()["bytes"] > 0
    info = open_run(tmp_path / "a.sot").info()
    states = 60 * writer.spec.row_bytes
    assert states < info["bytes"] < 40 * states
    assert (info["rows"], info["recording"], info["complete"], info["damage"]) == (60, False, True, None)


def test_a_run_that_is_moved_away_is_one_clear_error(tmp_path: Path) -> None:
    run = open_run(helpers.make_run(tmp_path / "a.sot"))
    run.path.rename(tmp_path / "b.sot")
    with pytest.raises(StoreError, match="cannot read"):
        run.refresh()


def test_a_sequence_keeps_its_row_when_another_one_begins(tmp_path: Path) -> None:
    with helpers.RunWriter(tmp_path / "a.sot", helpers.make_spec()) as writer:
        for branch in (Branch(3, 5), Branch(1, 6), Branch(3, 5, finish="eos")):
            writer.sequence(branch)
    assert list(open_run(tmp_path / "a.sot").sequences["seq_id"]) == [3, 1]
    assert list(open_run(tmp_path / "a.sot").sequences["finish"]) == ["eos", "open"]
