"""Make docs/img/lens.png, the README's figure, from a run: python docs/make_lens_picture.py RUN (needs Chromium).

The figure is the report's own, photographed in a browser.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import sotscope
from sotscope.analysis.page import page
from sotscope.bench.dashboard_browser import chromium

PICTURE = Path(__file__).parent / "img" / "lens.png"


def main(run: str) -> None:
    report = sotscope.analyze("lens", run, window=13)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        file = Path(folder) / "report.html"
        file.write_text(page("lens", "", {}, [report], []), encoding="utf-8")
        shown = browser.new_page(viewport={"width": 1040, "height": 900}, device_scale_factor=1.5)
        shown.goto(file.as_uri())
        figure = shown.locator("#lens-words")
        figure.scroll_into_view_if_needed()
        shown.wait_for_timeout(1500)
        figure.screenshot(path=PICTURE)


if __name__ == "__main__":
    main(sys.argv[1])
