"""Site ``query``."""

from sotscope.capture.contracts import Site

SITE = Site(
    name="query",
    role="query",
    side="out",
    shape="heads",
    doc="The query of each head, after q_norm if the model has one, before rotary positions.",
    also=(
        "hook_q",
        "q",
        "attn.hook_q",
        "queries",
    ),
)
