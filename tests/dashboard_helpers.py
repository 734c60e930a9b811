"""A dashboard in a process of its own, and a page of a real Chromium that looks at it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sotscope.bench.dashboard_browser import chromium as chromium

WAIT_MS = 20_000


class Server:
    """``sotscope dashboard``, started and stopped."""

    def __init__(self, *arguments: object, port: int = 0) -> None:
        command = [sys.executable, "-m", "sotscope.cli.main", "dashboard", *map(str, arguments)]
        self.process = subprocess.Popen(
            [*command, "--no-browser", "--port", str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            found = re.search(r"http://\S+", line)
            if found:
                self.link = found[0]
                break
        self.port = int(re.search(r":(\d+)", self.link)[1])  # type: ignore[index]
        self.address = f"http://127.0.0.1:{self.port}/"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()


class Page:
    """A page with what tests ask of it. ``errors`` are what the console and the scripts complained of, ``outside`` the
    addresses asked for that are not the server's."""

    def __init__(self, browser: Any, link: str, *, width: int = 1280, height: int = 860, scheme: str = "light") -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, accept_downloads=True
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.errors: list[str] = []
        self.outside: list[str] = []
        self.page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda asked: self._note(asked.url))
        self.page.goto(link)
        ready = "Boolean(window.sotscope && window.sotscope.seen > 0 || document.querySelector('.single'))"
        self.until(lambda: self.ask(ready), "a page")

    def _note(self, url: str) -> None:
        if not url.startswith(("http://127.0.0.1:", "http://localhost:", "data:", "blob:")):
            self.outside.append(url)

    def close(self) -> None:
        self.context.close()

    def ask(self, expression: str) -> Any:
        return self.page.evaluate(expression)

    def answer(self) -> dict[str, Any]:
        """What the server said last."""
        found: dict[str, Any] = json.loads(self.ask("JSON.stringify(window.sotscope.answer || {})"))
        return found

    def engine(self) -> str:
        return str((self.answer().get("engine") or {}).get("state", ""))

    def until(self, done: Callable[[], Any], what: str = "", seconds: float = 20) -> Any:
        """Wait for ``done`` to give something true; returns it."""
        end = time.monotonic() + seconds
        while not (found := done()):
            assert time.monotonic() < end, f"waited {seconds} s for {what or done}; {self.answer().get('engine')}"
            self.page.wait_for_timeout(50)
        return found

    def shown_text(self) -> str:
        """The text on the page, token by token, without special tokens."""
        return str(
            self.ask("[...document.querySelectorAll('#text .token:not(.special)')].map(t => t.textContent).join('')")
        )

    def start(self, **settings: Any) -> None:
        """Fill the form, press Start, and wait for the run, or for the refusal."""
        for name, value in settings.items():
            self.page.locator(f"#{name.replace('_', '-')}").fill(str(value))
        ready = lambda: self.engine() not in ("starting", "preparing") and self.answer()["control"] != "other"  # noqa: E731
        self.until(ready, "an engine that is ready", 60)
        before = (self.answer().get("engine") or {}).get("run")
        self.page.click("#start")
        self.until(lambda: self.ask("window.sotscope.refusal") or self.answer()["engine"]["run"] != before, "a new run")

    def figure(self, id: str = "graph-states") -> Any:
        """The traces of a drawn figure, as plotly has them: type, name, and numbers."""
        script = f"""(() => {{
          const plot = document.querySelector('#{id} .js-plotly-plot');
          if (!plot || !plot._fullData) return null;
          const flat = (v) => v === undefined || v === null ? [] : Array.from(v, (x) => x && x.length !== undefined
            && typeof x !== 'string' ? Array.from(x) : x);
          return plot._fullData.map((t) => ({{ type: t.type, name: t.name, x: flat(t.x), y: flat(t.y), z: flat(t.z),
            text: flat(t.text), customdata: flat(t.customdata) }}));
        }})()"""
        return self.ask(script)


def runs_of(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/journal.bin"))
