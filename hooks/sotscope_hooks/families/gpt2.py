"""GPT-2: Conv1D projections, one fused c_attn whose leading columns are the queries, learned positions."""

from sotscope.capture.contracts import Family

FAMILY = Family(
    name="gpt2",
    model_types=("gpt2",),
    doc="attn.c_attn (fused), attn.c_proj, mlp.c_proj; positions are in embed",
    roles={
        "blocks": "h",
        "final_norm": "ln_f",
        "attn": "attn",
        "attn_out": "attn.c_proj",
        "query": "attn.c_attn",
        "mlp_out": "mlp.c_proj",
        "mlp_act": "mlp.c_proj",
    },
    unavailable={"router": "it is a dense model, without experts"},
)
