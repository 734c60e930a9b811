"""Write docs/img/show.svg: what `sotscope show` prints, as a picture. Usage: python docs/make_picture.py RUN"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

WIDTH = 118
PICTURE = Path(__file__).parent / "img" / "show.svg"


def draw(run: str) -> None:
    """Run the command as in a terminal and keep its colours; fonts are the viewer's own, nothing is fetched."""
    command = [str(Path(sys.executable).with_name("sotscope")), "show", run, "--last", "14"]
    terminal = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    shown = subprocess.run(command, capture_output=True, text=True, check=True, env=terminal).stdout
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(shown), soft_wrap=True)
    svg = console.export_svg(title=f"sotscope show {Path(run).name} --last 14")
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))


if __name__ == "__main__":
    draw(sys.argv[1])
