"""The ways to say which layers and which sites, and the words for what is not understood."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sotscope.capture.layers import parse_layers
from sotscope.capture.plan import site_names
from sotscope.errors import SiteError


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("all", range(30)),
        ("0-29", range(30)),
        ("first", [0]),
        ("last", [29]),
        ("every 4", [0, 4, 8, 12, 16, 20, 24, 28]),
        ("every  10", [0, 10, 20]),
        ("every 100", [0]),
        ("0, 5, 10-12", [0, 5, 10, 11, 12]),
        ("10 - 12,5", [5, 10, 11, 12]),
        ("-1", [29]),
        ("-30", [0]),
        ("last, first, last", [0, 29]),
        (" 7 ", [7]),
        ("3-3", [3]),
    ],
)
def test_layers_are_understood(text: str, layers: range | list[int]) -> None:
    assert parse_layers(text, 30) == tuple(layers)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no layers"),
        (" , ", "no layers"),
        ("30", "layer 30 does not exist; the model has 30 layers, 0-29"),
        ("-31", "layer -31 does not exist"),
        ("5-40", "layer 40 does not exist"),
        ("12-10", "run backwards; write 10-12"),
        ("every 0", "every 1, every 2"),
        ("every four", "not understood at 'every four'"),
        ("3,,5", "not understood at ''"),
        ("2:5", "write all, first, last, every 4, 0-29"),
        ("1.5", "not understood at '1.5'"),
        ("resid", "not understood at 'resid'"),
    ],
)
def test_layers_that_make_no_sense_are_refused_in_one_line(text: str, words: str) -> None:
    with pytest.raises(SiteError) as refusal:
        parse_layers(text, 30)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


COUNT = st.integers(1, 40)


@given(COUNT, st.data())
def test_any_mixture_of_numbers_and_ranges_is_their_union(count: int, data: st.DataObject) -> None:
    layer = st.integers(0, count - 1)
    ranges = st.tuples(layer, layer).map(sorted)
    parts = data.draw(st.lists(st.one_of(layer, st.integers(-count, -1), ranges), min_size=1, max_size=6))
    expected: set[int] = set()
    for part in parts:
        expected |= set(range(part[0], part[1] + 1)) if isinstance(part, list) else {part % count}
    text = ",".join(f"{part[0]}-{part[1]}" if isinstance(part, list) else str(part) for part in parts)
    assert parse_layers(text, count) == tuple(sorted(expected))


@given(st.text(max_size=12), COUNT)
def test_whatever_is_typed_gives_layers_of_the_model_or_a_site_error(text: str, count: int) -> None:
    try:
        found = parse_layers(text, count)
    except SiteError:
        return
    assert found
    assert set(found) <= set(range(count))
    assert list(found) == sorted(set(found))


@pytest.mark.parametrize(
    ("asked", "sites"),
    [
        ("resid", ["resid"]),
        ("resid_post", ["resid"]),
        ("hook_resid_post", ["resid"]),
        ("blocks.3.hook_resid_post", ["resid"]),
        ("hook_z", ["head_out"]),
        ("z", ["head_out"]),
        ("attn.hook_z", ["head_out"]),
        ("blocks.0.attn.hook_z", ["head_out"]),
        ("hook_post", ["mlp_act"]),
        ("blocks.11.mlp.hook_post", ["mlp_act"]),
        ("blocks.2.hook_mlp_out", ["mlp_out"]),
        ("blocks.2.attn.hook_q", ["query"]),
        ("hook_attn_out", ["attn_out"]),
        ("blocks.2.attn.hook_pattern", ["attn"]),
        ("hook_embed", ["embed"]),
        ("ln_final.hook_normalized", ["final"]),
        ("last_hidden_state", ["final"]),
        ("router_logits", ["router"]),
        ("hidden_states", ["embed", "resid", "final"]),
        ("hidden_states[4]", ["embed", "resid", "final"]),
        ("hidden_states[-1]", ["embed", "resid", "final"]),
        ("none", []),
        ("all", ["all"]),
    ],
)
def test_sites_answer_to_the_names_other_tools_use(asked: str, sites: list[str]) -> None:
    assert site_names([asked]) == sites


@pytest.mark.parametrize("asked", ["resid_pre", "hook_resid_pre", "blocks.3.hook_resid_pre"])
def test_what_enters_a_block_is_embed_for_the_first_and_resid_for_the_others(asked: str) -> None:
    assert site_names([asked]) == ["embed", "resid"]


def test_a_site_asked_for_twice_under_two_names_is_recorded_once() -> None:
    assert site_names(["resid_post", "resid", "hidden_states"]) == ["resid", "embed", "final"]


@pytest.mark.parametrize(
    ("asked", "meant"), [("resdi", "resid"), ("mlp_uot", "mlp_out"), ("blocks.3.hook_resid_pots", "hook_resid_post")]
)
def test_an_unknown_site_suggests_the_nearest(asked: str, meant: str) -> None:
    with pytest.raises(SiteError, match=f"unknown site '{asked}'; did you mean .*{meant}"):
        site_names([asked])
