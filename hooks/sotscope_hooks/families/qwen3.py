"""Qwen3: Llama's names with a norm on each query head; `query` is that norm's output."""

from dataclasses import replace

from sotscope_hooks.families.llama import FAMILY as LLAMA

FAMILY = replace(
    LLAMA,
    name="qwen3",
    model_types=("qwen3",),
    doc="Llama's names, q_norm on each head [token, head, head_dim]",
    roles={**LLAMA.roles, "query": "self_attn.q_norm"},
)
