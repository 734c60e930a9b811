"""Write docs/reference.md from the code: commands from their --help, the rest from docstrings and catalogs."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import sotscope
from sotscope import config
from sotscope.capture import layers
from sotscope.catalog import (
    ANALYZERS,
    DRAFTERS,
    FAMILIES,
    GATES,
    INTERVENTIONS,
    MONITORS,
    PREDICTORS,
    RECOVERIES,
    SITES,
)
from sotscope.live.commands import BranchAt, Pace, Pause, Resume, Set, Start, StepOnce, Stop, _Command
from sotscope.store import layout, tokens
from sotscope_dashboards.catalog import PANELS

PAGE = Path(__file__).parent / "reference.md"


def first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").split("\n\n")[0].replace("\n", " ")


def signature(function: Callable[..., object]) -> str:
    """Parameters with their defaults; types are in the docstrings, as shapes and units."""
    words: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        star = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        default = parameter.default
        shown = "" if default is parameter.empty or callable(default) else f"={default!r}"
        words.append(f"{star}{parameter.name}{shown}")
    return f"({', '.join(words)})"


def callables() -> list[str]:
    out = ["## Python", ""]
    for name in ("load", "record", "open_run", "analyze", "diagnose"):
        out += [
            f"### `sotscope.{name}{signature(getattr(sotscope, name))}`",
            "",
            inspect.getdoc(getattr(sotscope, name)) or "",
            "",
        ]
    for title, cls in (("Run", sotscope.Run), ("Tokens", tokens.Tokens), ("Snapshot", sotscope.Snapshot)):
        out += [f"### {title}", "", inspect.getdoc(cls) or "", ""]
        for name, member in vars(cls).items():
            if name.startswith("_"):
                continue
            if isinstance(member, property) and member.__doc__:
                out.append(f"- `{name}`: {first_line(member)}")
            elif inspect.isfunction(member):
                out.append(f"- `{name}{signature(member)}`: {first_line(member)}")
        out.append("")
    return out


def catalogs() -> list[str]:
    out = ["## Sites", "", "| site | what it is | other names |", "|---|---|---|"]
    out += [f"| `{n}` | {SITES.get(n).doc} | {', '.join(f'`{a}`' for a in SITES.get(n).also)} |" for n in SITES.names()]
    out += [
        "",
        f"Layers are written as {layers.SYNTAX}.",
        "",
        "## Families",
        "",
        "| family | model types | parts | not available |",
    ]
    out.append("|---|---|---|---|")
    for name in FAMILIES.names():
        family = FAMILIES.get(name)
        missing = "; ".join(f"`{site}`: {why}" for site, why in family.unavailable.items())
        out.append(f"| {name} | {', '.join(family.model_types)} | {family.doc} | {missing} |")
    out += ["", "## Modes, gates and predictors", ""]
    out += [f"- mode {first_line(inspect.getmodule(DRAFTERS.get(name)))}" for name in DRAFTERS.names()]
    out += [f"- gate `{name}`: {first_line(GATES.get(name))}" for name in GATES.names()]
    modules = dict.fromkeys(inspect.getmodule(PREDICTORS.get(name)) for name in PREDICTORS.names())
    out += [f"- predictor {first_line(module)}" for module in modules]
    return [*out, "", *health(), "", *analyzers(), "", *panels(), ""]


def health() -> list[str]:
    """Monitors, recoveries and interventions, with their parameters as the command line takes them."""
    out: list[str] = []
    for title, registry, supplied in (
        ("Monitors", MONITORS, "subject"), ("Recoveries", RECOVERIES, ""), ("Interventions", INTERVENTIONS, "place"),
    ):  # fmt: skip
        out += [f"## {title}", ""]
        for name in registry.names():
            given = inspect.signature(registry.get(name)).parameters.values()
            options = [f"`{p.name}={p.default}`" for p in given if p.name != supplied]
            out.append(f"- **{name}** ({', '.join(options) or 'no parameters'}): {first_line(registry.get(name))}")
        out.append("")
    return out


def panels() -> list[str]:
    """What each panel of the page says of itself behind its `?`."""
    out = ["## Panels of the live page", "", "| panel | shows | look for | does not mean |", "|---|---|---|---|"]
    found = [PANELS.get(name) for name in PANELS.names()]
    return out + [f"| {p.title} (`{p.name}`) | {p.shows} | {p.look_for} | {p.not_meant} |" for p in found]


def commands() -> list[str]:
    """What an engine can be told."""
    out = ["## Commands of the engine", "", '`sotscope.live.client.Engine(folder).send({"kind": ..., ...})`.', ""]
    for cls in (Start, Pause, Resume, StepOnce, Stop, Set, Pace, BranchAt):
        fields = [f"`{name}`" for name in cls.model_fields if name not in ("id", "kind")]
        about = first_line(cls) if cls.__doc__ and cls.__doc__ != _Command.__doc__ else ""
        out.append(f"- `{cls.model_fields['kind'].default}` {', '.join(fields)}: {about}".rstrip(": "))
    return [*out, ""]


def analyzers() -> list[str]:
    """What each says of itself, what it needs, and its parameters."""
    out = ["## Analyzers", "", "`sotscope.analyze(NAME, run, PARAM=...)`, or `--set NAME.PARAM=VALUE`.", ""]
    for name in ANALYZERS.names():
        cls = ANALYZERS.get(name)
        needs = " and ".join([*cls.sites, *(["one of " + ", ".join(cls.any_site)] if cls.any_site else [])])
        out += [f"### {first_line(inspect.getmodule(cls))}", "", *([f"Needs {needs}.", ""] if needs else [])]
        out += [f"- `{key}` = `{field.get_default(call_default_factory=True)!r}`: {meaning}".rstrip(": ")
                for key, field in cls.Params.model_fields.items()
                for meaning in [_meanings(cls.Params).get(key, "")]]  # fmt: skip
        out.append("")
    return out


def _meanings(model: type) -> dict[str, str]:
    """The docstring that stands under each field."""
    found: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        if not cls.__module__.startswith("sotscope"):
            continue
        [defined] = ast.parse(inspect.getsource(cls).lstrip()).body
        assert isinstance(defined, ast.ClassDef)
        for field, text in pairwise(defined.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                found[ast.unparse(field.target)] = " ".join(str(ast.literal_eval(text.value)).split())
    return found


def settings() -> list[str]:
    out = ["## Settings", "", "The keys of a `--config` file. `record()` takes those of `decode` as keywords.", ""]
    for part in ("model", "input", "capture", "decode", "health"):
        cls = config.RunConfig.model_fields[part].annotation
        assert cls is not None
        out += [f"### {part}", "", first_line(cls), "", "| key | default |", "|---|---|"]
        for name, field in cls.model_fields.items():
            default = field.get_default(call_default_factory=True)
            out.append(f"| `{name}` | `{default!r}` |")
        out.append("")
    return out


def store() -> list[str]:
    out = ["## Codes in the store", ""]
    for kind, words in layout.CODES.items():
        out.append(f"- {kind}: " + ", ".join(f"{code} {word}" for code, word in enumerate(words)))
    return [*out, ""]


def page() -> str:
    head = [
        "# Reference",
        "",
        "Made from the code by `make docs`; a test keeps it true. Commands: `sotscope COMMAND --help`.",
        "",
    ]
    return "\n".join([*head, *callables(), *catalogs(), *commands(), *settings(), *store()])


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE}", file=sys.stderr)
