"""GPT-NeoX and Pythia: q, k and v fused and interleaved per head."""

from torch import Tensor

from sotscope.capture.contracts import Family, Geometry


def read_query(output: Tensor, geometry: Geometry) -> Tensor:
    """query_key_value's output [1, token, head * 3 * head_dim] as [token, head * head_dim]."""
    heads = output[0].view(output.shape[1], geometry.heads, 3 * geometry.head_dim)
    return heads[..., : geometry.head_dim].flatten(1)


FAMILY = Family(
    name="gpt_neox",
    model_types=("gpt_neox",),
    doc="attention.query_key_value (interleaved per head), attention.dense, mlp.dense_4h_to_h",
    roles={
        "blocks": "layers",
        "final_norm": "final_layer_norm",
        "attn": "attention",
        "attn_out": "attention.dense",
        "query": "attention.query_key_value",
        "mlp_out": "mlp.dense_4h_to_h",
        "mlp_act": "mlp.dense_4h_to_h",
    },
    unavailable={"router": "it is a dense model, without experts"},
    read_query=read_query,
)
