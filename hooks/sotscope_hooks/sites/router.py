"""Site ``router``."""

from sotscope.capture.contracts import Site

SITE = Site(
    name="router",
    role="router",
    side="out",
    doc="The router's logits over the experts of a mixture of experts.",
    also=(
        "router_logits",
        "gate_logits",
        "hook_router",
    ),
)
