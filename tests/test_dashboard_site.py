"""The heatmap of a chosen site: numbers of its states, and what is said where they are too many."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sotscope.store.reader import Run
from sotscope.testing.runs import write_run
from sotscope_dashboards.look import Look
from sotscope_dashboards.panels import states
from sotscope_dashboards.scene import Scene

RNG = np.random.default_rng(2)
ATTN = RNG.normal(size=(30, 3, 6)).astype(np.float32)
HEADS = RNG.normal(size=(30, 3, 2, 4)).astype(np.float32)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    facts = {name: np.ones((30, 3), np.float32) for name in ("norm", "max_abs", "cosine")}
    facts |= {name: np.ones(30, np.float32) for name in ("entropy", "margin", "logprob")}
    sites = {"resid": np.ones((30, 3, 6), np.float32), "attn_out": ATTN, "head_out": HEADS, "final": ATTN[:, 0]}
    return write_run(tmp_path / "a.sot", sites, scalars=facts)


@pytest.mark.parametrize(("site", "given"), [("attn_out", ATTN), ("head_out", HEADS)])
@pytest.mark.parametrize("start", [0, 7])
def test_numbers_are_those_of_the_states(site: str, given: np.ndarray, start: int, run: Run) -> None:
    flat = given.reshape(30, 3, -1).astype(float)

    def cells(scalar: str) -> np.ndarray:
        look = Look.model_validate({"site": site, "scalar": scalar, "start": start, "stop": 25})
        return states.cells(Scene(look, run))

    norm = np.linalg.norm(flat, axis=2)
    shown = norm[start:25]
    np.testing.assert_allclose(cells("norm"), shown / np.median(shown, 0), rtol=1e-5)
    largest = np.abs(flat[start:25]).max(2)
    np.testing.assert_allclose(cells("max_abs"), largest / np.median(largest, 0), rtol=1e-5)
    before = np.full((30, 3), np.nan)
    before[1:] = (flat[1:] * flat[:-1]).sum(2) / (norm[1:] * norm[:-1])
    np.testing.assert_allclose(cells("cosine"), before[start:25], rtol=1e-5, atol=1e-6)
    moved = np.full((30, 3), np.nan)
    moved[1:] = np.linalg.norm(flat[1:] - flat[:-1], axis=2)
    np.testing.assert_allclose(cells("change"), moved[start:25] / np.nanmedian(moved[start:25], 0), rtol=1e-4)


def test_a_site_without_layers_or_unknown_is_resid(run: Run) -> None:
    for site in ("final", "nothing"):
        assert Scene(Look(site=site), run).site == "resid"


def test_too_many_tokens_of_a_site_are_a_sentence(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "MOST", 20)
    drawn = states.States().draw(Scene(Look(site="attn_out"), run))
    assert drawn["layout"]["annotations"][0]["text"] == "30 tokens are in view; zoom in to 20 to see attn_out."
