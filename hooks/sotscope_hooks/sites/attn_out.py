"""Site ``attn_out``."""

from sotscope.capture.contracts import Site

SITE = Site(
    name="attn_out",
    role="attn_out",
    side="out",
    doc="What the attention of each block adds to the residual stream (after its output projection).",
    also=(
        "hook_attn_out",
        "attention_output",
        "attn_output",
    ),
)
