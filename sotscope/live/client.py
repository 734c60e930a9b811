"""The dashboard's end of the pipe: starts the engine process, sends it commands, knows how it is. Imports no torch."""

from __future__ import annotations

import itertools
import multiprocessing
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sotscope.errors import LiveError
from sotscope.live.commands import Ack, Quit, Start, Status, command_of
from sotscope.live.engine import main

ANSWER_S = 60.0
"""Seconds to wait for the answer to a command: `start` may load weights first."""
LEAVE_S = 15.0


class Engine:
    """A child process that decodes, started when it is first needed and again after it died. Thread-safe."""

    def __init__(self, folder: Path, model: str = "smollm2") -> None:
        self.folder = folder
        self.model = model
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._numbers = itertools.count(1)
        self._answers: dict[int, Ack] = {}
        self._status = Status(model=model, state="idle", text="not started yet")
        self._process: Any = None
        self._listener: threading.Thread | None = None
        self._pipe: Connection | None = None

    @property
    def status(self) -> Status:
        """The last that was heard of it; ``dead`` where the process is gone."""
        return self._status

    def start(self) -> None:
        """Start the process and let it load the model; nothing where it runs already."""
        with self._lock:
            if self._listener is not None and self._listener.is_alive():
                return
            context = multiprocessing.get_context("spawn")
            ours, theirs = context.Pipe()
            process = context.Process(target=main, args=(theirs, str(self.folder), self.model), daemon=True)
            self._tell(Status(model=self.model, state="starting", text=f"starting, loading {self.model}"))
            process.start()
            theirs.close()  # so that a read ends when the child is gone
            self._process, self._pipe = process, ours
            self._listener = threading.Thread(target=self._listen, args=(process, ours), daemon=True)
            self._listener.start()

    def send(self, data: dict[str, Any] | Any, wait: float = ANSWER_S) -> Ack:
        """Tell it ``data`` (a command, or its fields); returns its answer. Raises LiveError for what is no command.

        `start` starts the process, if need be; any other command to a dead engine is answered with why.
        """
        command = command_of(data if isinstance(data, dict) else data.model_dump())
        command = command.model_copy(update={"id": next(self._numbers)})
        if isinstance(command, Start):
            self.start()
        pipe = self._pipe
        if pipe is None or self._status.state == "dead":
            return Ack(id=command.id, error="the engine is not running; press Start.")
        try:
            with self._lock:
                pipe.send(command.model_dump())
        except OSError:
            return Ack(id=command.id, error="the engine is gone; what it committed is kept. Press Start.")
        return self._answer(command.id, wait)

    def close(self) -> None:
        """Let it close its run and leave; after some seconds it is made to."""
        pipe, listener = self._pipe, self._listener
        if pipe is None or listener is None:
            return
        with suppress(OSError), self._lock:
            pipe.send(Quit().model_dump())
        listener.join(LEAVE_S)  # the one that waits for the process: of two waiters one hears nothing
        if listener.is_alive():
            self._process.terminate()
            listener.join(LEAVE_S)

    def _answer(self, number: int, wait: float) -> Ack:
        with self._changed:
            done = self._changed.wait_for(lambda: number in self._answers or self._status.state == "dead", wait)
            answer = self._answers.pop(number, None)
        if answer is not None:
            return answer
        return Ack(id=number, error="the engine died; what it committed is kept. Press Start." if done else
                   "the engine has not answered yet; it is busy.")  # fmt: skip

    def _listen(self, process: Any, pipe: Connection) -> None:
        """Take what the child says until it is gone."""
        try:
            while True:
                said = pipe.recv()
                if "state" in said:
                    self._tell(Status.model_validate(said))
                else:
                    self._note(Ack.model_validate(said))
        except (EOFError, OSError):
            process.join()
        how = f"exit code {process.exitcode}" if process.exitcode >= 0 else f"killed by signal {-process.exitcode}"
        last = self._status
        text = f"the engine ended ({how}); what it committed is kept. Press Start to begin anew."
        self._tell(last.model_copy(update={"state": "dead", "text": text, "sequence": last.sequence + 1}))

    def _tell(self, status: Status) -> None:
        with self._changed:
            self._status = status
            self._changed.notify_all()

    def _note(self, answer: Ack) -> None:
        with self._changed:
            self._answers[answer.id] = answer
            while len(self._answers) > 64:  # nobody waited for them
                self._answers.pop(next(iter(self._answers)))
            self._changed.notify_all()

    def wait_for(self, *states: str, wait: float = ANSWER_S) -> Status:
        """Wait until it is in one of ``states`` (or dead). Raises LiveError when that takes longer than ``wait``."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._status.state in (*states, "dead"), wait):
                raise LiveError(f"the engine is still {self._status.state} ({self._status.text}).")
            return self._status
