"""Mamba: no attention, no MLP; a block is one mixer. Its recurrent cache cannot be rolled back."""

from sotscope.capture.contracts import Family

NONE = "a Mamba block is one mixer: it has no attention and no MLP"

FAMILY = Family(
    name="mamba",
    model_types=("mamba", "falcon_mamba", "mamba2"),
    doc="layers.N.mixer; embed, resid and final only",
    roles={"blocks": "layers", "final_norm": "norm_f"},
    unavailable=dict.fromkeys(("attn_out", "mlp_out", "mlp_act", "head_out", "query", "router", "attn"), NONE),
    hidden_states_of_block_0=0,
)
