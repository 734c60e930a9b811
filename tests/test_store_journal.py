"""The journal is the truth: whatever is cut off or changed in it, a reader gives a prefix that checks, or refuses."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import store_helpers as helpers
from crc32c import crc32c

from sotscope.errors import StoreError
from sotscope.events import Branch
from sotscope.store.journal import MAGIC, Commit, JournalReader, read_header
from sotscope.store.layout import JOURNAL
from sotscope.store.reader import open_run
from sotscope.store.verify import verify

SIZES = (3, 1, 2, 1, 1)


@pytest.fixture(scope="module")
def run_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "a.sot"
    with helpers.RunWriter(path, helpers.make_spec(("resid",), top_k=1), piece_of=helpers.piece_of) as writer:
        source = helpers.Source(writer)
        writer.sequence(Branch(0, 3))
        for size in SIZES:
            source.step(size, drafts=size - 1)
            writer.event("note")
    return path


@pytest.fixture(scope="module")
def ends(run_path: Path) -> dict[int, Commit]:
    """Where each commit of the whole journal ends (byte), the empty one first."""
    path, content = run_path.with_name("growing.bin"), (run_path / JOURNAL).read_bytes()
    start = read_header(run_path / JOURNAL)[2]
    found = {start: Commit(0, 0, 0, 0, 0, 0, 0)}
    path.write_bytes(content[:start])
    reader = JournalReader(path)
    for stop in range(start, len(content) + 1):
        path.write_bytes(content[:stop])
        if reader.advance():
            found[stop] = reader.last
    assert len(found) == 2 + 2 * len(SIZES)
    assert list(found)[-1] == len(content)
    return found


def journal_of(path: Path, content: bytes) -> JournalReader:
    path.write_bytes(content)
    reader = JournalReader(path)
    reader.advance()
    return reader


def check_prefix(reader: JournalReader, whole: JournalReader) -> None:
    """What is read equals, bit for bit, what the whole journal begins with."""
    assert reader.commits == whole.commits[: len(reader.commits)]
    last = reader.last
    assert (len(reader.rows), len(reader.drafts), len(reader.steps)) == (last.rows, last.drafts, last.steps)
    assert reader.rows.tobytes() == whole.rows[: last.rows].tobytes()
    assert reader.drafts.tobytes() == whole.drafts[: last.drafts].tobytes()
    assert reader.steps.tobytes() == whole.steps[: last.steps].tobytes()


def test_cut_at_any_byte_exactly_the_commits_before_it_are_read(
    run_path: Path, ends: dict[int, Commit], tmp_path: Path
) -> None:
    content = (run_path / JOURNAL).read_bytes()
    whole = journal_of(tmp_path / "whole.bin", content)
    for stop in range(next(iter(ends)), len(content) + 1):
        reader = journal_of(tmp_path / "cut.bin", content[:stop])
        assert reader.last == ends[max(end for end in ends if end <= stop)]
        assert reader.damage == ""
        assert reader.tail_bytes == stop - max(end for end in ends if end <= stop)
        check_prefix(reader, whole)


@pytest.mark.parametrize("room", [b"\0" * 5000, b"\0"])
def test_zeros_behind_the_last_commit_are_room_and_no_damage(run_path: Path, tmp_path: Path, room: bytes) -> None:
    content = (run_path / JOURNAL).read_bytes()
    reader = journal_of(tmp_path / "a.bin", content[:-10] + bytes(10) + room)
    assert (reader.damage, len(reader.steps)) == ("", len(SIZES))
    assert len(journal_of(tmp_path / "b.bin", content + room).commits) == 1 + 2 * len(SIZES)


def test_cut_in_the_header_is_one_line(run_path: Path, ends: dict[int, Commit], tmp_path: Path) -> None:
    content = (run_path / JOURNAL).read_bytes()
    for stop in range(next(iter(ends))):
        with pytest.raises(StoreError, match=r"^[^\n]*(damaged|not a sotscope journal)[^\n]*$"):
            journal_of(tmp_path / "cut.bin", content[:stop])


def flips(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Every byte with one to eight of its bits flipped."""
    rng = random.Random(3)
    for position in range(start, stop):
        yield position, 1 << rng.randrange(8)
        yield position, rng.randrange(1, 256)


def test_any_changed_byte_of_the_body_never_gives_a_wrong_value(
    run_path: Path, ends: dict[int, Commit], tmp_path: Path
) -> None:
    content = (run_path / JOURNAL).read_bytes()
    whole = journal_of(tmp_path / "whole.bin", content)
    starts = list(ends)
    for position, mask in flips(starts[0], len(content)):
        changed = bytearray(content)
        changed[position] ^= mask
        reader = journal_of(tmp_path / "changed.bin", bytes(changed))
        before = max(end for end in starts if end <= position)
        assert reader.last == ends[before]  # all commits before the change and none after it
        # a change in the last step looks like a step that was being written when its writer died
        assert reader.damage.startswith(f"journal damaged at byte {before}") or before == starts[-2]
        assert reader.tail_bytes == len(content) - before
        check_prefix(reader, whole)


