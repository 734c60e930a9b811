"""``sotscope dashboard``: the live page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sotscope.cli import options as shared
from sotscope.cli.extra import hush
from sotscope.errors import SotscopeError, StoreError

if TYPE_CHECKING:
    from sotscope_dashboards.library import Library

app = typer.Typer(add_completion=False)

PACKAGES = ("dash", "dash_ag_grid", "flask", "waitress", "werkzeug")
SERVER = "Where it is served"

PlaceArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUNS_DIR|RUN",
        help="A folder of runs, or one run to open. Default: runs/.",
        show_default=False,
        autocompletion=shared.complete_runs,
    ),
]
Model = Annotated[
    str,
    shared.option(
        shared.MODEL,
        "What decodes: smollm2 (default), a folder, a .gguf file or a Hugging Face id.",
        "--model",
        "-m",
        metavar="MODEL",
        autocompletion=shared.complete_models,
    ),
]
Port = Annotated[
    int | None,
    shared.option(SERVER, "Port; by default the first free one from 8050 on.", "--port", min=0, max=65535, metavar="N"),
]
Host = Annotated[
    str, shared.option(SERVER, "Address to listen on; all but this machine's own need --token.", "--host", metavar="H")
]
NoBrowser = Annotated[bool, shared.option(SERVER, "Print the link only.", "--no-browser")]
BasePath = Annotated[
    str | None,
    shared.option(SERVER, "Path below which a proxy serves it, as the browser sees it.", "--base-path", metavar="PATH"),
]
AllowHost = Annotated[
    list[str] | None,
    shared.option(SERVER, "Another name that browsers may use for it; can be repeated.", "--allow-host", metavar="H"),
]
Token = Annotated[
    str | None,
    shared.option(
        SERVER,
        "A token of your own (16 characters or more) that stays valid; by default every link works once.",
        "--token",
        metavar="T",
        envvar="SOTSCOPE_TOKEN",
    ),
]


@app.command(
    epilog=shared.examples(
        "sotscope dashboard",
        "sotscope dashboard runs/sky.sot",
        "sotscope dashboard experiments/ --port 8123 --no-browser",
    )
)
def command(
    place: PlaceArgument = Path("runs"),
    model: Model = "smollm2",
    port: Port = None,
    host: Host = "127.0.0.1",
    no_browser: NoBrowser = False,
    base_path: BasePath = None,
    allow_host: AllowHost = None,
    token: Token = None,
) -> None:
    """Watch the states (activations) while a model writes, steer it, or look through runs, in a browser."""
    with dashboard_extra("dashboard"):
        from sotscope_dashboards.library import Library
        from sotscope_dashboards.serve import check
    check(host, base_path, allow_host or (), token)
    folder, run = _place(place)
    library = Library(folder)
    engine = _engine(folder, model)
    try:
        open_page(
            library, engine, library.id_of(run) if run is not None else "",
            port=port, host=host, open_browser=not no_browser, base_path=base_path, allow_hosts=allow_host or (),
            token=token,
        )  # fmt: skip
    finally:
        if engine is not None:
            engine.close()


def open_page(library: Library, engine: Any, initial_run: str, **where: Any) -> None:
    """Serve the page until Ctrl-C, which is an exit code of 130 as in every command."""
    with dashboard_extra("dashboard"):
        from sotscope_dashboards.app import make_app
        from sotscope_dashboards.serve import serve
    serve(make_app(library, engine, initial_run), out=_print, **where)
    raise typer.Exit(130)


@contextmanager
def dashboard_extra(command: str) -> Iterator[None]:
    """Around imports of the page: one line instead of an ImportError."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in PACKAGES:
            raise
        raise SotscopeError(f"{command} needs a few more packages: pip install 'sotscope[dashboard]'") from None


def _place(given: Path) -> tuple[Path, Path | None]:
    """The folder of runs, and the run that was asked for."""
    from sotscope.store.layout import JOURNAL, SUFFIX
    from sotscope.store.runs import DEFAULT_FOLDER

    if given == DEFAULT_FOLDER and not given.exists():
        return given, None
    if not given.is_dir():
        raise StoreError(f"{given} does not exist; give a folder of runs, or a run: sotscope dashboard runs/")
    if (given / JOURNAL).is_file() or given.suffix == SUFFIX:
        run = given.resolve()
        return run.parent, run
    return given, None


def _engine(folder: Path, model: str) -> Any:
    """What decodes; None where torch is not installed: then recorded runs are looked at."""
    if find_spec("torch") is None:
        return None
    from sotscope.live.client import Engine

    hush()
    engine = Engine(folder, model)
    engine.start()  # the model is loaded while the browser opens
    return engine


def _print(line: str) -> None:
    print(line, flush=True)
