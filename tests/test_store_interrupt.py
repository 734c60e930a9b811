"""Ctrl-C at any moment of a write: the step is committed or it is not, and what follows is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from store_helpers import Source, check_run, make_spec, piece_of

from sotscope.config import RunConfig
from sotscope.events import Branch
from sotscope.recorder import recording
from sotscope.store.hot import HotArray
from sotscope.store.journal import JournalWriter
from sotscope.store.lines import LineFile
from sotscope.store.reader import open_run
from sotscope.store.verify import verify
from sotscope.store.writer import RunWriter
from sotscope.testing.tiny import tiny


def decode_on(source: Source) -> None:
    for _ in range(3):
        source.step(1, drafts=1)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    ("owner", "name"), [(HotArray, "write_bytes"), (LineFile, "append"), (JournalWriter, "append")]
)
def test_an_interrupted_write_leaves_whole_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, after: bool
) -> None:
    real = getattr(owner, name)
    calls = 0

    def interrupted(self: Any, *args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2 and not after:
            raise KeyboardInterrupt
        real(self, *args)
        if calls == 2 and after:
            raise KeyboardInterrupt

    monkeypatch.setattr("sotscope.store.writer.SLOW_S", 1e9)  # or a slow disk moves the writes to another thread
    path = tmp_path / "a.sot"
    writer = RunWriter(path, make_spec(), piece_of=piece_of)
    writer.sequence(Branch(0, 5))
    source = Source(writer)
    source.step(2)
    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        decode_on(source)
    monkeypatch.setattr(owner, name, real)
    run = open_run(path, live=True)
    source.rows, source.drafts = len(run), len(run.drafts)
    source.step(3)
    writer.event("outcome", text="kept")
    writer.close()
    run = open_run(path)
    check_run(run, source.rows)
    assert [event["kind"] for event in run.events()] == ["outcome"]
    assert verify(path).sound


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_interrupted_recording_says_how_many_rows_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    real = JournalWriter.append
    settings = RunConfig.build(
        {"input": {"prompt": "5 17 3"}, "decode": {"max_new_tokens": 9, "eos_token_id": []}, "out": tmp_path / "a.sot"},
        "test",
    )

    def interrupted(self: Any, *args: Any) -> None:
        monkeypatch.setattr(JournalWriter, "append", real)
        if after:
            real(self, *args)
        raise KeyboardInterrupt

    monkeypatch.setattr("sotscope.store.writer.SLOW_S", 1e9)

    def decode() -> None:
        with recording(settings, model=tiny("llama")) as recorded:
            for step in recorded.steps():
                if step.index == 4:
                    monkeypatch.setattr(JournalWriter, "append", interrupted)

    with pytest.raises(KeyboardInterrupt):
        decode()
    run = open_run(tmp_path / "a.sot")
    (outcome,) = run.events("outcome")
    assert outcome["finish_reason"] == "interrupted"
    assert outcome["rows"] == len(run) == 6 + after  # 2 of the prompt's in step 0, one in each of 4, and the broken one
