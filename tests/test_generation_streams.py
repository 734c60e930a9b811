"""Streamers and stop strings with the user's own API: what generate() does not hand on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import TextIteratorStreamer, TextStreamer
from transformers.generation.streamers import BaseStreamer

import sotscope
from sotscope.errors import ConfigError, DecodeError, SotscopeError
from sotscope.testing.drafters import greedy, mix, oracle
from sotscope.testing.tiny import tiny
from sotscope.testing.tokenizers import byte_tokenizer

PROMPT = [5, 17, 3, 88, 41]
FREE: dict[str, Any] = {"controller": "none", "guard": False}


@pytest.fixture(scope="module")
def typist() -> tuple[Any, Any, Any, str]:
    """A model that writes small letters only, its tokenizer, a prompt, and what it writes after it."""
    model, tokenizer = tiny("llama", vocab_size=258), byte_tokenizer()
    likely = torch.zeros(258, 1)
    likely[tokenizer("abcdefghijklmnopqrstuvwxyz")["input_ids"]] = 5.0
    model.lm_head.weight.data *= likely
    prompt = tokenizer("say:", return_tensors="pt")
    return model, tokenizer, prompt, tokenizer.decode(greedy(model, prompt["input_ids"][0].tolist(), 24))


class Heard(BaseStreamer):
    """Notes what a streamer is given."""

    def __init__(self) -> None:
        self.values: list[list[int]] = []
        self.ends = 0

    def put(self, value: torch.Tensor) -> None:
        self.values.append(value.flatten().tolist())

    def end(self) -> None:
        self.ends += 1


@pytest.mark.parametrize("window", [1, 4, 8])
def test_a_streamer_gets_the_prompt_once_and_tokens_one_by_one(window: int, llama: Any) -> None:
    truth = greedy(llama, PROMPT, 24)
    end = next(i for i in range(5, 24) if truth[i] not in truth[:i])
    heard = Heard()
    sotscope.generate(
        llama, PROMPT, max_new_tokens=24, eos_token_id=truth[end], pad_token_id=0,
        drafter=oracle(truth, window), streamer=heard, **FREE,
    )  # fmt: skip
    assert heard.values == [PROMPT, *([token] for token in truth[: end + 1])], "a token after the end was told"
    assert heard.ends == 1


@pytest.mark.parametrize("skip", [False, True])
def test_a_text_iterator_streamer_gets_the_text_and_ends(skip: bool, typist: Any) -> None:
    model, tokenizer, prompt, text = typist
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=skip, timeout=5)
    truth = tokenizer(text)["input_ids"]
    sotscope.generate(model, prompt, drafter=mix(truth, 4, 258), max_new_tokens=24, streamer=streamer, **FREE)
    assert "".join(streamer) == ("" if skip else "say:") + text
    again = TextIteratorStreamer(tokenizer, skip_prompt=skip, timeout=5)
    model.generate(**prompt, max_new_tokens=24, custom_generate=sotscope.decoding("lookup", streamer=again))
    assert "".join(again) == ("" if skip else "say:") + text


def test_a_text_streamer_prints(typist: Any, capsys: pytest.CaptureFixture[str]) -> None:
    model, tokenizer, prompt, text = typist
    sotscope.generate(model, prompt, mode="ar", max_new_tokens=24, streamer=TextStreamer(tokenizer, skip_prompt=True))
    assert capsys.readouterr().out == text + "\n"


def _raise(*_: Any, **__: Any) -> Any:
    raise RuntimeError("stop here")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"mode": "lokup"}, SotscopeError),
        ({"policy": "exakt"}, ConfigError),
        ({"num_beams": 2}, DecodeError),
        ({"no_such_option": 1}, ValueError),
        ({"stopping_criteria": [_raise]}, RuntimeError),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else ",".join(value),
)
def test_a_streamer_ends_once_whatever_goes_wrong(options: dict[str, Any], error: Any, llama: Any) -> None:
    heard = Heard()
    with pytest.raises(error):
        sotscope.generate(llama, PROMPT, **{"mode": "lookup", "max_new_tokens": 4, "streamer": heard, **options})
    assert heard.ends == 1


@pytest.mark.parametrize("length", [1, 3])
def test_stop_strings_work(length: int, typist: Any) -> None:
    model, tokenizer, prompt, text = typist
    stop = text[6 : 6 + length]
    plain = model.generate(**prompt, max_new_tokens=24, stop_strings=["never", stop], tokenizer=tokenizer)
    truth = tokenizer(text)["input_ids"]
    given: dict[str, Any] = {"tokenizer": tokenizer, "drafter": oracle(truth, 4), "stop_strings": ["never", stop]}
    ours = sotscope.generate(model, prompt, max_new_tokens=24, **given)
    assert torch.equal(ours, plain)
    assert tokenizer.decode(ours[0, 4:]) == text[: text.index(stop) + length]
    method = sotscope.decoding(**given)
    assert torch.equal(model.generate(**prompt, max_new_tokens=24, custom_generate=method), plain)


def test_the_models_own_stop_strings_count(typist: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer, prompt, text = typist
    monkeypatch.setattr(model.generation_config, "stop_strings", [text[3]], raising=False)
    ours = sotscope.generate(model, prompt, mode="lookup", tokenizer=tokenizer, max_new_tokens=24)
    assert tokenizer.decode(ours[0, 4:]) == text[: text.index(text[3]) + 1]
    with pytest.raises(DecodeError, match="tokenizer="):
        sotscope.generate(model, prompt, mode="lookup", max_new_tokens=24)
