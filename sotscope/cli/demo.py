"""``sotscope demo``: two recordings that come with sotscope, on the live page; no torch, no model."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import typer

from sotscope.cli import dashboard as page
from sotscope.cli import options as shared
from sotscope.errors import StoreError

app = typer.Typer(add_completion=False)


@app.command(epilog=shared.examples("sotscope demo"))
def command(
    port: page.Port = None,
    host: page.Host = "127.0.0.1",
    no_browser: page.NoBrowser = False,
    base_path: page.BasePath = None,
    allow_host: page.AllowHost = None,
    token: page.Token = None,
) -> None:
    """Look at two small recordings on the live page: nothing to install, nothing to wait for."""
    with page.dashboard_extra("demo"):
        from sotscope_dashboards.library import Library
        from sotscope_dashboards.serve import check
    check(host, base_path, allow_host or (), token)
    with TemporaryDirectory(prefix="sotscope-demo-") as folder:
        _copy(Path(folder))
        library = Library(Path(folder))
        print("To watch a model yourself, get the small one first (100 MB): sotscope fetch; then: sotscope dashboard")
        page.open_page(
            library, None, library.entries()[0]["id"],
            port=port, host=host, open_browser=not no_browser, base_path=base_path, allow_hosts=allow_host or (),
            token=token,
        )  # fmt: skip


def _copy(folder: Path) -> None:
    """The recordings, where they may be deleted and nobody misses them."""
    import sotscope_dashboards

    runs = sorted((Path(sotscope_dashboards.__path__[0]) / "demo_runs").glob("*.sot"))
    if not runs:
        raise StoreError("this installation has no demo recordings; try: sotscope record, then sotscope dashboard")
    for run in runs:
        shutil.copytree(run, folder / run.name)
