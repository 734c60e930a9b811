"""The self-check passes what is right, and fails on each of the faults it is there for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sotscope.capture.plan import hook_counts, make_plan
from sotscope.capture.selfcheck import SelfCheck, self_check
from sotscope.testing.tiny import tiny

SITES = ["embed", "resid", "attn_out", "mlp_out", "mlp_act", "head_out", "final"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    from sotscope.recorder import record

    model = tiny("llama")
    out = tmp_path_factory.mktemp("runs") / "a.sot"
    return model, record(model, "5 17 3 88 41", sites=SITES, max_new_tokens=12, out=out)


def check(recorded: tuple[Any, Any], spoil: Callable[[str, int | None, Any], Any] | None = None, **changes: Any) -> Any:
    model, run = recorded
    top = changes.get("top", run.top[0][:, 0])

    def read(site: str, layer: int | None, rows: Any) -> Any:
        states = run.states(site, layer)
        return (states if spoil is None else spoil(site, layer, states.copy()))[rows]

    return self_check(make_plan(model, SITES), [int(i) for i in run.tokens.ids], read, top, "float32")


def test_right_rows_pass_every_comparison(recorded: tuple[Any, Any]) -> None:
    found = check(recorded)
    assert found.passed
    assert set(found.errors) == {
        "embed", "resid", "final", "attn_out from head_out", "mlp_out from mlp_act", "likeliest token",
    }  # fmt: skip
    assert max(found.errors.values()) < 1e-5


@pytest.mark.parametrize("site", ["embed", "resid", "final", "head_out", "mlp_act"])
@pytest.mark.parametrize("fault", ["shifted by one", "one percent off", "a NaN"])
def test_wrong_rows_fail(site: str, fault: str, recorded: tuple[Any, Any]) -> None:
    def spoil(name: str, layer: int | None, states: Any) -> Any:
        if name != site:
            return states
        if fault == "shifted by one":
            return np.roll(states, 1, axis=0)
        if fault == "one percent off":
            return states * 1.01
        states[3:] = np.nan
        return states

    assert not check(recorded, spoil).passed


def test_a_wrong_last_block_fails_through_the_head(recorded: tuple[Any, Any]) -> None:
    found = check(recorded, lambda site, layer, states: -states if (site, layer) == ("resid", 3) else states)
    assert not found.passed
    assert found.errors["likeliest token"] > 0.5
    assert found.errors["resid"] < 1e-5


def test_a_wrong_likeliest_token_fails(recorded: tuple[Any, Any]) -> None:
    top = recorded[1].top[0][:, 0]
    found = check(recorded, top=np.where(top >= 0, (top + 1) % 97, top))
    assert not found.passed
    assert found.errors["likeliest token"] == 1.0


def test_the_self_check_leaves_no_hooks_behind(recorded: tuple[Any, Any]) -> None:
    check(recorded)
    assert not hook_counts(recorded[0])


def test_an_error_that_is_not_a_number_never_passes() -> None:
    found = SelfCheck()
    found.note("resid", float("nan"), 1.0)
    assert not found.passed
