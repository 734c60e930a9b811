"""verify names what is wrong, and --repair publishes what the journal holds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import store_helpers as helpers
import xarray as xr

from sotscope.errors import StoreError
from sotscope.store.journal import JournalReader
from sotscope.store.layout import JOURNAL, STATES
from sotscope.store.reader import open_run
from sotscope.store.verify import verify
from sotscope.store.writer import RunWriter

RESID_ROW = helpers.LAYERS * helpers.DIM * 4


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def test_a_closed_run_is_sound(tmp_path: Path) -> None:
    verdict = verify(helpers.make_run(tmp_path / "a.sot"))
    assert (verdict.problems, verdict.sound, verdict.complete) == ([], True, True)
    assert (verdict.rows, verdict.published_rows, verdict.steps) == (10, 10, 4)


def test_a_changed_byte_of_a_state_names_its_rows(tmp_path: Path) -> None:
    path = helpers.make_run(tmp_path / "a.sot", sizes=(5, 1, 3, 1))
    flip(path / STATES / "resid/c/0/0/0", 7 * RESID_ROW + 3)
    assert [problem.split(" (")[0] for problem in verify(path).problems] == ["states of rows 6-8"]
    flip(path / STATES / "final/c/0/0", 0)
    assert [p.split(" (")[0] for p in verify(path).problems] == ["states of rows 0-4", "states of rows 6-8"]
    assert not verify(path, repair=True).sound  # states are nowhere else


@pytest.mark.parametrize("array", ["scalars/norm", "token_id", "present", "top/logprob", "steps/rows", "drafts/token"])
def test_a_changed_small_array_is_named_and_mended(tmp_path: Path, array: str) -> None:
    path = helpers.make_run(tmp_path / "a.sot")
    chunk = next(file for file in (path / STATES / array).rglob("*") if file.is_file() and file.name.isdigit())
    flip(chunk, 1)
    assert verify(path).problems == [f"published array {array} differs from the journal; --repair rewrites it"]
    assert verify(path, repair=True).sound
    helpers.check_run(open_run(path), 10)


def test_a_missing_state_chunk_is_named(tmp_path: Path) -> None:
    path = helpers.make_run(tmp_path / "a.sot", chunk_bytes=RESID_ROW * 4)
    (path / STATES / "resid/c/1/0/0").unlink()
    (problem,) = verify(path).problems
    assert "resid/c/1/0/0 is missing or too short" in problem
    run = open_run(path)
    np.testing.assert_array_equal(run.states("resid", tokens=slice(0, 4)), helpers.states_at("resid", np.arange(4)))
    with pytest.raises(StoreError, match="resid/c/1/0/0 is missing or too short"):
        run.states("resid")


def test_everything_but_states_and_journal_can_be_rebuilt(tmp_path: Path) -> None:
    path = helpers.make_run(tmp_path / "a.sot")
    for name in ("scalars", "top", "steps", "drafts", "sequences", "token_id", "layer"):
        shutil.rmtree(path / STATES / name)
    (path / STATES / "zarr.json").unlink()
    with pytest.raises(StoreError, match=r"has no zarr\.json"):
        open_run(path)
    assert not verify(path).sound
    verdict = verify(path, repair=True)
    assert (verdict.problems, verdict.repaired, verdict.complete) == ([], True, False)
    helpers.check_run(open_run(path), 10)
    tree = xr.open_datatree(path / STATES, engine="zarr", chunks=None)
    np.testing.assert_array_equal(tree["scalars/norm"], helpers.scalars_at("norm", np.arange(10)))
    np.testing.assert_array_equal(tree["layer"], range(helpers.LAYERS))
    np.testing.assert_array_equal(xr.open_zarr(path / STATES / "top", chunks=None).id[:, 0], range(10))


def test_repair_keeps_a_complete_run_complete(tmp_path: Path) -> None:
    verdict = verify(helpers.make_run(tmp_path / "a.sot"), repair=True)
    assert (verdict.sound, verdict.complete, open_run(tmp_path / "a.sot").complete) == (True, True, True)


def test_more_published_than_the_journal_vouches_for_is_a_problem(tmp_path: Path) -> None:
    path = helpers.make_run(tmp_path / "a.sot")
    content = (path / JOURNAL).read_bytes()
    (path / JOURNAL).write_bytes(content[:-200])
    problems = verify(path).problems
    assert any("10 tokens of token_id are published, the journal has 9" in problem for problem in problems)
    assert len(open_run(path)) == 9


def test_a_wrong_shape_is_named(tmp_path: Path) -> None:
    path = helpers.make_run(tmp_path / "a.sot")
    root = json.loads((path / STATES / "zarr.json").read_text())
    root["consolidated_metadata"]["metadata"]["resid"]["shape"][0] = 4
    (path / STATES / "zarr.json").write_text(json.dumps(root))
    (problem,) = verify(path).problems
    assert "resid has shape [4, 3, 8]" in problem
    assert verify(path, repair=True).sound


def test_a_run_that_is_being_recorded_checks_and_is_not_repaired(tmp_path: Path) -> None:
    path = tmp_path / "a.sot"
    with helpers.writer_process(path, pause=0.001):
        helpers.wait_until((path / JOURNAL).exists)
        helpers.wait_until(lambda: len(open_run(path)) > 20)
        for _ in range(10):
            assert verify(path).problems == []
        with pytest.raises(StoreError, match="is being recorded; wait until its writer has ended"):
            verify(path, repair=True)


def test_a_writer_that_commits_while_verify_looks_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sotscope.store.writer.PUBLISH_EVERY_S", 1e6)
    with RunWriter(tmp_path / "a.sot", helpers.make_spec(), piece_of=helpers.piece_of) as writer:
        source = helpers.Source(writer)
        source.step(3)
        writer.publish()
        advance = JournalReader.advance

        def busy(reader: JournalReader) -> int:
            found = advance(reader)
            with monkeypatch.context() as patch:
                patch.setattr(JournalReader, "advance", advance)
                source.step(2)
                writer.publish()
            return found

        monkeypatch.setattr(JournalReader, "advance", busy)
        assert verify(tmp_path / "a.sot").problems == []
        monkeypatch.setattr(JournalReader, "advance", advance)
        assert source.rows == 5


def test_verify_of_no_run_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a sotscope run"):
        verify(tmp_path)
