"""Site ``head_out``."""

from sotscope.capture.contracts import Site

SITE = Site(
    name="head_out",
    role="attn_out",
    side="in",
    shape="heads",
    doc="The output of each attention head, as it enters the attention's output projection.",
    also=(
        "hook_z",
        "z",
        "attn.hook_z",
        "head_output",
    ),
)
