"""What goes wrong on the way: hooks are gone, the run is kept, and what cannot be recorded is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from sotscope.capture.plan import hook_counts, make_plan
from sotscope.capture.tap import Tap
from sotscope.errors import CaptureError, ConfigError, DecodeError, ModelError, PromptError, SiteError
from sotscope.store.reader import open_run
from sotscope.store.verify import verify
from sotscope.testing.drafters import greedy
from sotscope.testing.oracle import check_run
from sotscope.testing.tiny import tiny

PROMPT = [5, 17, 3, 88, 41]


class Fails:
    """A logits processor that raises when it is asked for the ``last`` time."""

    def __init__(self, last: int) -> None:
        self.left = last

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        if not self.left:
            raise ZeroDivisionError("the processor failed")
        return scores


def only_run(folder: Path) -> Any:
    (path,) = folder.glob("*.sot")
    return open_run(path)


def kept_and_sound(run: Any, rows: int, words: str) -> None:
    assert len(run) == rows
    assert not run.complete
    assert not run.recording
    assert run.info()["outcome"]["finish_reason"] == "error"
    assert words in run.info()["outcome"]["detail"]
    assert run.sequences["finish"].tolist() == ["error"]
    assert verify(run.path).sound
    assert len({len(run.states(site)) for site in run.sites} | {len(run.scalars("norm"))}) == 1


def test_a_processor_that_raises_leaves_no_hook_and_whole_steps(go: Any, tmp_path: Path) -> None:
    model = tiny("llama")
    before = hook_counts(model)
    with pytest.raises(ZeroDivisionError):
        go(model, sites=["resid", "attn_out"], max_new_tokens=9, processors=[Fails(3)])
    assert hook_counts(model) == before
    run = only_run(tmp_path)
    kept_and_sound(run, rows=4 + 2, words="ZeroDivisionError: the processor failed")
    check_run(model, run)
    again = go(model, sites=["resid", "attn_out"], max_new_tokens=9)
    assert again.tokens.all_ids == [*PROMPT, *greedy(model, PROMPT, 9)]
    assert list(again.tokens.pos) == list(range(13))
    check_run(model, again)


def test_a_block_that_raises_leaves_no_half_step(go: Any, tmp_path: Path) -> None:
    model = tiny("llama")
    calls = []

    def fail(module: Any, args: Any) -> None:
        calls.append(1)
        if len(calls) == 5:  # the probe for shapes, the prefill, and two steps went well
            raise RuntimeError("the block failed")

    handle = model.model.layers[2].register_forward_pre_hook(fail)
    before = hook_counts(model)
    with pytest.raises(RuntimeError, match="the block failed"):
        go(model, max_new_tokens=9)
    assert hook_counts(model) == before
    handle.remove()
    run = only_run(tmp_path)
    kept_and_sound(run, rows=4 + 2, words="the block failed")
    check_run(model, run)
    check_run(model, go(model, max_new_tokens=9))


def test_an_interrupt_is_not_called_an_error(llama: Any, go: Any, tmp_path: Path) -> None:
    def interrupt(step: Any, recording: Any) -> None:
        if step.index == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(llama, max_new_tokens=9, on_step=interrupt)
    run = only_run(tmp_path)
    assert len(run) == 4 + 3
    assert not run.complete
    assert run.info()["outcome"]["finish_reason"] == "interrupted"
    assert run.info()["outcome"]["new_tokens"] == 3
    assert not hook_counts(llama)


def test_hooks_of_others_stay_and_ours_go(go: Any) -> None:
    model = tiny("llama")
    handle = model.model.layers[1].register_forward_hook(lambda *_: None)
    go(model, sites=["all"], max_new_tokens=2)
    assert hook_counts(model) == {"model.layers.1": 1}
    handle.remove()
    assert not hook_counts(model)


def test_a_batch_is_refused(llama: Any) -> None:
    with (
        torch.inference_mode(),
        Tap(make_plan(llama, ["resid"])),
        pytest.raises(CaptureError, match=r"a batch of 2 sequences.*one sequence at a time"),
    ):
        llama(torch.tensor([[5, 17], [3, 88]]))
    assert not hook_counts(llama)


def test_rows_without_a_forward_are_an_error(llama: Any) -> None:
    with Tap(make_plan(llama, ["resid"])) as tap, pytest.raises(CaptureError, match="nothing was captured"):
        tap.take(1, (-1,))


def test_train_mode_is_refused(go: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"train mode.*model\.eval\(\)"):
        go(tiny("llama").train())
    assert not list(tmp_path.iterdir())


def test_encoder_decoder_models_are_refused(go: Any) -> None:
    sizes = {"vocab_size": 97, "d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 4, "d_kv": 8}
    model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model("t5", **sizes)).eval()
    with pytest.raises(SiteError, match="t5 is an encoder-decoder model"):
        go(model)


def test_beam_search_is_refused_wherever_it_is_asked_for(go: Any, tmp_path: Path) -> None:
    model = tiny("llama")
    with pytest.raises(ConfigError, match="num_beams"):
        go(model, num_beams=3)
    model.generation_config.num_beams = 3
    with pytest.raises(DecodeError, match=r"beam search \(num_beams=3\)"):
        go(model)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ids", ["5 97", "-1 5", "5 100000"])
def test_ids_outside_the_vocabulary_are_refused(ids: str, llama: Any, go: Any, tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"token id -?\d+ .* 97"):
        go(llama, ids)
    assert not list(tmp_path.iterdir())


def test_a_compiled_model_is_recorded_in_full(go: Any) -> None:
    model = tiny("llama")
    compiled = torch.compile(model, backend="eager")
    with torch.inference_mode():
        compiled(torch.tensor([PROMPT]))
    run = go(compiled, sites=["all"], max_new_tokens=6)
    assert run.tokens.all_ids == [*PROMPT, *greedy(model, PROMPT, 6)]
    assert run.attributes["model"]["name"] == "LlamaForCausalLM"
    check_run(model, run)


@pytest.mark.parametrize("part", ["whole", "block", "wrapped"])
def test_a_model_compiled_in_place_is_refused(part: str, go: Any, tmp_path: Path) -> None:
    model = tiny("llama")
    if part == "wrapped":
        model.model.layers[1] = torch.compile(model.model.layers[1], backend="eager")
    else:
        (model if part == "whole" else model.model.layers[1]).compile(backend="eager")
    with pytest.raises(ModelError, match=r"compiled in place.*hooks"):
        go(model, sites=["all"], max_new_tokens=6)
    assert not list(tmp_path.iterdir())


def test_the_model_computes_the_same_after_a_recording(go: Any) -> None:
    model = tiny("llama")
    ids = torch.tensor([PROMPT])
    with torch.inference_mode():
        before = model(ids).logits.numpy().copy()
        go(model, sites=["all"], max_new_tokens=4)
        assert np.array_equal(model(ids).logits.numpy(), before)
        assert model(ids).hidden_states is None
