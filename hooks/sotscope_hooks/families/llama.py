"""Llama and the many models that kept its names: SmolLM, Mistral, Qwen2, Gemma 1 and 2, Granite."""

from sotscope.capture.contracts import Family

FAMILY = Family(
    name="llama",
    model_types=(
        "llama",
        "mistral",
        "qwen2",
        "gemma",
        "gemma2",
        "smollm3",
        "granite",
    ),
    doc="self_attn.{q,o}_proj, mlp.down_proj, separate q, k and v",
    roles={
        "blocks": "layers",
        "final_norm": "norm",
        "attn": "self_attn",
        "attn_out": "self_attn.o_proj",
        "query": "self_attn.q_proj",
        "mlp_out": "mlp.down_proj",
        "mlp_act": "mlp.down_proj",
    },
    unavailable={"router": "it is a dense model, without experts"},
)
