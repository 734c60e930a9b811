"""Site ``resid``."""

from sotscope.capture.contracts import Site

SITE = Site(
    name="resid",
    role="block",
    side="out",
    doc="The raw output of each block, before the final norm: the residual stream after the layer.",
    also=(
        "resid_post",
        "hook_resid_post",
        "residual",
        "block_out",
        "layer_output",
    ),
)
