"""Every intervention keeps its contract: the width of a step does not matter, and nothing else is changed."""

from __future__ import annotations

import pytest

from sotscope.catalog import INTERVENTIONS
from sotscope.testing.interventions import check_intervention


@pytest.mark.parametrize("name", INTERVENTIONS.names())
def test_intervention_keeps_its_contract(name: str) -> None:
    check_intervention(name)
