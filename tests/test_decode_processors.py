"""Logits processors and generation defaults: position by position on the true prefix, as ``generate()`` has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from decode_helpers import trained

from sotscope.errors import ConfigError, DecodeError
from sotscope.testing.bundles import tiny_bundle
from sotscope.testing.drafters import anti, greedy, mix, oracle
from sotscope.testing.tiny import tiny

PROMPT = [5, 17, 3, 88, 41]


def generated(model: Any, count: int, **settings: Any) -> list[int]:
    """What transformers' own generate() adds to the prompt."""
    with torch.inference_mode():
        ids = torch.tensor([PROMPT])
        found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, **settings)
    return [int(i) for i in found[0, len(PROMPT) :]]


SETTINGS: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.3},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "both": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3},
}


@pytest.mark.parametrize("kind", ["plain", "oracle", "anti", "mix"])
@pytest.mark.parametrize("name", list(SETTINGS))
def test_penalties_equal_generate_whatever_is_drafted(name: str, kind: str, llama: Any, go: Any) -> None:
    settings = SETTINGS[name]
    expected = generated(llama, 24, do_sample=False, **settings)
    assert expected != greedy(llama, PROMPT, 24), "the setting changes nothing here"
    makers = {"plain": None, "oracle": oracle(expected, 4), "anti": anti(expected, 4, 97), "mix": mix(expected, 4, 97)}
    run = go(llama, max_new_tokens=24, drafter=makers[kind], **settings)
    assert run.tokens.all_ids == [*PROMPT, *expected]


@pytest.mark.parametrize("kind", ["plain", "oracle", "mix"])
def test_min_new_tokens_counts_tokens_not_steps(kind: str, llama: Any, go: Any) -> None:
    eos = greedy(llama, PROMPT, 1)[0]  # the likeliest token would end the text at once
    settings = {"min_new_tokens": 8, "eos_token_id": [eos]}
    expected = generated(llama, 20, do_sample=False, pad_token_id=0, **settings)
    assert len(expected) >= 9
    assert eos not in expected[:8]
    makers = {"plain": None, "oracle": oracle(expected, 4), "mix": mix(expected, 4, 97)}
    run = go(llama, max_new_tokens=20, drafter=makers[kind], **settings)
    assert run.tokens.all_ids == [*PROMPT, *expected]


@pytest.mark.parametrize("mode", ["sot", "dmtd", "lookup"])
@pytest.mark.parametrize("name", [*SETTINGS, "min_new_tokens"])
def test_penalties_are_the_same_in_every_mode(name: str, mode: str, llama: Any, go: Any, tmp_path: Path) -> None:
    eos = greedy(llama, PROMPT, 1)[0]
    settings = SETTINGS.get(name, {"min_new_tokens": 8, "eos_token_id": [eos]})
    expected = generated(llama, 24, do_sample=False, pad_token_id=0, **settings)
    tiny_bundle(llama, vocabulary=expected).save(tmp_path / "d")
    config = trained(tmp_path / "d", mode, max_new_tokens=24, lookup={"shortest": 1}, **settings)
    run = go(llama, None, config=config)
    assert run.tokens.all_ids == [*PROMPT, *expected]


