"""Options that several commands share, and how the shell completes them. Nothing here imports a heavy library."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from sotscope.catalog import DRAFTERS, GATES, INTERVENTIONS, MONITORS, RECOVERIES, SITES
from sotscope.errors import ConfigError
from sotscope.events import POLICIES

MODEL = "Model"
"""Title of the options that say how a model is loaded."""


def examples(*lines: str) -> str:
    """The epilog of a command: what to type."""
    title = "Example:" if len(lines) == 1 else "Examples:"
    return "\n".join([title, *(f"  {line}" for line in lines)]).replace("[", r"\[")


def option(panel: str, text: str, *names: str, **more: Any) -> Any:
    """An option that is None when it is not given, so that another setting can stand."""
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=False, **more)


def complete_runs(incomplete: str) -> list[str]:
    """Runs in the folder that is being typed, and in ``runs/``."""
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    found = [*folder.glob("*.sot"), *Path("runs").glob("*.sot")]
    return sorted({str(path) for path in found if str(path).startswith(incomplete)})


def complete_sites(incomplete: str) -> list[str]:
    return last_of(incomplete, ["all", "none", *SITES.names()])


def last_of(incomplete: str, names: list[str]) -> list[str]:
    """Ways to go on with the last of a comma list."""
    before, comma, _ = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in names]


def complete_modes() -> list[str]:
    return DRAFTERS.names()


def complete_combine(incomplete: str) -> list[str]:
    return last_of(incomplete, [name for name in DRAFTERS.names() if name not in ("ar", "forced", "combine")])


def complete_policies() -> list[str]:
    return list(POLICIES)


def complete_gates() -> list[str]:
    """All but the one that is always on."""
    return [name for name in GATES.names() if name != "context"]


def complete_monitors() -> list[str]:
    return MONITORS.names()


def complete_interventions() -> list[str]:
    return INTERVENTIONS.names()


def complete_recoveries() -> list[str]:
    return RECOVERIES.names()


def complete_controllers() -> list[str]:
    return ["cost", "lstm", "none"]


def complete_layers() -> list[str]:
    return ["all", "first", "last"]


def complete_dtypes() -> list[str]:
    return ["float32", "bfloat16", "float16"]


def complete_models() -> list[str]:
    """The embedded model, and model folders right here."""
    return ["smollm2", *(str(path.parent) for path in Path().glob("*/config.json")), *map(str, Path().glob("*.gguf"))]


def parse_bytes(text: str) -> int:
    """``20GB``, ``500 MB``, ``1.5e9``: a number of bytes. Raises ConfigError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*(?:([kmgt])(i?))?b?\s*", text.lower())
    if not match:
        raise ConfigError(f"--max-bytes {text!r} is not a size; write 20GB, 500MB or a number of bytes.")
    power = "kmgt".index(match[2]) + 1 if match[2] else 0
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


RunArgument = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="A run: the folder NAME.sot.", show_default=False, autocompletion=complete_runs),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")]
Dtype = Annotated[
    str | None,
    option(
        MODEL,
        "Number type the model runs in: float32, bfloat16 or float16; by default as it is stored.",
        "--dtype",
        metavar="DTYPE",
        autocompletion=complete_dtypes,
    ),
]
Device = Annotated[
    str | None,
    option(MODEL, "cpu, cuda, cuda:1 ...", "--device", metavar="DEVICE", autocompletion=lambda: ["cpu", "cuda"]),
]
DeviceMap = Annotated[
    str | None, option(MODEL, "Spread it over devices as transformers does: auto.", "--device-map", metavar="MAP")
]
AttnImplementation = Annotated[
    str | None,
    option(
        MODEL,
        "How attention is computed: sdpa (fast) or eager (needed for attention weights).",
        "--attn-implementation",
        metavar="NAME",
        autocompletion=lambda: ["sdpa", "eager"],
    ),
]
