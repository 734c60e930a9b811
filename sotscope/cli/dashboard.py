"""``sotscope dashboard``: not there yet."""

from __future__ import annotations

import typer

from sotscope.cli import options as shared
from sotscope.errors import SotscopeError

app = typer.Typer(add_completion=False)


@app.command(
    epilog=shared.examples("sotscope show runs/sky.sot"),
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def command() -> None:
    """Not in this version yet; use show, or open_run in a notebook."""
    raise SotscopeError("there is no dashboard in this version yet; use sotscope show RUN, or open_run in a notebook.")
