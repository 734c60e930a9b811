"""The user's own API: model.generate(custom_generate=sotscope.decoding(...)) and sotscope.generate(...)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, StoppingCriteria, StoppingCriteriaList

import sotscope
from sotscope.decode.contracts import Context, Proposal
from sotscope.decode.drafters.lookup import Lookup
from sotscope.errors import ConfigError, DecodeError
from sotscope.testing.bundles import tiny_bundle
from sotscope.testing.drafters import Scripted, greedy, mix, oracle
from sotscope.testing.tiny import tiny

PROMPT = [5, 17, 3, 88, 41]
IDS = torch.tensor([PROMPT])
FREE: dict[str, Any] = {"controller": "none", "guard": False}  # drafts do not depend on the clock


@pytest.fixture(scope="module")
def truth(llama: Any) -> list[int]:
    return greedy(llama, PROMPT, 24)


def after(output: Any) -> list[int]:
    return list(output[0, len(PROMPT) :].tolist())


# -- the same text ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle(llama: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a drafter made for this model."""
    folder = tmp_path_factory.mktemp("sot")
    tiny_bundle(llama).save(folder)
    return folder


@pytest.mark.parametrize("kind", ["ar", "lookup", "mix", "sot"])
def test_greedy_text_is_that_of_plain_generate(kind: str, llama: Any, truth: list[int], bundle: Path) -> None:
    plain = llama.generate(IDS, max_new_tokens=24, do_sample=False, repetition_penalty=1.1)
    given: dict[str, Any] = {"drafter": mix(after(plain), 4, 97)} if kind == "mix" else {"mode": kind}
    if kind == "sot":
        given["drafter"] = bundle
    for output in (
        llama.generate(
            IDS, max_new_tokens=24, do_sample=False, repetition_penalty=1.1,
            custom_generate=sotscope.decoding(**given, **FREE),
        ),
        sotscope.generate(
            llama, IDS, max_new_tokens=24, do_sample=False, repetition_penalty=1.1, **given, **FREE
        ),
    ):  # fmt: skip
        assert torch.equal(output, plain)
    assert after(sotscope.generate(llama, PROMPT, mode="ar", max_new_tokens=24)) == truth, "a list of ids"


def test_sampled_text_repeats_with_its_seed_whatever_drafts(llama: Any) -> None:
    def drawn(seed: int, **given: Any) -> Any:
        return sotscope.generate(
            llama, IDS, max_new_tokens=24, do_sample=True, temperature=1.3, top_k=5, seed=seed, **given, **FREE
        )

    plain = drawn(3, mode="ar")
    assert torch.equal(plain, drawn(3, mode="lookup"))
    assert torch.equal(plain, drawn(3, drafter=mix(after(plain), 4, 97)))
    assert not torch.equal(plain, drawn(4, mode="ar"))


def test_a_drafter_of_another_model_is_refused(bundle: Path) -> None:
    with pytest.raises(DecodeError, match=r"was trained for LlamaForCausalLM .*, not for"):
        sotscope.generate(tiny("llama", seed=1), IDS, mode="sot", drafter=bundle, max_new_tokens=4)


@pytest.mark.parametrize("window", [1, 4, 8])
def test_any_of_several_eos_ends_the_text_inside_a_block(window: int, llama: Any, truth: list[int]) -> None:
    early, late = (next(i for i in range(at, 24) if truth[i] not in truth[:i]) for at in (5, 9))
    output = sotscope.generate(
        llama, IDS, max_new_tokens=24, eos_token_id=[truth[late], truth[early]], pad_token_id=0,
        drafter=oracle(truth, window), **FREE,
    )  # fmt: skip
    assert after(output) == truth[: early + 1]


def test_processors_of_generate_see_every_true_prefix_once(llama: Any, truth: list[int]) -> None:
    class Looks(LogitsProcessor):
        seen: list[list[int]] = []  # noqa: RUF012 - one instance

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            self.seen.append(input_ids[0].tolist())
            return scores

    looks = Looks()
    output = llama.generate(
        IDS, max_new_tokens=12, logits_processor=[looks], custom_generate=sotscope.decoding(drafter=mix(truth, 4, 97))
    )
    assert after(output) == truth[:12]
    assert looks.seen == [[*PROMPT, *truth[:n]] for n in range(12)]


def test_an_output_object_holds_the_sequences(llama: Any) -> None:
    output = sotscope.generate(llama, IDS, mode="ar", max_new_tokens=3, return_dict_in_generate=True)
    assert torch.equal(output.sequences, llama.generate(IDS, max_new_tokens=3))


# -- where it ends ---------------------------------------------------------------------------------------------


def test_stopping_criteria_are_asked_for_every_token_of_a_block(llama: Any, truth: list[int]) -> None:
    class AtSeven(StoppingCriteria):
        seen: list[int] = []  # noqa: RUF012 - one instance

        def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            self.seen.append(input_ids.shape[1])
            return torch.tensor([input_ids.shape[1] == len(PROMPT) + 7])

    criterion = AtSeven()
    output = llama.generate(
        IDS, max_new_tokens=24, stopping_criteria=StoppingCriteriaList([criterion]),
        custom_generate=sotscope.decoding(drafter=oracle(truth, 5), **FREE),
    )  # fmt: skip
    assert after(output) == truth[:7]
    assert criterion.seen == list(range(6, 13))


