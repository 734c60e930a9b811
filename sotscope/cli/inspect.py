"""``sotscope inspect``: what a model allows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from sotscope.cli import options as shared
from sotscope.cli.extra import capture_extra
from sotscope.cli.record_options import Layers
from sotscope.cli.settings import check_sites
from sotscope.cli.terminal import count, facts, heading, human, notes, output, print_json, printable, table
from sotscope.cli.watch import Spinner
from sotscope.plain import plain

if TYPE_CHECKING:
    from sotscope.capture.inspect import Inspection, SiteFacts

app = typer.Typer(add_completion=False)

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="smollm2 (default), a folder, a .gguf file or a Hugging Face id.",
        show_default=False,
        autocompletion=shared.complete_models,
    ),
]
Sites = Annotated[
    list[str] | None,
    typer.Option(
        "--sites",
        "-s",
        help="Sites to add up: resid (default), head_out, all ...",
        metavar="SITE,...",
        show_default=False,
        autocompletion=shared.complete_sites,
    ),
]


@app.command(
    epilog=shared.examples(
        "sotscope inspect", "sotscope inspect ./my-model --sites resid,head_out", "sotscope inspect smollm2 --json"
    )
)
def command(
    model: ModelArgument = "smollm2",
    sites: Sites = None,
    layers: Layers = None,
    dtype: shared.Dtype = None,
    device: shared.Device = None,
    attn_implementation: shared.AttnImplementation = None,
    as_json: shared.JsonFlag = False,
) -> None:
    """What a model is and what of it can be recorded, with what that costs."""
    wanted = [name.strip() for part in sites or ["resid"] for name in part.split(",")]
    with Spinner(notes()) as spinner:
        with capture_extra("inspect"):
            from sotscope.capture.inspect import inspect
            from sotscope.models.load import load
        check_sites(wanted)
        loaded = load(model, dtype=dtype, device=device, attn_implementation=attn_implementation, report=spinner.report)
        spinner.report("looking at it")
        found = inspect(loaded.model, quantisation=loaded.quantisation)
        cost = _cost(loaded.model, wanted, layers or "all")
    if as_json:
        listed = [{**plain(site), "available": site.available} for site in found.sites]
        print_json({"model": model, "origin": loaded.origin, **plain(found), "sites": listed, "cost": cost})
    else:
        _print(model, loaded.origin, found, cost)


def _cost(model: Any, sites: list[str], layers: str) -> dict[str, Any]:
    """Bytes that 1,000 tokens of ``sites`` take on disk (with the always-on numbers), and as float32 in memory."""
    import math

    from sotscope.capture.inspect import PROBE_IDS
    from sotscope.capture.plan import make_plan
    from sotscope.config import RunConfig
    from sotscope.preparation import probe_spec
    from sotscope.store.forecast import Forecast

    spec = probe_spec(make_plan(model, sites, layers), PROBE_IDS, RunConfig(), 0)
    values = sum(math.prod(site.row) for site in spec.sites)
    return {
        "sites": [site.name for site in spec.sites],
        "layers": len(spec.layers),
        "disk_per_1000": Forecast.of(spec, 1000).bytes,
        "memory_per_1000": 4000 * values,
    }


def _print(name: str, origin: str, found: Inspection, cost: dict[str, Any]) -> None:
    console = output()
    console.print(Text(printable(name), style="bold"))
    console.print(facts(_model(origin, found)))
    console.print(heading("Sites (hook points)"))
    elsewhere = "known elsewhere as"
    made = table("site", "states of a token", "1,000 tokens", elsewhere, right=("1,000 tokens",), wraps=elsewhere)
    for site in found.sites:
        if site.available:
            size = human(site.disk_per_1000)
            made.add_row(site.name, _shape(site), size, Text(", ".join(site.also[:4]), style="dim"))
    console.print(made)
    console.print()
    for site in found.sites:
        if not site.available:
            console.print(Text(f"{site.name}: no; {site.reason}", style="dim"))
    names = ", ".join(cost["sites"]) or "no sites"
    console.print(
        f"\n1,000 tokens of {names} ({count(cost['layers'], 'layer')}): {human(cost['disk_per_1000'])} on disk, "
        f"with the numbers that are always kept; {human(cost['memory_per_1000'])} in memory as float32."
    )


def _shape(site: SiteFacts) -> str:
    """``30 layers × 9 heads × 64``."""
    words = {"layer": " layers", "head": " heads", "key": " keys"}
    return " × ".join(f"{size}{words.get(dim, '')}" for size, dim in zip(site.row, site.dims, strict=True))


def _model(origin: str, found: Inspection) -> dict[str, Any]:
    heads = f"{found.heads}, {found.kv_heads} for keys and values, {found.head_dim} wide" if found.heads else "none"
    cache = (
        "can roll back, so drafts can be refused" if found.croppable else "cannot roll back: modes ar and forced only"
    )
    return {
        "origin": origin,
        "family": f"{found.family} ({found.family_doc})",
        "parameters": f"{found.parameters:,} in {found.dtype}",
        "quantisation": found.quantisation,
        "layers": f"{found.layers}, {found.hidden} wide",
        "heads": heads,
        "attention": found.attention,
        "positions": found.positions,
        "context": f"{found.context:,} tokens" if found.context else "no limit",
        "norm": found.norm,
        "vocabulary": f"{found.vocabulary:,}",
        "head": {True: "tied to the embedding", False: "its own weights", None: "none"}[found.tied_head],
        "cache": cache,
    }
