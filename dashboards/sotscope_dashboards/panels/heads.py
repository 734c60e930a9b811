"""How the heads of each layer share its output at the cursor."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sotscope.plain import plain
from sotscope_dashboards import style
from sotscope_dashboards.panels import parts
from sotscope_dashboards.panels.contract import Panel
from sotscope_dashboards.pooling import COLUMNS, ROWS, pool
from sotscope_dashboards.scene import Scene


class Heads(Panel):
    name: ClassVar[str] = "heads"
    title: ClassVar[str] = "Heads"
    shows: ClassVar[str] = "Each attention head's output at the cursor: its L2 norm as a share of its layer's heads."
    look_for: ClassVar[str] = "A head that holds far more than an even share, and whether it does so for other tokens."
    not_meant: ClassVar[str] = "A large output is not yet a large effect: the output projection may cancel it."
    by_cursor: ClassVar[bool] = True

    @parts.figure(parts.EMPTY)
    def draw(self, scene: Scene) -> dict[str, Any]:
        norm, layers = _norms(scene)
        share = _share(norm)
        theme = scene.look.theme
        note, margin = parts.headline(_title(scene, norm, share, layers), theme)
        grid = pool(100 * share)
        cells = grid.cells
        heads, columns = (
            np.arange(0, n, each) for n, each in zip(share.T.shape, (grid.height, grid.width), strict=True)
        )
        known = cells[np.isfinite(cells)]
        height = min(420, max(220, 16 * len(cells) + 70)) + margin
        picture = style.layout(
            theme, height, margin={"t": margin}, annotations=[note], uirevision=parts.uirevision(scene),
            plot_bgcolor=style.THEMES[theme]["blank"],
        )  # fmt: skip
        where = layers[columns]
        ticks = np.arange(0, len(where), max(1, -(-len(where) // 16)))
        axes = parts.pane(
            picture, 0, (0.0, 1.0), "layer", "head",
            xaxis={"tickvals": ticks.tolist(), "ticktext": [str(where[i]) for i in ticks], "showgrid": False},
            yaxis={"autorange": "reversed", "showgrid": False, "tickformat": "d"}
            | ({"dtick": 1} if len(heads) <= 16 else {}),
        )  # fmt: skip
        drawn = {
            "type": "heatmap", **axes, "name": "share", "z": style.typed(cells),
            "x": style.typed(np.arange(len(where))), "y": style.typed(heads), "colorscale": style.SEQUENTIAL,
            "zmin": 0.0, "zmax": float(known.max()) if len(known) else 1.0, "xgap": 1, "ygap": 1,
            "customdata": style.typed(np.broadcast_to(where, cells.shape)),
            "hovertemplate": "head %{y}, layer %{customdata}<br>%{z:.3g} % of the layer<extra></extra>",
            "colorbar": {"title": {"text": "% of the layer", "side": "right"}, "thickness": 10, "outlinewidth": 0},
        }  # fmt: skip
        return {"data": [drawn], "layout": plain(picture)}

    @parts.columns("position", "token", "layer", "head", "norm", "share")
    def table(self, scene: Scene) -> pd.DataFrame:
        norm, layers = _norms(scene)
        share = _share(norm)
        layer, head = (places.ravel() for places in np.indices(norm.shape))
        return pd.DataFrame(
            {
                "position": scene.cursor, "token": _token(scene), "layer": layers[layer], "head": head,
                "norm": norm.ravel(), "share": share.ravel(),
            }
        )  # fmt: skip


def _norms(scene: Scene) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """[layer, head] at the cursor, and the layers' numbers. Raises NothingError where heads were not recorded."""
    parts.rows_in_view(scene)
    run, row = scene.run, scene.lineage[[scene.cursor]]
    assert run is not None
    if "head_norm" in run.scalar_names:
        norm = parts.finite(scene.scalar("head_norm", row)[0])
    elif "head_out" in run.sites:
        norm = parts.finite(np.linalg.norm(run.take("head_out", row)[0].astype(np.float64), axis=-1))
    else:
        raise parts.NothingError(
            "Heads were not recorded in this run; record them with --sites head_out (or --sites all)."
        )
    layers = scene.layers if len(scene.layers) == len(norm) else list(range(len(norm)))
    if norm.ndim != 2 or not norm.size:
        raise parts.NothingError("This run has no norms of single heads.")
    return norm, np.array(layers)


def _share(norm: NDArray[np.float64]) -> NDArray[np.float64]:
    """[layer, head] of the sum of the norms of the layer's heads; NaN where that is 0 or unknown."""
    whole = np.where(np.isfinite(norm).all(1), norm.sum(1), np.nan)
    found: NDArray[np.float64] = np.divide(
        norm, whole[:, None], out=np.full(norm.shape, np.nan), where=whole[:, None] > 0
    )
    return found


def _token(scene: Scene) -> str:
    assert scene.run is not None
    return scene.run.tokens_at(scene.lineage[[scene.cursor]]).labels[0]


def _title(scene: Scene, norm: NDArray[np.float64], share: NDArray[np.float64], layers: NDArray[np.int64]) -> list[str]:
    count = norm.shape[1]
    shape = f"{parts.count(count, 'head')} in each of {parts.count(len(norm), 'layer')}"
    lines = [f"Row {scene.cursor} “{_token(scene)}”: {shape}; even: {1 / count:.1%}."]
    if np.isfinite(share).any():
        layer, head = np.unravel_index(int(np.nanargmax(share)), share.shape)
        lines[0] += f" Largest: head {head} of layer {layers[layer]} with {share[layer, head]:.0%}."
    blank = int(np.isnan(share).sum())
    if blank:
        lines.append(f"{blank:,} of {share.size:,} cells are blank: their layer's norms are 0, NaN or infinite.")
    if count > ROWS or len(norm) > COLUMNS:
        lines.append("Neighbouring heads or layers share a cell, which shows the largest of them.")
    return lines
