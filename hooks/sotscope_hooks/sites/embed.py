"""Site ``embed``."""

from sotscope.capture.contracts import Site

SITE = Site(
    name="embed",
    role="block",
    side="in",
    per_layer=False,
    doc="The input of block 0: what the residual stream starts with, positions and scaling included.",
    also=(
        "hook_embed",
        "inputs_embeds",
    ),
)
