"""The child process: a model, kept between runs, and one recording at a time that obeys commands between steps."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sotscope.errors import LiveError, SotscopeError
from sotscope.live.commands import (
    Ack,
    BranchAt,
    Pace,
    Pause,
    Quit,
    Recover,
    Resume,
    Set,
    Start,
    Status,
    StepOnce,
    Stop,
    command_of,
)

SLICE_S = 0.05
"""Longest sleep of slow motion without a look at the pipe."""


def main(pipe: Connection, folder: str, model: str) -> None:
    """What the child process runs. It ends when the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which then says quit
    Child(pipe, Path(folder), model).serve()


class Child:
    """Serves one pipe."""

    def __init__(self, pipe: Connection, folder: Path, model: str) -> None:
        self._pipe = pipe
        self._folder = folder
        self._loaded: Any = None
        self._recorded: Any = None
        self._open = ExitStack()
        self._steps: Generator[Any] | None = None
        self._status = Status(model=model)
        self._once = False
        self._known: tuple[Any, ...] = ()
        """Decode settings and interventions that were told."""

    def serve(self) -> None:
        """Obey until told to quit, or until nobody is there to tell."""
        with suppress(EOFError, OSError):
            self._load()
            while True:
                running = self._status.state == "running"
                while not running or self._pipe.poll():
                    command = command_of(self._pipe.recv())
                    if isinstance(command, Quit):
                        self._close()
                        self._pipe.send(Ack(id=command.id).model_dump())
                        return
                    self._obey(command)
                    running = self._status.state == "running"
                self._advance()
        self._close()
        os._exit(0)  # daemon threads of libraries must not keep a process that nobody listens to

    def _say(self, **changes: Any) -> None:
        self._status = self._status.model_copy(update={**changes, "sequence": self._status.sequence + 1})
        self._pipe.send(self._status.model_dump())

    def _load(self) -> None:
        from sotscope.models.load import load

        try:
            self._say(text=f"loading {self._status.model}")
            self._loaded = load(self._status.model, report=lambda text: self._say(text=text))
            self._say(state="idle", text="ready", modes=_modes(self._loaded))
        except SotscopeError as error:
            self._say(state="idle", text=str(error))

    # -- commands ----------------------------------------------------------------------------------------------

    def _obey(self, command: Any) -> None:
        """Do it and answer. A refusal leaves everything as it was."""
        answer = Ack(id=command.id)
        try:
            self._do(command)
        except SotscopeError as error:
            answer.error = str(error)
        except Exception as error:  # noqa: BLE001 - whoever asked must hear of it
            answer.error = f"{command.kind} failed: {type(error).__name__}: {error}"
        self._pipe.send(answer.model_dump())

    def _do(self, command: Any) -> None:
        state = self._status.state
        match command:
            case Start():
                self._start(command)
            case Pace():
                self._say(delay_ms=command.delay_ms)
            case Pause() if state == "running":
                self._say(state="paused", text="paused")
            case Resume() if state == "paused":
                self._say(state="running", text="decoding")
            case StepOnce() if state in ("running", "paused"):
                self._once = True
                self._say(state="running", text="one step")
            case Stop() if state in ("running", "paused", "ended"):
                self._close()
            case Set() if self._recorded is not None and state in ("running", "paused", "ended"):
                self._recorded.controls.set(**command.changes)
            case Recover() if state in ("running", "paused"):
                self._recorded.recover(command.policy)
                self._say(text="recovering at the next step")
            case BranchAt() if state in ("running", "paused", "ended"):
                self._branch(command)
            case _:
                raise LiveError(f"{command.kind} does nothing while the engine is {state}.")

    def _start(self, command: Start) -> None:
        from sotscope.config import RunConfig
        from sotscope.recorder import recording
        from sotscope.store.runs import default_path

        if self._loaded is None:
            self._load()
        if self._loaded is None:
            raise LiveError(self._status.text)
        self._close()
        settings = RunConfig.build(command.settings, "start")
        if settings.out is None:
            name = settings.input.prompt or "chat"
            settings = settings.model_copy(update={"out": default_path(settings.decode.mode, name, self._folder)})
        self._say(state="preparing", text="preparing the run", delay_ms=command.delay_ms)
        try:
            made = recording(settings, model=self._loaded, report=lambda text: self._say(text=text))
            self._recorded = self._open.enter_context(made)
        except SotscopeError as error:
            self._say(state="idle", text=str(error))
            raise
        self._steps = self._recorded.steps()
        self._once = False
        state, text = ("paused", "paused before the first step") if command.paused else ("running", "decoding")
        self._say(state=state, text=text, run=str(self._recorded.path), seq=0, **self._settings())

    def _settings(self) -> dict[str, Any]:
        """What is in force, as the status says it."""
        recorded = self._recorded
        self._known = recorded.prepared.maker.settings, recorded.intervening.configs
        decode, configs = self._known
        return {
            "settings": decode.model_dump(mode="json"), "interventions": [config.model_dump() for config in configs],
            "monitors": recorded.monitoring.names, "recoveries": list(recorded.settings.health.recover),
            "measured": recorded.settings.measure,
        }  # fmt: skip

    def _follow(self) -> None:
        """Tell of changes that took effect, and of the sequence that a recovery began."""
        recorded = self._recorded
        now = recorded.prepared.maker.settings, recorded.intervening.configs
        if any(one is not other for one, other in zip(now, self._known, strict=True)):
            self._say(**self._settings())
        if recorded.sequence != self._status.seq:
            seq = recorded.sequence
            self._say(seq=seq, text=f"decoding sequence {seq}, after a recovery")

    def _branch(self, command: BranchAt) -> None:
        steps = self._recorded.branch(command.seq, command.pos, command.token)  # refused: all is as it was
        if self._steps is not None:
            self._steps.close()
        self._steps, self._once = steps, False
        seq = self._recorded.sequence
        self._say(state="running", text=f"decoding branch {seq}", seq=seq)

    # -- decoding ----------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """One step; then wait as slow motion asks, pause after a single step, or end."""
        assert self._steps is not None
        try:
            step = next(self._steps, None)
        except Exception as error:  # noqa: BLE001 - the run keeps what it has, the engine lives on
            self._fail(error)
            return
        self._follow()
        if step is None:
            self._say(state="ended", text=self._end())
            self._steps = None
            return
        if step.mode == "prompt":
            return
        if self._once:
            self._once = False
            self._say(state="paused", text="paused")
        self._wait()

    def _end(self) -> str:
        stopped = self._recorded.decoder.outcome is None  # it did not end by itself
        return f"{'a recovery stopped the text' if stopped else 'the text is written'}; branch it, or start another"

    def _wait(self) -> None:
        until = time.monotonic() + self._status.delay_ms / 1000
        while (left := until - time.monotonic()) > 0 and not self._pipe.poll(min(left, SLICE_S)):
            pass

    def _fail(self, error: BaseException) -> None:
        text = f"decoding failed: {type(error).__name__}: {error}"
        with suppress(BaseException):
            self._open.__exit__(type(error), error, error.__traceback__)
        self._forget()
        self._say(state="idle", text=text)

    def _close(self) -> None:
        """Close the recording, if one is open."""
        if self._recorded is None:
            return
        if self._steps is not None:
            self._steps.close()
        try:
            self._open.close()
            text = "stopped; what was committed is kept"
        except (SotscopeError, OSError) as error:
            text = f"closing the run failed: {error}"
        self._forget()
        with suppress(OSError):
            self._say(state="idle", text=text)

    def _forget(self) -> None:
        self._recorded, self._steps, self._open = None, None, ExitStack()


def _modes(loaded: Any) -> tuple[str, ...]:
    """The modes there is a drafter for."""
    from sotscope.models.load import fingerprint
    from sotscope.parts import find_drafter

    modes, mark = ["ar", "lookup"], fingerprint(loaded.model)
    for mode in ("sot", "dmtd"):
        with suppress(SotscopeError):
            find_drafter(mode, None, mark, loaded.name)
            modes.append(mode)
    return (*modes, "combine") if "sot" in modes else tuple(modes)