def test_a_full_context_is_said(llama: Any) -> None:
    model = tiny("llama", max_position_embeddings=16)
    with pytest.warns(RuntimeWarning, match="context is full after 12"):
        output = sotscope.generate(model, IDS, mode="ar", max_new_tokens=40)
    assert after(output) == greedy(model, PROMPT, 12)


def test_logits_that_are_not_finite_are_an_error_and_no_text() -> None:
    model = tiny("llama")
    with torch.no_grad():
        model.model.layers[2].mlp.down_proj.weight[0, 0] = float("nan")
    with pytest.raises(DecodeError, match="position 4 are not finite"):
        sotscope.generate(model, IDS, mode="lookup", max_new_tokens=4)


# -- what is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"inputs": torch.tensor([PROMPT, PROMPT])}, "2 sequences at once"),
        ({"num_return_sequences": 2, "do_sample": True}, "2 sequences at once"),
        ({"num_beams": 2}, "beam search"),
        ({"attention_mask": torch.tensor([[0, 1, 1, 1, 1]])}, "attention mask hides"),
        ({"position_ids": torch.tensor([[0, 0, 1, 2, 3]])}, "position_ids"),
        ({"return_dict_in_generate": True, "output_scores": True}, "output_scores"),
        ({"return_dict_in_generate": True, "output_hidden_states": True}, "sotscope.record"),
        ({"use_cache": False}, "use_cache=False"),
        ({"cache_implementation": "static"}, "cache_implementation"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens"),
        ({"mode": "sot"}, "no trained sot drafter"),
        ({"mode": "forced", "force": "x"}, "force"),
        ({"stop_strings": "x"}, "tokenizer="),
        ({"assistant_model": "x"}, "mode='draft'"),
    ],
    ids=str,
)
def test_what_cannot_be_given_is_refused_in_one_line(options: dict[str, Any], words: str, llama: Any) -> None:
    with pytest.raises((DecodeError, ValueError), match=words) as refusal:
        sotscope.generate(llama, **{"inputs": IDS, "mode": "lookup", "max_new_tokens": 4, **options})
    assert "\n" not in str(refusal.value)


def test_a_recurrent_model_refuses_drafts_and_decodes_plainly() -> None:
    model = tiny("mamba")
    plain = model.generate(IDS, max_new_tokens=6, do_sample=False)
    assert torch.equal(sotscope.generate(model, IDS, mode="ar", max_new_tokens=6), plain)
    with pytest.raises(DecodeError, match="recurrent"):
        sotscope.generate(model, IDS, mode="lookup", max_new_tokens=6)


@pytest.mark.parametrize("name", ["temperature", "max_new_tokens"])
def test_settings_of_generate_are_not_given_to_decoding(name: str) -> None:
    with pytest.raises(DecodeError, match=f"generate\\(..., {name}="):
        sotscope.decoding(**{name: 1})
    with pytest.raises(ConfigError, match="did you mean 'guard'"):
        sotscope.decoding(gaurd=False)


# -- one method, several calls ---------------------------------------------------------------------------------


@pytest.fixture
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


@pytest.mark.usefixtures("quiet")
def test_commands_change_one_call_and_not_the_next(llama: Any, truth: list[int]) -> None:
    class Asks(Scripted):
        calls = 0

        def propose(self, context: Context, window: int) -> Proposal:
            Asks.calls += 1
            if Asks.calls == 2:
                controls.set(mode="lookup")
            return super().propose(context, window)

    controls = sotscope.Controls()
    method = sotscope.decoding(drafter=Asks(truth, 2, lambda position, token: token), controls=controls, **FREE)
    for calls in (2, 10):  # the second call is not switched, so it asks this drafter to the end
        assert after(llama.generate(IDS, max_new_tokens=24, custom_generate=method)) == truth
        assert Asks.calls == calls


def test_a_drafter_that_fails_is_a_warning_and_the_text_goes_on(llama: Any, truth: list[int]) -> None:
    failing = oracle([*truth[:4], 1000], 3)  # no such token
    with pytest.warns(RuntimeWarning, match="drafting is off"):
        output = sotscope.generate(llama, IDS, max_new_tokens=24, drafter=failing)
    assert after(output) == truth


def test_lookup_keeps_nothing_of_another_text() -> None:
    drafter = Lookup()
    drafter.propose(Context([1, 2, 3, 9, 9, 7], 6, 20, 100), 4)
    fresh = Context([4, 5, 6, 8, 8, 7, 1, 2, 3], 9, 20, 100)  # has the old text's last token at the same place
    assert len(drafter.propose(fresh, 4)) == 0


@pytest.mark.model
def test_smollm2_writes_the_same_with_lookup() -> None:
    loaded = sotscope.load()
    prompt = loaded.tokenizer("one two three one two three one two", return_tensors="pt")
    plain = loaded.model.generate(**prompt, max_new_tokens=24, do_sample=False)
    ours = sotscope.generate(loaded, prompt, mode="lookup", max_new_tokens=24, do_sample=False)
    assert torch.equal(ours, plain)
