"""The likeliest next tokens after the token under the cursor."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pandas as pd

from sotscope.plain import plain
from sotscope_dashboards import style
from sotscope_dashboards.panels import parts
from sotscope_dashboards.panels.contract import Kind, Panel
from sotscope_dashboards.scene import Scene

COLUMNS = ["rank", "token", "label", "probability", "chosen"]


class Candidates(Panel):
    name: ClassVar[str] = "candidates"
    title: ClassVar[str] = "Next token"
    kind: ClassVar[Kind] = "list"
    shows: ClassVar[str] = "The ten likeliest tokens after the one under the cursor, with the model's probability."
    look_for: ClassVar[str] = "One long bar: the model is sure. Many short ones: click one to see where it would lead."
    not_meant: ClassVar[str] = "The probability of a token says nothing about whether the sentence is true."
    by_cursor: ClassVar[bool] = True
    rest_ms: ClassVar[int] = 0

    def draw(self, scene: Scene) -> dict[str, Any]:
        table = self.table(scene)
        if scene.run is None or scene.cursor < 0:
            return {"after": "", "cursor": -1, "rows": [], "why": scene.why if scene.run is None else parts.NO_ROWS}
        label = scene.run.tokens_at(scene.lineage[[scene.cursor]]).labels[0]
        why = "" if len(table) else "Not recorded for prompt tokens; record with --prompt-logits."
        return {
            "after": style.visible(label), "cursor": scene.cursor, "why": why,
            "rows": plain(table.to_dict("records")),
        }  # fmt: skip

    def table(self, scene: Scene) -> pd.DataFrame:
        if scene.run is None or scene.cursor < 0:
            return pd.DataFrame(columns=COLUMNS)
        row = int(scene.lineage[scene.cursor])
        ids, logprobs = scene.run.top_at(row)
        kept = (ids >= 0) & np.isfinite(logprobs)
        chosen = int(scene.run.tokens_at(np.array([row])).next_ids[0])
        label = scene.run.pieces.label
        return pd.DataFrame(
            {
                "rank": np.arange(1, kept.sum() + 1),
                "token": ids[kept],
                "label": [style.visible(label(int(i))) for i in ids[kept]],
                "probability": np.exp(logprobs[kept].astype(np.float64)),
                "chosen": ids[kept] == chosen,
            }
        )
