"""Make the README's pictures of the live page: python docs/make_dashboard_pictures.py (needs Chromium and the model).

A real engine writes a real answer: 30 tokens of ar, 30 of sot, the rest of dmtd.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from dashboard_helpers import Page, Server, chromium  # noqa: E402

IMAGES = ROOT / "docs" / "img"
PROMPT = "Explain how a rainbow is made."
SWITCHES = ((66, "sot"), (96, "dmtd"))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        server = Server(folder, "--model", "smollm2", "--token", "pictures-of-the-page")
        page = Page(browser, server.link, width=1280, height=940)
        page.start(prompt=PROMPT, max_new_tokens=96, delay=30)
        page.page.click("#view")
        for tokens, mode in SWITCHES:
            page.until(lambda tokens=tokens: page.answer().get("total", 0) >= tokens, "tokens", 60)
            page.page.click(f"[data-mode={mode}]")
        page.until(lambda: page.engine() == "ended", "the end", 120)
        page.page.click("#refused")
        page.page.click(f"#text .token[data-at='{page.answer()['total'] - 24}']")
        page.page.wait_for_timeout(1500)
        page.page.screenshot(path=str(IMAGES / "live.png"))
        page.ask("window.sotscope.setTheme('dark')")
        page.page.click("#view")
        page.page.wait_for_timeout(1500)
        page.page.screenshot(path=str(IMAGES / "live-simple.png"))
        page.close()
        server.stop()


if __name__ == "__main__":
    main()
