"""The options of health: what is watched while the model writes, and what is done when it goes wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from sotscope.cli import options as shared
from sotscope.config import HealthConfig

HEALTH = "Health: notice that it goes wrong, and recover"

_BY_DEFAULT = HealthConfig()
_MONITORS = (
    "Watch with this one: non_finite, norms, collapse, repetition, entropy, perplexity, heads, lag or loop_risk, with "
    "parameters if wanted (repetition:tokens=48); repeatable."
)
_RECOVER = (
    "What to do about an alarm: rollback (retract the text from where it began and go on otherwise), refresh, rescale, "
    "plain or stop, with parameters if wanted (rollback:hold=96); repeatable, the first is tried first."
)

Monitor = Annotated[
    bool | None, shared.option(HEALTH, "Watch with every monitor: loops, norms, collapse, NaN ...", "--monitor")
]
Monitors = Annotated[
    list[str] | None,
    shared.option(HEALTH, _MONITORS, "--monitors", metavar="MONITOR", autocompletion=shared.complete_monitors),
]
Baseline = Annotated[
    Path | None,
    shared.option(HEALTH, "What is normal for the model, from sotscope baseline.", "--baseline", metavar="FILE"),
]
Recover = Annotated[
    list[str] | None,
    shared.option(HEALTH, _RECOVER, "--recover", metavar="RECOVERY", autocompletion=shared.complete_recoveries),
]
RecoverOn = Annotated[
    str | None,
    shared.option(
        HEALTH,
        f"Which monitors' alarms are recovered from ({','.join(_BY_DEFAULT.recover_on)}).",
        "--recover-on",
        metavar="MONITOR,...",
        autocompletion=shared.complete_monitors,
    ),
]
Attempts = Annotated[
    int | None,
    shared.option(HEALTH, f"How often each recovery is tried ({_BY_DEFAULT.attempts}).", "--attempts", metavar="N"),
]

INTERVENE = "Interventions: change states on purpose"
_INTERVENE = (
    "Change states while the model writes: prune, interpolate, rescale, steer, transfer, temperature, skip or freeze, "
    "with site, layers, tokens, strength and their own options (prune:layers=10-20,k=3); repeatable, in this order."
)

Intervene = Annotated[
    list[str] | None,
    shared.option(
        INTERVENE, _INTERVENE, "--intervene", metavar="KIND:...", autocompletion=shared.complete_interventions
    ),
]
Measure = Annotated[
    bool | None,
    shared.option(
        INTERVENE, "Measure at every step what they do to it, by one more forward without them.", "--measure"
    ),
]
