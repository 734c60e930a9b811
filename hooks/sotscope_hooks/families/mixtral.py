"""Mixtral: Llama's attention, fused experts."""

from dataclasses import replace

from sotscope_hooks.families.llama import FAMILY as LLAMA

FUSED = "the experts' weights are fused into one parameter; there is no module whose input could be tapped"

FAMILY = replace(
    LLAMA,
    name="mixtral",
    model_types=("mixtral",),
    doc="Llama's attention, mlp.gate (router), fused experts",
    roles={**LLAMA.roles, "mlp_out": "mlp", "router": "mlp.gate"},
    unavailable={"mlp_act": FUSED},
)
