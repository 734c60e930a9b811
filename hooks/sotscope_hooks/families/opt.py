"""OPT: learned positions, no MLP module (fc1 and fc2 stand in the block), perhaps a projection before the head.

`query` is q_proj's output; OPT scales it by head_dim ** -0.5 afterwards. OPT-350m has no final norm.
"""

from sotscope.capture.contracts import Family

FAMILY = Family(
    name="opt",
    model_types=("opt",),
    doc="self_attn.{q,out}_proj, fc2; final may be narrower than resid (word_embed_proj_dim)",
    roles={
        "blocks": "layers",
        "final_norm": "final_layer_norm",
        "attn": "self_attn",
        "attn_out": "self_attn.out_proj",
        "query": "self_attn.q_proj",
        "mlp_out": "fc2",
        "mlp_act": "fc2",
    },
    unavailable={"router": "it is a dense model, without experts"},
)
