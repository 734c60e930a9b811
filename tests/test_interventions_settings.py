"""Interventions as people write them: text, mappings, token ranges; and one line for what makes no sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from sotscope.capture.intervening import Intervening
from sotscope.capture.interventions import InterventionConfig, read_intervention, span
from sotscope.capture.plan import hook_counts
from sotscope.errors import HealthError, SotscopeError
from sotscope.testing.tiny import tiny


def test_text_gives_fields_and_options() -> None:
    read = read_intervention("prune:layers=10-20,k=3,how=clamp,strength=0.5,tokens=generated,name=calm,on=false")
    assert read == InterventionConfig(
        kind="prune", layers="10-20", strength=0.5, tokens="generated", name="calm", on=False,
        options={"k": 3, "how": "clamp"},
    )  # fmt: skip
    assert read_intervention("rescale") == InterventionConfig(kind="rescale")
    assert read_intervention(" steer:dim=3,value=-2.5e1,relative=true ").options == {
        "dim": 3, "value": -25.0, "relative": True,
    }  # fmt: skip


def test_commas_inside_a_value_go_on_with_it() -> None:
    read = read_intervention("freeze:layers=0,2-4,-1,dims=7,9,site=resid")
    assert (read.layers, read.options, read.site) == ("0,2-4,-1", {"dims": "7,9"}, "resid")
    assert read_intervention("freeze:layers=3,dims=7").layers == "3"


def test_a_mapping_may_be_flat_or_nested() -> None:
    flat = read_intervention({"kind": "prune", "layers": 3, "k": 2})
    assert flat == read_intervention({"kind": "prune", "layers": "3", "options": {"k": 2}})
    assert read_intervention(flat) is flat


def test_settings_survive_json() -> None:
    config = read_intervention("freeze:layers=0,2,dims=7,9,strength=0.25")
    assert InterventionConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pruno:k=3", "unknown intervention 'pruno'; did you mean prune?"),
        ("", "names no kind"),
        ("prune:3", "not understood at '3'; write KIND:layers=10-20,k=3"),
        ("prune:k=3,k=4", "k cannot be set there, or not twice"),
        ("prune:strength=nan", "strength: Input should be a finite number"),
        ("prune:strength=inf", "strength: Input should be a finite number"),
        ("prune:strength=much", "strength: .*number"),
        ("prune:on=perhaps", "on: .*bool"),
    ],
)
def test_text_that_makes_no_sense_is_one_line(text: str, says: str) -> None:
    with pytest.raises(HealthError, match=says) as caught:
        read_intervention(text)
    assert "\n" not in str(caught.value)


def test_token_ranges() -> None:
    assert 0 in span("all", 5)
    assert list(span("prompt", 3)) == [0, 1, 2]
    assert span("generated", 3)[:2] == range(3, 5)
    assert list(span("4-6", 3)) == [4, 5, 6]
    assert list(span("4", 3)) == [4]
    assert span("4-", 3)[0] == 4
    assert 10**6 in span("4-", 3)
    for wrong in ("6-4", "-3", "a-b", "", "1,2"):
        with pytest.raises(HealthError):
            span(wrong, 3)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    np.save(folder / "short.npy", np.ones(7, np.float32))
    np.save(folder / "bad.npy", np.full(32, np.nan, np.float32))
    np.save(folder / "object.npy", np.array([{}], object))
    save_file({"a": torch.ones(32), "b": torch.ones(32)}, folder / "two.safetensors")
    return folder


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prune:kk=3", "unknown parameter of intervention prune 'kk'"),
        ("prune:k=wide", "k = 'wide' is not a number"),
        ("prune:k=0", "needs k > 0; got 0"),
        ("prune:how=cut", "how = 'cut' is none of zero, clamp, mean"),
        ("prune:per=head", "per = 'head' is neither row nor dim"),
        ("interpolate:alpha=0", "needs 0 < alpha <= 1; got 0"),
        ("interpolate:how=cubic", "how = 'cubic' is neither linear nor spherical"),
        ("rescale:factor=-1", "needs a factor > 0"),
        ("rescale:window=2", "needs a window of 8 rows or more; got 2"),
        ("steer", "needs a vector: file=V.npy, or dim=N"),
        ("steer:dim=32", "there is no dim 32; resid has 32, 0-31"),
        ("steer:dim=64,site=mlp_act", "there is no dim 64; mlp_act has 64, 0-63"),
        ("steer:file=FOLDER/short.npy", r"short.npy is \[7\]; resid needs \[32\] or \[4, 32\]"),
        ("steer:file=FOLDER/bad.npy", "the vector in .*bad.npy is not finite"),
        ("steer:file=FOLDER/object.npy", "object.npy cannot be read"),
        ("steer:file=FOLDER/none.npy", "none.npy cannot be read"),
        ("steer:file=FOLDER/none.txt", "neither .npy nor .safetensors"),
        ("steer:file=FOLDER/two.safetensors,key=c", "key=c is not in .*there are: a, b"),
        ("temperature:value=0", "needs a value > 0; got 0"),
        ("temperature:site=resid", "temperature works at query, not at resid"),
        ("skip:site=mlp_out", "skip works at resid, not at mlp_out"),
        ("skip:above=2", "above = 2 is not a cosine"),
        ("freeze:dims=32", "there are no dims 32; resid has 32, 0-31"),
        ("freeze:dims=9-3", "there are no dims 9-3"),
        ("freeze", "dims '' not understood"),
        ("freeze:dims=1,tokens=later", "tokens 'later' not understood"),
        ("transfer:how=patch", "needs source=RUN"),
        ("transfer:source=X", "needs a reference"),
        ("transfer:source=/nowhere,how=patch", "/nowhere does not exist"),
        ("prune:layers=9", "layer 9 does not exist; the model has 4 layers"),
        ("prune:site=router", "site router holds no states"),
        ("prune:site=attn", "site attn holds no states"),
        ("prune:site=all", "works at one site"),
        ("prune:site=residue", "unknown site 'residue'; did you mean"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_model_is_refused_before_anything_is_attached(
    llama: Any, vectors: Path, text: str, says: str
) -> None:
    before = hook_counts(llama)
    with pytest.raises(SotscopeError, match=says) as caught:
        Intervening(llama, [text.replace("FOLDER", str(vectors))], 5)
    assert "\n" not in str(caught.value)
    assert hook_counts(llama) == before


def test_a_site_the_model_lacks_is_refused_with_the_reason() -> None:
    with pytest.raises(SotscopeError, match=r"query.*not available: a Mamba block is one mixer"):
        Intervening(tiny("mamba"), ["temperature:value=2"], 5)


@pytest.mark.parametrize(
    ("first", "second", "where"),
    [
        ("temperature:value=2", "temperature:value=3,layers=1-2", "query, layers 1-2"),
        ("freeze:dims=1,2,layers=0-2", "freeze:dims=2,tokens=9-", "resid, layers 0-2"),
        ("rescale", "rescale:window=9,layers=3", "resid, layers 3"),
        ("skip:always=true,layers=1", "skip", "resid, layers 1"),
    ],
)
def test_two_of_which_the_second_undoes_the_first_are_refused_by_name(
    llama: Any, first: str, second: str, where: str
) -> None:
    kind = first.partition(":")[0]
    with pytest.raises(HealthError, match=f"'{kind}' and '{kind} 2' contradict each other at {where}"):
        Intervening(llama, [first, second], 5)


@pytest.mark.parametrize(
    "both",
    [
        ("temperature:layers=0", "temperature:layers=1"),
        ("temperature:tokens=0-4", "temperature:tokens=5-"),
        ("temperature", "temperature:value=3,on=false"),
        ("freeze:dims=1", "freeze:dims=2"),
        ("freeze:dims=1", "freeze:dims=1,site=mlp_out"),
        ("steer:dim=1", "steer:dim=1"),
        ("prune", "prune:per=dim"),
        ("rescale", "rescale:factor=2"),
    ],
)
def test_two_that_can_be_told_apart_are_not_contradictory(llama: Any, both: tuple[str, str]) -> None:
    assert len(Intervening(llama, both, 5).names) == 2


def test_names_are_given_once(llama: Any) -> None:
    assert Intervening(llama, ["steer:dim=1", "steer:dim=2", "prune:name=calm"], 5).names == [
        "steer",
        "steer 2",
        "calm",
    ]
    with pytest.raises(HealthError, match="two interventions are called 'a'"):
        Intervening(llama, ["steer:dim=1,name=a", "steer:dim=2,name=a"], 5)
    with pytest.raises(HealthError, match="32 interventions in one run; a row can tell 31 apart"):
        Intervening(llama, [f"steer:dim={i},name=n{i}" for i in range(32)], 5)
