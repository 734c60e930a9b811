"""Make docs/img/lens.png, the README's figure, from a run: python docs/make_lens_picture.py RUN (needs Chromium).

The figure is the report's own, photographed in a browser.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import sotscope
from sotscope.analysis.page import page

PICTURE = Path(__file__).parent / "img" / "lens.png"
CHROMIUM = "/usr/bin/chromium"


def main(run: str) -> None:
    report = sotscope.analyze("lens", run, window=13)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as browsers:
        file = Path(folder) / "report.html"
        file.write_text(page("lens", "", {}, [report], []), encoding="utf-8")
        browser = browsers.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": 1040, "height": 900}, device_scale_factor=1.5)
        shown.goto(file.as_uri())
        figure = shown.locator("#lens-words")
        figure.scroll_into_view_if_needed()
        shown.wait_for_timeout(1500)
        figure.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])