class Counts:
    """Forbids a token the second time it would be chosen; remembers what it was shown."""

    def __init__(self) -> None:
        self.prefixes: list[list[int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.prefixes.append(input_ids[0].tolist())
        scores[0, [token for token in set(self.prefixes[-1]) if token % 2]] = -float("inf")
        scores[0, len(self.prefixes) % 97] = -float("inf")  # its state: how often it was asked
        return scores


@pytest.mark.parametrize("kind", ["oracle", "anti", "mix"])
def test_a_processor_with_a_state_never_sees_a_rejected_draft(kind: str, llama: Any, go: Any) -> None:
    plain = Counts()
    expected = go(llama, max_new_tokens=16, processors=[plain]).tokens.all_ids
    rest = expected[5:]
    makers = {"oracle": oracle(rest, 4), "anti": anti(rest, 4, 97), "mix": mix(rest, 4, 97)}
    drafted = Counts()
    run = go(llama, max_new_tokens=16, processors=[drafted], drafter=makers[kind])
    assert run.tokens.all_ids == expected
    assert drafted.prefixes == plain.prefixes == [expected[: 5 + i] for i in range(16)]


def test_a_processor_does_not_change_the_recorded_distribution(llama: Any, go: Any) -> None:
    plain = go(llama, max_new_tokens=1)
    processed = go(llama, max_new_tokens=1, processors=[Counts()])
    assert processed.scalars("entropy")[4] == plain.scalars("entropy")[4]
    assert (processed.top[0][4] == plain.top[0][4]).all()


FAMILIES = [
    "llama",
    "gpt2",
    "gpt_neox",
    "opt",
    "gemma2",
    "gemma3",
    "mixtral",
    "mistral-sliding",
    "phi",
    "bloom",
    "mamba",
]


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_decoding_equals_generate(name: str, go: Any) -> None:
    model = tiny(name)
    run = go(model, max_new_tokens=20)
    assert run.tokens.all_ids == [*PROMPT, *generated(model, 20, do_sample=False)]


def hidden_defaults() -> Any:
    model = tiny("llama")
    model.generation_config.do_sample = True
    model.generation_config.repetition_penalty = 1.3
    model.generation_config.temperature = 0.7
    return model


def test_the_models_own_defaults_count_and_are_written_down(go: Any) -> None:
    model = hidden_defaults()
    run = go(model, max_new_tokens=6)
    config = run.events("config")[0]
    assert config["sampled"] is True
    assert config["generation"]["temperature"] == 0.7
    assert config["generation"]["repetition_penalty"] == 1.3
    drafted = go(model, max_new_tokens=6, drafter=oracle([1, 2, 3, 4, 5, 6], 3))
    assert drafted.events("config")[0]["generation"] == config["generation"]


@pytest.mark.parametrize("asked", [{"do_sample": False}, {"temperature": 0.0}])
def test_greedy_on_request_keeps_the_other_defaults(asked: dict[str, Any], go: Any) -> None:
    model = hidden_defaults()
    run = go(model, max_new_tokens=20, **asked)
    assert run.events("config")[0]["sampled"] is False
    expected = generated(model, 20, do_sample=False, repetition_penalty=1.3)
    assert run.tokens.all_ids == [*PROMPT, *expected]
    assert expected != greedy(model, PROMPT, 20)


def test_the_models_generation_config_is_left_alone(go: Any) -> None:
    model = hidden_defaults()
    before = model.generation_config.to_dict()
    go(model, max_new_tokens=2, temperature=0.3, top_k=5, repetition_penalty=1.1, eos_token_id=[7])
    assert model.generation_config.to_dict() == before


@pytest.mark.parametrize("asked", [{"temperature": 0.9}, {"top_p": 0.5}, {"top_k": 3}])
def test_a_sampling_setting_means_sampling(asked: dict[str, Any], llama: Any, go: Any) -> None:
    assert go(llama, max_new_tokens=1, **asked).events("config")[0]["sampled"] is True
    assert go(llama, max_new_tokens=1, do_sample=False, **asked).events("config")[0]["sampled"] is False


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"tempreature": 0.5}, "did you mean 'temperature'"),
        ({"max_new_tokens": -1}, "max_new_tokens"),
        ({"seed": -1}, "seed"),
    ],
)
def test_settings_out_of_range_are_refused_in_one_line(asked: dict[str, Any], words: str, llama: Any, go: Any) -> None:
    with pytest.raises(ConfigError) as refusal:
        go(llama, **asked)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("name", "value"), [("penalty_alpha", 0.6), ("guidance_scale", 1.5)])
def test_ways_of_decoding_that_are_not_ours_are_refused(name: str, value: float, go: Any) -> None:
    model = tiny("llama")
    setattr(model.generation_config, name, value)
    with pytest.raises(DecodeError, match=name):
        go(model)
