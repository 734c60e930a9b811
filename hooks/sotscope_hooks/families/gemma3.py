"""Gemma 3: Llama's names with a norm on each query head, which sees heads before tokens."""

from dataclasses import replace

from torch import Tensor

from sotscope.capture.contracts import Geometry
from sotscope_hooks.families.llama import FAMILY as LLAMA


def read_query(output: Tensor, geometry: Geometry) -> Tensor:
    """q_norm's output [1, head, token, head_dim] as [token, head * head_dim]."""
    return output[0].transpose(0, 1).flatten(1)


FAMILY = replace(
    LLAMA,
    name="gemma3",
    model_types=("gemma3", "gemma3_text"),
    doc="Llama's names, q_norm on each head [head, token, head_dim]",
    roles={**LLAMA.roles, "query": "self_attn.q_norm"},
    read_query=read_query,
)
