"""The options of drafting: several tokens a step. Part of those of ``record``."""

from __future__ import annotations

from typing import Annotated

from sotscope.cli import options as shared
from sotscope.config import DecodeConfig

DRAFTING = "Drafting: several tokens a step"

_BY_DEFAULT = DecodeConfig()
_POLICY = "How drafts are judged: exact (default), or lossy: typical, none (they are believed)."
_GATE = (
    "When not to draft: warmup, periodic, perplexity, entropy, paragraph or mix_ratio, with parameters if wanted "
    "(entropy:threshold=2,rest=8); repeatable."
)

Window = Annotated[
    int | None,
    shared.option(DRAFTING, "Most tokens drafted a step; by default what the drafter can.", "--window", metavar="N"),
]
Drafter = Annotated[
    str | None,
    shared.option(
        DRAFTING, "A trained drafter's folder (sot, dmtd); a smaller model (draft).", "--drafter", metavar="PATH"
    ),
]
Combine = Annotated[
    str | None,
    shared.option(
        DRAFTING,
        f"Who drafts in mode combine, first asked first ({','.join(_BY_DEFAULT.combine)}).",
        "--combine",
        metavar="MODE,...",
        autocompletion=shared.complete_combine,
    ),
]
Policy = Annotated[
    str | None,
    shared.option(DRAFTING, _POLICY, "--policy", metavar="POLICY", autocompletion=shared.complete_policies),
]
TypicalEpsilon = Annotated[
    float | None,
    shared.option(
        DRAFTING,
        f"Policy typical takes a draft that is likelier than P ({_BY_DEFAULT.typical.epsilon}) ...",
        "--typical-epsilon",
        metavar="P",
    ),
]
TypicalAlpha = Annotated[
    float | None,
    shared.option(
        DRAFTING,
        f"... or likelier than A * exp(-entropy) ({_BY_DEFAULT.typical.alpha}).",
        "--typical-alpha",
        metavar="A",
    ),
]
Gates = Annotated[
    list[str] | None,
    shared.option(DRAFTING, _GATE, "--gate", metavar="GATE", autocompletion=shared.complete_gates),
]
Controller = Annotated[
    str | None,
    shared.option(
        DRAFTING,
        f"Who picks the window of each step: cost, lstm or none ({_BY_DEFAULT.controller}).",
        "--controller",
        metavar="NAME",
        autocompletion=shared.complete_controllers,
    ),
]
Guard = Annotated[
    bool | None,
    shared.option(DRAFTING, "Stop drafting for a while where it does not pay (on).", "--guard/--no-guard"),
]
DraftTemperature = Annotated[
    float | None,
    shared.option(
        DRAFTING,
        f"Above 1: a drafter that is less sure of itself ({_BY_DEFAULT.draft.temperature:g}).",
        "--draft-temperature",
        metavar="T",
    ),
]
Correction = Annotated[
    float | None,
    shared.option(
        DRAFTING,
        "Weight of past errors in predicted states: 0 (default) is none, 0.2-0.5 some.",
        "--correction",
        metavar="W",
    ),
]
DraftFloor = Annotated[
    float | None,
    shared.option(
        DRAFTING,
        f"Stop where all drafts so far are right with less than P ({_BY_DEFAULT.draft.floor}).",
        "--draft-floor",
        metavar="P",
    ),
]
DraftDtype = Annotated[
    str | None,
    shared.option(
        DRAFTING,
        "Number type the drafter runs in; by default what is fast on the device.",
        "--draft-dtype",
        metavar="DTYPE",
        autocompletion=shared.complete_dtypes,
    ),
]
DraftSample = Annotated[
    bool | None,
    shared.option(DRAFTING, "Where tokens are drawn, draw drafts, too; another text, as likely.", "--draft-sample"),
]
RecordPredicted = Annotated[
    bool | None, shared.option(DRAFTING, "Record the predicted states themselves.", "--record-predicted")
]
LookupWindow = Annotated[
    int | None,
    shared.option(
        DRAFTING, f"Lookup: most tokens it drafts ({_BY_DEFAULT.lookup.window}).", "--lookup-window", metavar="N"
    ),
]
LookupLongest = Annotated[
    int | None,
    shared.option(
        DRAFTING, f"Lookup: longest match it looks for ({_BY_DEFAULT.lookup.longest}).", "--lookup-longest", metavar="N"
    ),
]
LookupShortest = Annotated[
    int | None,
    shared.option(
        DRAFTING,
        f"Lookup: shortest match it believes ({_BY_DEFAULT.lookup.shortest}).",
        "--lookup-shortest",
        metavar="N",
    ),
]
