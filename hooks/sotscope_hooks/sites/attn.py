"""Site ``attn``."""

from sotscope.capture.contracts import Site

SITE = Site(
    name="attn",
    role="attn",
    side="weights",
    shape="keys",
    doc="Attention weights of each head over all earlier tokens; chosen with --attn-layers, eager attention only.",
    also=(
        "hook_pattern",
        "pattern",
        "attn.hook_pattern",
        "attentions",
        "attn_weights",
    ),
)
