"""Site ``mlp_out``."""

from sotscope.capture.contracts import Site

SITE = Site(
    name="mlp_out",
    role="mlp_out",
    side="out",
    doc="What the MLP (or the mixture of experts) of each block gives out, before any norm that follows it.",
    also=(
        "hook_mlp_out",
        "mlp_output",
        "ffn_out",
    ),
)
