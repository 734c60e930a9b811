"""Several sequences in one run: branches resolve to their ancestors' rows, abandoned rows stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import store_helpers as helpers
from hypothesis import given
from hypothesis import strategies as st

from sotscope.errors import StoreError
from sotscope.events import Branch
from sotscope.store.layout import SEQUENCE_DTYPE
from sotscope.store.lineage import lineage_rows
from sotscope.store.reader import open_run
from sotscope.store.writer import RunWriter

ROW = np.dtype([("seq_id", "<i4"), ("pos", "<i4")])


def sequences_of(*branches: Branch) -> np.ndarray:
    records = [(0, b.seq, b.prompt_length, b.parent, b.parent_pos, 0) for b in branches]
    return np.array(records, SEQUENCE_DTYPE)


@st.composite
def trees(draw: st.DrawFn) -> tuple[np.ndarray, list[Branch], list[list[int]]]:
    """Rows in the order they were committed, the branches, and of each sequence its rows as a list would hold them."""
    rows: list[tuple[int, int]] = []
    branches: list[Branch] = []
    model: list[list[int]] = []
    for seq in range(draw(st.integers(1, 6))):
        parent = draw(st.integers(-1, seq - 1))
        start = draw(st.integers(0, len(model[parent]))) if parent >= 0 else 0
        branches.append(Branch(seq, 1, parent, start if parent >= 0 else -1))
        model.append(model[parent][:start] if parent >= 0 else [])
        # the other sequences go on while this one runs; a child keeps what it took from its parent
        for grown in draw(st.lists(st.integers(0, seq), max_size=8)):
            model[grown].append(len(rows))
            rows.append((grown, len(model[grown]) - 1))
    return np.array(rows, ROW), branches, model


@given(trees())
def test_any_tree_of_branches_reads_like_lists(tree: tuple[np.ndarray, list[Branch], list[list[int]]]) -> None:
    rows, branches, model = tree
    for branch, expected in zip(branches, model, strict=True):
        assert lineage_rows(rows, sequences_of(*branches), branch.seq).tolist() == expected


def test_the_last_row_of_a_position_counts() -> None:
    rows = np.array([(0, 0), (0, 1), (0, 2), (0, 1), (0, 2)], ROW)
    assert lineage_rows(rows, sequences_of(Branch(0, 1)), 0).tolist() == [0, 3, 4]


@pytest.mark.parametrize(
    "branches", [(Branch(0, 1, 1, 0), Branch(1, 1, 0, 0)), (Branch(0, 1, 0, 0),), (Branch(0, 1, 7, 0),)]
)
def test_a_lineage_that_loops_or_ends_nowhere_is_refused(branches: tuple[Branch, ...]) -> None:
    with pytest.raises(StoreError, match="the lineage of sequence 0 is broken at sequence"):
        lineage_rows(np.zeros(0, ROW), sequences_of(*branches), 0)


def test_branches_of_a_run(tmp_path: Path) -> None:
    """0: rows 0-4; 1 leaves 0 at position 3: rows 5, 6; 2 leaves 1 at position 4: row 7; 3 starts anew: row 8."""
    with RunWriter(tmp_path / "a.sot", helpers.make_spec(chunk_bytes=100), piece_of=helpers.piece_of) as writer:
        source = helpers.Source(writer)
        writer.sequence(Branch(0, 2))
        source.step(5, seq=0, pos=0)
        writer.sequence(Branch(0, 2, finish="branched"))
        writer.sequence(Branch(1, 2, parent=0, parent_pos=3))
        source.step(2, seq=1, pos=3)
        writer.sequence(Branch(2, 2, parent=1, parent_pos=4))
        source.step(1, seq=2, pos=4)
        writer.sequence(Branch(3, 1))
        source.step(1, seq=3, pos=0)
        writer.sequence(Branch(2, 2, parent=1, parent_pos=4, finish="eos"))
    run = open_run(tmp_path / "a.sot")
    expected = {0: [0, 1, 2, 3, 4], 1: [0, 1, 2, 5, 6], 2: [0, 1, 2, 5, 7], 3: [8]}
    for seq, rows in expected.items():
        index = np.array(rows)
        for site in ("resid", "final", "query"):
            np.testing.assert_array_equal(run.states(site, seq=seq), helpers.states_at(site, index))
        one = run.states("resid", layer=1, tokens=slice(-2, None), seq=seq)
        np.testing.assert_array_equal(one, helpers.states_at("resid", index)[-2:, 1])
        np.testing.assert_array_equal(run.states("resid", tokens=-1, seq=seq), helpers.states_at("resid", index)[-1])
        np.testing.assert_array_equal(run.scalars("norm", seq=seq), helpers.scalars_at("norm", index))
        tokens = run.tokens_of(seq)
        assert tokens.ids.tolist() == helpers.token_at(index).tolist()
        assert tokens.pos.tolist() == list(range(len(rows)))
        assert tokens.text == "".join(f" {token}" for token in [*tokens.ids, helpers.token_at(index + 1)[-1]])
    np.testing.assert_array_equal(run.states("resid"), helpers.states_at("resid", np.arange(9)))  # abandoned rows stay
    assert run.tokens.seq.tolist() == [0] * 5 + [1, 1, 2, 3]
    assert run.sequences.to_dict("list") == {
        "seq_id": [0, 1, 2, 3],
        "prompt_length": [2, 2, 2, 1],
        "parent": [-1, 0, 1, -1],
        "parent_pos": [-1, 3, 4, -1],
        "finish": ["branched", "open", "eos", "open"],
    }


def test_a_sequence_without_rows_is_empty(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "a.sot", helpers.make_spec()) as writer:
        writer.sequence(Branch(0, 2))
    run = open_run(tmp_path / "a.sot")
    assert run.states("resid", seq=0).shape == (0, helpers.LAYERS, helpers.DIM)
    assert run.states("resid", layer=1, seq=0).shape == (0, helpers.DIM)
    assert (run.tokens_of(0).text, len(run.tokens_of(0))) == ("", 0)
    with pytest.raises(StoreError, match="row 0 is out of range; there are 0 rows"):
        run.states("resid", tokens=0)
