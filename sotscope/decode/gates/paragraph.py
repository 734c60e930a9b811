"""`paragraph`: the model begins each paragraph itself."""

from __future__ import annotations

import re
from typing import ClassVar

from sotscope.decode.contracts import UNLIMITED, Context, Gate

TAIL = 64
"""Characters at the end of the text that are looked at."""
_BLANK_LINE = re.compile(r"\n[ \t\r]*\n[ \t]*\Z")


class Paragraph(Gate):
    """A plain step where the new text so far ends in a blank line."""

    name: ClassVar[str] = "paragraph"

    def window(self, context: Context) -> int:
        return 0 if _BLANK_LINE.search(context.text[-TAIL:]) else UNLIMITED
