"""Every intervention keeps its contract, also one that another distribution adds: the width of a step does not matter,
and nothing else is changed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sotscope.catalog import INTERVENTIONS
from sotscope.testing.interventions import check_intervention

PLUGIN = '''
from sotscope.capture.interventions import Rowwise

class Flip(Rowwise):
    """Turns the sign of one dimension."""
    name = "flip"

    def __init__(self, place, dim=0):
        self.dim = dim

    def rows(self, states, positions):
        changed = states.clone()
        changed[:, self.dim] *= -1
        return changed
'''


@pytest.mark.parametrize("name", INTERVENTIONS.names())
def test_intervention_keeps_its_contract(name: str) -> None:
    check_intervention(name)


def test_an_intervention_of_another_distribution_is_one_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "fake_flip-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-flip\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sotscope.interventions]\nflip = fake_flip:Flip\n")
    (tmp_path / "fake_flip.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(INTERVENTIONS, "_loaded", dict(INTERVENTIONS._loaded))
    assert "flip" in INTERVENTIONS.names()
    check_intervention("flip", dim=3)
    sys.modules.pop("fake_flip")
