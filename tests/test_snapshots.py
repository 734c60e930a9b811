"""A decoder kept between two steps, and a run gone on from: what follows is what would have followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import sotscope
from sotscope.config import RunConfig
from sotscope.decode.loop import Decoder
from sotscope.decode.remedies import BanNgrams, For, Noise
from sotscope.decode.sampling import Sampler
from sotscope.decode.snapshot import Snapshot
from sotscope.errors import DecodeError, PromptError, SotscopeError
from sotscope.models.load import fingerprint
from sotscope.recorder import record
from sotscope.testing.oracle import check_run
from sotscope.testing.tiny import tiny

PROMPT = [5, 17, 3, 88, 41]


class Silent:
    def on_step(self, step: Any) -> None: ...

    def on_alarm(self, alarm: Any) -> None: ...

    def on_command(self, command: Any) -> None: ...


def decoder(model: Any, **more: Any) -> Decoder:
    sampler = Sampler(model, len(PROMPT), overrides={"temperature": 0.9, "do_sample": True, "eos_token_id": [96]})
    return Decoder(model, None, sampler, sink=Silent(), seed=3, max_new_tokens=30, **more)


def advance(made: Decoder, steps: Any, new: int) -> None:
    while made.context.new_tokens < new:
        next(steps)


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral-sliding", "gemma3", "mamba", "mixtral"])
def test_a_restored_decoder_goes_on_as_if_nothing_had_happened(family: str, tmp_path: Path) -> None:
    model, mark = tiny(family), fingerprint(tiny(family))
    first = decoder(model)
    steps = first.run(PROMPT)
    advance(first, steps, 10)
    kept = Snapshot.of(first, mark, {"mode": "ar"})
    kept.save(tmp_path / "a.safetensors")
    for _ in steps:
        pass
    truth = first.context.ids
    for snapshot in (kept, Snapshot.load(tmp_path / "a.safetensors", model)):
        assert (snapshot.ids, snapshot.prompt_length, snapshot.length) == (truth[:15], 5, 14)
        for _ in range(2):  # a snapshot can be gone on from more than once
            again = decoder(model, cached=snapshot.restore(model, mark))
            fed = [step.pos for step in again.run(snapshot.ids[:5], snapshot.ids[5:])]
            assert again.context.ids == truth
            assert fed[0] == 14, "what is in the cache is not fed again"


def test_a_common_beginning_is_computed_once(tmp_path: Path) -> None:
    model, mark = tiny("llama"), fingerprint(tiny("llama"))
    warm = decoder(model)
    for step in warm.run(PROMPT):
        if step.mode != "prompt":
            break
    kept = Snapshot.of(warm, mark)
    for ending in ([7, 8], [60]):
        plain, reused = decoder(model), decoder(model, cached=kept.restore(model, mark))
        for one in (plain, reused):
            for _ in one.run([*PROMPT, *ending]):
                pass
        assert reused.context.ids == plain.context.ids


def test_a_snapshot_of_another_model_is_refused(tmp_path: Path) -> None:
    model = tiny("llama")
    made = decoder(model)
    advance(made, made.run(PROMPT), 3)
    kept = Snapshot.of(made, fingerprint(model))
    with pytest.raises(DecodeError, match="another model"):
        kept.restore(tiny("qwen2"), fingerprint(tiny("qwen2")))
    kept.save(tmp_path / "a.safetensors")
    with pytest.raises(DecodeError, match="layers"):
        Snapshot.load(tmp_path / "a.safetensors", tiny("gpt2"))
    (tmp_path / "b.safetensors").write_bytes(b"no snapshot")
    for path in ("b.safetensors", "c.safetensors"):
        with pytest.raises(DecodeError, match="cannot read"):
            Snapshot.load(tmp_path / path, model)


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.8, "seed": 7}, {"repetition_penalty": 1.3}])
def test_a_run_gone_on_from_with_its_own_settings_says_the_same(settings: dict[str, Any], tmp_path: Path) -> None:
    model = tiny("llama")
    first = record(model, "5 17 3 88 41", out=tmp_path / "a.sot", max_new_tokens=30, eos_token_id=[95], **settings)
    data = {"input": {"source": f"{tmp_path}/a.sot@17"}, "decode": {"eos_token_id": [95], **settings}}
    config = RunConfig.build({**data, "out": tmp_path / "b.sot"}, "test")
    second = record(model, config=config, max_new_tokens=30 - 12)
    assert second.tokens.all_ids == first.tokens.all_ids
    assert second.sequences["prompt_length"].tolist() == [5]
    assert second.tokens.segments == first.tokens.segments
    check_run(model, second)
    other = record(
        model, config=RunConfig.build({**data, "out": tmp_path / "c.sot"}, "test"), max_new_tokens=18, mode="lookup",
        no_repeat_ngram_size=2,
    )  # fmt: skip
    assert other.tokens.all_ids[:17] == first.tokens.all_ids[:17]


@pytest.mark.parametrize(
    ("place", "says"),
    [("a.sot@99", "positions 0 to 14"), ("a.sot@0", "cannot be gone on from 0"), ("a.sot@x", "RUN@POSITION"),
     ("a.sot@7:3", "sequence 7"), ("none.sot@3", "does not exist")],
)  # fmt: skip
def test_a_place_that_is_not_there_is_said_in_one_line(place: str, says: str, tmp_path: Path) -> None:
    record(tiny("llama"), "5 17 3 88 41", out=tmp_path / "a.sot", max_new_tokens=10)
    config = RunConfig.build({"input": {"source": f"{tmp_path}/{place}"}}, "test")
    with pytest.raises(SotscopeError, match=says) as caught:
        record(tiny("llama"), config=config, out=tmp_path / "b.sot")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "b.sot").exists()
    assert isinstance(caught.value, SotscopeError | PromptError)


def test_remedies_hold_for_their_positions_only() -> None:
    ban = For(BanNgrams([(4, 5), (5, 4), (9,)]), 3, 5)
    scores = torch.zeros(1, 12)
    assert torch.isfinite(ban(torch.tensor([[1, 4]]), scores)).all()
    banned = ban(torch.tensor([[1, 2, 4]]), scores)
    assert torch.isinf(banned[0]).nonzero()[:, 0].tolist() == [5, 9]
    assert torch.isfinite(ban(torch.tensor([[1, 2, 3, 4, 4]]), scores)).all()
    assert torch.isfinite(scores).all(), "the scores that were given are not changed"


def test_noise_draws_from_the_distribution_and_repeats() -> None:
    logits = torch.log(torch.tensor([[0.6, 0.3, 0.1]]))
    draws = [int(Noise(1.0, 5, 0)(torch.zeros(1, n, dtype=torch.long), logits).argmax()) for n in range(1, 2001)]
    assert draws == [
        int(Noise(1.0, 5, 0)(torch.zeros(1, n, dtype=torch.long), logits).argmax()) for n in range(1, 2001)
    ]
    shares = torch.bincount(torch.tensor(draws), minlength=3) / len(draws)
    torch.testing.assert_close(shares, torch.tensor([0.6, 0.3, 0.1]), atol=0.04, rtol=0)


@pytest.mark.parametrize("family", ["llama", "mistral-sliding", "mamba"])
def test_generate_goes_on_from_a_prefix_as_without_it(family: str, tmp_path: Path) -> None:
    model = tiny(family)
    kept = sotscope.warm_up(model, PROMPT)
    kept.save(tmp_path / "a.safetensors")
    for prefix in (kept, Snapshot.load(tmp_path / "a.safetensors", model)):
        for ending in ([7, 8], [60]):
            ids = torch.tensor([[*PROMPT, *ending]])
            with_it = sotscope.generate(model, ids, mode="ar", prefix=prefix, max_new_tokens=12)
            assert with_it.tolist() == model.generate(ids, max_new_tokens=12, do_sample=False).tolist()
    if family == "llama":  # the prefix alone is a prompt, too
        alone = sotscope.generate(model, PROMPT, mode="lookup", prefix=kept, max_new_tokens=12)
        assert alone.tolist() == model.generate(torch.tensor([PROMPT]), max_new_tokens=12, do_sample=False).tolist()
    with pytest.raises(DecodeError, match="does not begin"):
        sotscope.generate(model, [9, 9, 9, 9, 9, 9, 9], mode="ar", prefix=kept, max_new_tokens=2)
    with pytest.raises(DecodeError, match="another model"):
        sotscope.generate(tiny("qwen2"), [*PROMPT, 4], mode="ar", prefix=kept, max_new_tokens=2)
    with pytest.raises(DecodeError, match="no tokens"):
        sotscope.warm_up(model, [])
