"""Debian's Chromium without a screen, and a tab in it that notes when what was painted."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sotscope.bench.dashboard_server import MB
from sotscope.errors import LiveError, SotscopeError

NAMES = ("chromium", "chromium-browser", "google-chrome")
WAIT_S = 120.0
LOOK_S = 0.05
MISSING = "this drives a browser: pip install playwright, and install Chromium (Debian: apt-get install chromium)."
NOTES = """
(() => {
  const noted = window.noted = { tokens: {}, first: 0, heatmap: 0, clicks: [] };
  const now = () => performance.timeOrigin + performance.now();
  // after the frame in which it is drawn: what is posted in a frame's callback comes when the frame is done
  const painted = (done) => requestAnimationFrame(() => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => done(now());
    port2.postMessage(0);
  });
  const fresh = (changes) => {
    const run = window.sotscope.state.run, known = noted.tokens[run] = noted.tokens[run] || {}, added = [];
    for (const change of changes) for (const node of change.addedNodes) {
      const at = node.dataset && node.dataset.at;
      if (at !== undefined && !(at in known)) { known[at] = 0; added.push(at); }
    }
    if (added.length) painted((at) => {
      noted.first = noted.first || at;
      for (const one of added) known[one] = at;
    });
  };
  const begin = () => {
    const text = document.getElementById("text");
    if (!text) return requestAnimationFrame(begin);
    new MutationObserver(fresh).observe(text, { childList: true });
    const plot = () => {
      const cells = document.querySelector("#graph-states .heatmaplayer image");
      if (cells && cells.href.baseVal) return painted((at) => { noted.heatmap = at; });
      if (location.search.includes("view=full")) setTimeout(plot, 10);
    };
    plot();
  };
  requestAnimationFrame(begin);
  document.addEventListener("click", (event) => noted.clicks.push(performance.timeOrigin + event.timeStamp), true);
})();
"""
"""What a tab runs before the page's own scripts."""


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser. Raises SotscopeError where there is none, or nothing to drive it with."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise SotscopeError(MISSING) from None
    if path is None:
        raise SotscopeError(MISSING)
    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=path,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"],
        )
        yield browser
        browser.close()


class Tab:
    """A tab of its own browser context (nothing cached, no cookie); use as a context manager."""

    def __init__(self, browser: Any, link: str) -> None:
        self._context = browser.new_context(viewport={"width": 1280, "height": 860})
        self.page = self._context.new_page()
        self.page.set_default_timeout(1000 * WAIT_S)
        self.page.add_init_script(NOTES)
        self.page.goto(link, wait_until="commit")

    def ask(self, expression: str) -> Any:
        return self.page.evaluate(expression)

    def until(self, condition: str) -> None:
        """Wait until ``condition`` (JavaScript) holds. Raises LiveError when that takes too long."""
        end = time.monotonic() + WAIT_S
        while not self.ask(f"Boolean({condition})"):  # the page's policy forbids playwright's own way, an eval
            if time.monotonic() > end:
                raise LiveError(f"the page has waited {WAIT_S:.0f} s for: {condition}")
            time.sleep(LOOK_S)

    def ready(self) -> None:
        """The page is there and has shown what the server said, more than once."""
        self.until("window.sotscope && window.sotscope.seen > 2")

    def command(self, command: dict[str, Any]) -> str:
        """Send a command as this tab, which takes over first; returns the refusal, mostly empty."""
        script = """async (command) => {
          const send = (command) => window.sotscope.post("command", { tab: window.sotscope.tab, command });
          await send({ kind: "take" });
          return (await send(command)).error;
        }"""
        return str(self.page.evaluate(script, command))

    def painted(self) -> dict[int, float]:
        """When each token of the run that is shown was painted, ms since 1970."""
        found = json.loads(self.ask("JSON.stringify(noted.tokens[sotscope.state.run] || {})"))
        return {int(at): time for at, time in found.items() if time}

    def heap_mb(self) -> float:
        """Megabytes (2^20) of objects that JavaScript still needs."""
        session = self._context.new_cdp_session(self.page)
        session.send("Performance.enable")
        for _ in range(2):  # what is found unreachable in the first frees more in the second
            session.send("HeapProfiler.collectGarbage")
        metrics = {entry["name"]: entry["value"] for entry in session.send("Performance.getMetrics")["metrics"]}
        session.detach()
        return float(metrics["JSHeapUsedSize"] / MB)

    def close(self) -> None:
        self._context.close()

    def __enter__(self) -> Tab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
