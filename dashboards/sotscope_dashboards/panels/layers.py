"""The profile over layers at the cursor."""

from __future__ import annotations

from typing import Any, ClassVar

import pandas as pd

from sotscope_dashboards import style
from sotscope_dashboards.panels.contract import Panel
from sotscope_dashboards.scene import Scene

SCALARS = {"norm": "L2 norm", "max_abs": "largest number", "cosine": "cosine to the row before"}


class Layers(Panel):
    name: ClassVar[str] = "layers"
    title: ClassVar[str] = "Layers"
    shows: ClassVar[str] = "The size of the state under the cursor in each layer, over the usual range of the view."
    look_for: ClassVar[str] = "A layer in which this token leaves the band of the others."
    not_meant: ClassVar[str] = "A large norm alone is no fault: the first token's is always large (attention sink)."
    by_cursor: ClassVar[bool] = True

    def draw(self, scene: Scene) -> dict[str, Any]:
        return style.sentence("to come", scene.look.theme)

    def table(self, scene: Scene) -> pd.DataFrame:
        if scene.run is None or not scene.total:
            return pd.DataFrame(columns=["layer", *SCALARS])
        row = scene.lineage[[scene.cursor]]
        return pd.DataFrame({"layer": scene.layers} | {name: scene.scalar(name, row)[0] for name in SCALARS})


