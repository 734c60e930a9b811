"""Phi-3 and Phi-4: Llama's names with one fused projection for q, k and v; the queries are its leading columns."""

from dataclasses import replace

from sotscope_hooks.families.llama import FAMILY as LLAMA

FAMILY = replace(
    LLAMA,
    name="phi3",
    model_types=("phi3",),
    doc="Llama's names, fused self_attn.qkv_proj",
    roles={**LLAMA.roles, "query": "self_attn.qkv_proj"},
)
