"""Site ``final``."""

from sotscope.capture.contracts import Site

SITE = Site(
    name="final",
    role="decoder",
    side="out",
    per_layer=False,
    doc="The input of the lm_head: after the final norm (and the output projection, where there is one).",
    also=(
        "ln_final",
        "ln_final.hook_normalized",
        "last_hidden_state",
        "final_norm",
        "hook_normalized",
    ),
)
