"""Qwen3-MoE: Qwen3's attention, fused experts; some layers may be dense and have no router."""

from dataclasses import replace

from sotscope_hooks.families.mixtral import FAMILY as MIXTRAL
from sotscope_hooks.families.qwen3 import FAMILY as QWEN3

FAMILY = replace(
    MIXTRAL,
    name="qwen3_moe",
    model_types=("qwen3_moe",),
    doc="Qwen3's attention, mlp.gate (router), fused experts",
    roles={**MIXTRAL.roles, "query": QWEN3.roles["query"]},
)