def test_any_changed_byte_of_the_header_is_one_line(run_path: Path, ends: dict[int, Commit], tmp_path: Path) -> None:
    content = (run_path / JOURNAL).read_bytes()
    for position, mask in flips(0, next(iter(ends))):
        changed = bytearray(content)
        changed[position] ^= mask
        with pytest.raises(StoreError, match=r"^[^\n]*(damaged|not a sotscope journal)[^\n]*$"):
            journal_of(tmp_path / "changed.bin", bytes(changed))


def test_every_changed_byte_of_a_closed_run_is_found_by_verify(run_path: Path, ends: dict[int, Commit]) -> None:
    content = (run_path / JOURNAL).read_bytes()
    copy = shutil.copytree(run_path, run_path.with_name("copy.sot"))
    assert verify(copy).sound
    for position in random.Random(1).sample(range(next(iter(ends)), len(content)), 60):
        changed = bytearray(content)
        changed[position] ^= 0x10
        (copy / JOURNAL).write_bytes(bytes(changed))
        assert not verify(copy).sound
        run = open_run(copy)
        rows = len(run)
        assert rows in {commit.rows for commit in ends.values()}
        np.testing.assert_array_equal(run.states("resid"), helpers.states_at("resid", np.arange(rows)))
        np.testing.assert_array_equal(run.scalars("norm"), helpers.scalars_at("norm", np.arange(rows)))


def test_damage_tells_byte_step_and_row(run_path: Path, ends: dict[int, Commit], tmp_path: Path) -> None:
    content = bytearray((run_path / JOURNAL).read_bytes())
    starts = list(ends)
    content[starts[4] + 20] ^= 1
    reader = journal_of(tmp_path / "a.bin", bytes(content))
    assert reader.damage == f"journal damaged at byte {starts[4]} (step 4, after row 4): the crc32c of the step differs"


def test_what_looked_damaged_for_a_moment_is_read_when_it_is_whole(
    run_path: Path, ends: dict[int, Commit], tmp_path: Path
) -> None:
    """A network file system may show the length of new pages before their content."""
    content = (run_path / JOURNAL).read_bytes()
    hole = bytearray(content)
    hole[list(ends)[2] + 4 : list(ends)[2] + 40] = bytes(36)
    reader = journal_of(tmp_path / "a.bin", bytes(hole))
    assert reader.damage
    (tmp_path / "a.bin").write_bytes(content)
    assert reader.advance() == len(ends) - 3
    assert reader.damage == ""


def test_a_header_that_checks_but_is_no_runs_is_one_line(run_path: Path, tmp_path: Path) -> None:
    def header(data: object) -> bytes:
        body = json.dumps(data).encode()
        return MAGIC + len(body).to_bytes(4, "little") + body + crc32c(body).to_bytes(4, "little")

    good = {"spec": read_header(run_path / JOURNAL)[0].model_dump(), "attributes": {}}
    site = good["spec"]["sites"][0]
    bad: list[tuple[object, str]] = [
        ([1, 2], "not a run's"),
        ({"attributes": {}}, "not a run's"),
        ({"spec": good["spec"]}, "not a run's"),
        ({**good, "spec": {**good["spec"], "format": 99}}, "has store format 99, this sotscope reads 1; update it"),
        ({**good, "spec": {**good["spec"], "extra": 1}}, "spec does not fit|does not fit this sotscope: extra"),
        ({**good, "spec": {**good["spec"], "chunk_bytes": 0}}, "does not fit this sotscope: chunk_bytes"),
        ({**good, "spec": {**good["spec"], "sites": [{**site, "name": "../../x"}]}}, r"sites\.0\.name"),
        ({**good, "spec": {**good["spec"], "sites": [{**site, "name": "/etc"}]}}, r"sites\.0\.name"),
        ({**good, "spec": {**good["spec"], "sites": [{**site, "row": [-1]}]}}, r"sites\.0\.row"),
        ({**good, "spec": {**good["spec"], "scalars": [{"name": "a", "dtype": "O"}]}}, r"scalars\.0\.dtype"),
    ]
    for data, message in bad:
        (tmp_path / "a.bin").write_bytes(header(data))
        with pytest.raises(StoreError, match=message) as caught:
            read_header(tmp_path / "a.bin")
        assert "\n" not in str(caught.value)
    (tmp_path / "a.bin").write_bytes(header(good))
    assert read_header(tmp_path / "a.bin")[0].model_dump() == good["spec"]
