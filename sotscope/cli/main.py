"""The entry point: which subcommands there are, each imported when it is called, and what becomes of errors."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperGroup

from sotscope import __version__
from sotscope.cli.terminal import say
from sotscope.errors import SotscopeError
from sotscope.registry import unknown

COMMANDS: dict[str, tuple[str, str]] = {
    "fetch": ("sotscope.cli.fetch", "Start"),
    "inspect": ("sotscope.cli.inspect", "Start"),
    "record": ("sotscope.cli.record", "Start"),
    "list": ("sotscope.cli.list", "Look"),
    "info": ("sotscope.cli.info", "Look"),
    "show": ("sotscope.cli.show", "Look"),
    "analyze": ("sotscope.cli.analyze", "Look"),
    "compare": ("sotscope.cli.compare", "Look"),
    "diagnose": ("sotscope.cli.diagnose", "Look"),
    "dashboard": ("sotscope.cli.dashboard", "Look"),
    "demo": ("sotscope.cli.demo", "Look"),
    "verify": ("sotscope.cli.verify", "Share"),
    "check": ("sotscope.cli.check", "Build"),
    "train": ("sotscope.cli.train", "Build"),
    "baseline": ("sotscope.cli.baseline", "Build"),
    "bench": ("sotscope.cli.bench", "Build"),
}
"""Subcommand to (module, panel of --help); the module's ``app`` is the command."""

WELCOME = f"""\
sotscope {__version__} records what a language model computes while it writes.

Start here:
  sotscope fetch                             get the small model that comes with it, once
  sotscope record "Why is the sky blue?"     let it answer, and record its hidden states
  sotscope list                              the runs there are
  sotscope show RUN                          one of them, token by token
  sotscope dashboard                         all of it live in a browser (no model yet? sotscope demo)

sotscope --help lists everything; sotscope COMMAND --help explains one command, with examples."""

DISK_ERRORS = (
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EFBIG, errno.EMFILE,
)  # fmt: skip
"""What the machine refuses is not a fault of the program: one line, no traceback."""


class LazyGroup(TyperGroup):
    """A group that knows its commands by name, and imports one when it is called or listed by --help."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module, panel = COMMANDS[cmd_name]
        command: Any = typer.main.get_command(import_module(module).app)
        command.name, command.rich_help_panel = cmd_name, panel
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise SotscopeError(unknown("command", args[0], list(COMMANDS)))
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=LazyGroup,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog='Example:\n  sotscope record "Why is the sky blue?"',
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"sotscope {__version__}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Record, inspect and read the hidden states (activations) of a causal language model while it decodes."""
    if ctx.invoked_subcommand is None:
        print(WELCOME)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. Only what nobody expected leaves it as an exception."""
    try:
        code = typer.main.get_command(app).main(
            None if arguments is None else list(arguments), prog_name="sotscope", standalone_mode=False
        )
        sys.stdout.flush()
    except SotscopeError as error:
        say(str(error))
        return 2
    except typer.TyperException as error:
        return _usage(error)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:
        _let_go_of_stdout()
        return 1
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        say(f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror))
        return 1
    return code if isinstance(code, int) else 0


def _usage(error: Any) -> int:
    """One short line for a wrong option or argument, and where to read on."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "sotscope"
    say(f"{error.format_message().rstrip('.')}; see: {path} --help")
    return int(error.exit_code)


def _let_go_of_stdout() -> None:
    """Nobody reads any more (``| head``): what is still buffered must not be tried again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """What the ``sotscope`` script calls."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    sys.exit(run())


if __name__ == "__main__":
    main()
