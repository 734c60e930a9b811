"""`dmtd`: several heads on one state guess the next tokens at once, one head each (Medusa-like).

The paper of the same name (arXiv 2510.11958) re-uses late layers and is lossy; this is another design, and lossless.
"""

from __future__ import annotations

from sotscope.decode.contracts import Setup
from sotscope.decode.drafters.sot import trained
from sotscope.decode.drafters.states import StateDrafter


def make(setup: Setup) -> StateDrafter:
    return trained("dmtd", setup)
