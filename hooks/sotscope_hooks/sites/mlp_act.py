"""Site ``mlp_act``."""

from sotscope.capture.contracts import Site

SITE = Site(
    name="mlp_act",
    role="mlp_act",
    side="in",
    doc="The input of the MLP's down projection: its neurons after the activation.",
    also=(
        "hook_post",
        "mlp_post",
        "mlp.hook_post",
        "neurons",
        "mlp_neurons",
    ),
)
