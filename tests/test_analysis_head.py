"""The head that is kept for the lens gives the model's own logits, wherever the run goes."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sotscope.analysis.head import FILE, Head, cached, load_head, missing
from sotscope.capture.contracts import unwrap
from sotscope.capture.plan import make_plan
from sotscope.config import CaptureConfig, RunConfig
from sotscope.errors import AnalysisError, CostError
from sotscope.events import Piece
from sotscope.head_file import save_head
from sotscope.models.load import fingerprint
from sotscope.store.verify import verify
from sotscope.testing.tiny import CONFIGS, tiny

EMBED = RunConfig(capture=CaptureConfig(embed_head=True))
PRINT = "0123456789abcdef"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv("SOTSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def varied(model: Any) -> Any:
    """Norms whose weights are not all one (or zero), so that no kind of norm is like another."""
    generator = torch.Generator().manual_seed(1)
    for name, weight in model.named_parameters():
        if weight.dim() == 1 and ("norm" in name or "ln" in name):
            weight.data += (0.5 * torch.randn(weight.shape, generator=generator)).to(weight)
    return model


def last_block_and_logits(model: Any) -> tuple[np.ndarray, np.ndarray]:
    kept = []
    hook = (
        make_plan(model, ["resid"])
        .anatomy.blocks[-1]
        .register_forward_hook(lambda module, given, out: kept.append(unwrap(out)))
    )
    with torch.inference_mode():
        logits = model(torch.tensor([[5, 17, 3, 88, 41]]), use_cache=False).logits
    hook.remove()
    return kept[0][0].float().numpy(), logits[0].float().numpy()


@pytest.mark.parametrize("name", CONFIGS)
def test_the_head_of_every_family_gives_the_models_logits(name: str, tmp_path: Path) -> None:
    model = varied(tiny(name))
    assert save_head(make_plan(model, ["resid"]), tmp_path / FILE, PRINT) == ""
    head = Head(tmp_path / FILE)
    resid, logits = last_block_and_logits(model)
    np.testing.assert_allclose(head.logits(head.normed(resid)), logits, atol=1e-5 * np.abs(logits).max())
    assert head.vocab == logits.shape[1]
    assert head.dim == resid.shape[1] or head.norm == "none"


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("granite", {"logits_scaling": 8.0}),
        ("gemma2", {"final_logit_softcapping": 2.0}),
        ("llama", {"rms_norm_eps": 0.1}),
    ],
)
def test_scale_soft_cap_and_eps_are_kept(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    model = varied(tiny(name, **changes))
    save_head(make_plan(model, ["resid"]), tmp_path / FILE, PRINT)
    resid, logits = last_block_and_logits(model)
    head = Head(tmp_path / FILE)
    np.testing.assert_allclose(head.logits(head.normed(resid)), logits, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_weight_keeps_the_models_type_exactly(dtype: str, tmp_path: Path) -> None:
    model = varied(tiny("llama", dtype=dtype))
    save_head(make_plan(model, ["resid"]), tmp_path / FILE, PRINT)
    head = Head(tmp_path / FILE)
    assert head.weight.dtype.name == dtype
    assert isinstance(head.weight, np.memmap)
    np.testing.assert_array_equal(head.weight.astype(np.float32), model.lm_head.weight.detach().float().numpy())
    resid, logits = last_block_and_logits(model)
    made = head.logits(head.normed(resid))
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, logits, atol=0.02 * np.abs(logits).max())


def test_blocks_single_words_and_a_copy_in_another_process_agree(llama: Any, tmp_path: Path) -> None:
    save_head(make_plan(llama, ["resid"]), tmp_path / FILE, PRINT)
    head = pickle.loads(pickle.dumps(Head(tmp_path / FILE)))
    states = np.random.default_rng(0).normal(size=(3, 32)).astype(np.float32)
    whole = head.logits(states)
    for start, part in head.blocks(states, 10):
        np.testing.assert_allclose(part, whole[:, start : start + 10], atol=1e-5)
    words = np.array([96, 0, 5])
    np.testing.assert_allclose(head.of(states, words), whole[np.arange(3), words], atol=1e-5)


def test_a_recording_keeps_the_head_once_a_model_and_the_run_finds_it(
    go: Callable[..., Any], llama: Any, cache: Path
) -> None:
    run = go(llama, max_new_tokens=3)
    path = cached(fingerprint(llama))
    assert path.parent.parent == cache / "heads"
    before = path.stat().st_mtime_ns
    head = load_head(run)
    assert head is not None
    assert (head.fingerprint, head.layers, head.norm) == (run.attributes["model"]["fingerprint"], 4, "rms")
    logits = head.logits(head.normed(run.states("resid", 3)))
    known = run.top[0][:, 0] >= 0
    np.testing.assert_array_equal(logits.argmax(1)[known], run.top[0][known, 0])
    go(llama, max_new_tokens=2)
    assert path.stat().st_mtime_ns == before
    assert [file.name for file in path.parent.iterdir()] == [FILE]


def test_embed_head_puts_it_into_the_run_which_is_sound(go: Callable[..., Any], llama: Any, cache: Path) -> None:
    run = go(llama, max_new_tokens=3, config=EMBED)
    assert not cache.exists()
    head = load_head(run)
    assert head is not None
    assert head.path == run.path / FILE
    assert verify(run.path).sound
    assert run.events("config")[0]["settings"]["capture"]["embed_head"] is True
    with pytest.raises(CostError):  # the head counts
        go(llama, config=EMBED.model_copy(update={"max_bytes": 13_000}), max_new_tokens=1, sites=["none"])
    go(llama, config=RunConfig(max_bytes=13_000), max_new_tokens=1, sites=["none"])


def test_a_run_without_a_head_says_which_command_gives_it(go: Callable[..., Any], llama: Any, cache: Path) -> None:
    run = go(llama, max_new_tokens=2)
    cached(fingerprint(llama)).unlink()
    assert load_head(run) is None
    assert "sotscope record hi -n 1 --model LlamaForCausalLM" in missing(run)
    assert "--embed-head" in missing(run)


def test_half_a_file_is_an_error_to_read_and_is_written_anew(go: Callable[..., Any], llama: Any) -> None:
    run = go(llama, max_new_tokens=2)
    path = cached(fingerprint(llama))
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(
        AnalysisError, match=r"head\.safetensors is not a head .* record anything with that model again"
    ):
        load_head(run)
    go(llama, max_new_tokens=2)
    assert load_head(run) is not None


def test_the_head_of_another_model_is_refused(go: Callable[..., Any], llama: Any) -> None:
    run = go(llama, max_new_tokens=2)
    other = tiny("llama", seed=7)
    save_head(make_plan(other, ["resid"]), run.path / FILE, fingerprint(other))
    with pytest.raises(AnalysisError, match="the head of another model"):
        load_head(run)


@pytest.mark.parametrize("wrong", ["../../etc", "", "abc", "0123456789abcdeg", "0123456789ABCDEF"])
def test_a_fingerprint_from_a_run_leads_nowhere_else(wrong: str) -> None:
    with pytest.raises(AnalysisError, match="not the fingerprint"):
        cached(wrong)


def test_a_recording_goes_on_where_the_head_cannot_be_kept(go: Callable[..., Any], llama: Any, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    run = go(llama, max_new_tokens=3)
    assert len(run) == 7
    said = run.events("config")[0]["warnings"]
    assert any("was not kept for the lens" in text for text in said)


def test_a_norm_nobody_knows_is_not_guessed(tmp_path: Path) -> None:
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(32))

        def forward(self, states: torch.Tensor) -> torch.Tensor:
            return self.weight * torch.tanh(states)

    model = tiny("llama")
    model.model.norm = Odd()
    assert save_head(make_plan(model, ["resid"]), tmp_path / FILE, PRINT) == ""
    head = Head(tmp_path / FILE)
    assert head.norm == "unknown"
    with pytest.raises(AnalysisError, match="final norm"):
        head.normed(np.zeros((1, 32), np.float32))


def test_a_head_that_is_more_than_a_matrix_is_not_kept(tmp_path: Path) -> None:
    model = tiny("llama")
    model.lm_head.forward = lambda states: torch.nn.functional.linear(states, model.lm_head.weight) ** 2
    assert "more than a matrix and a bias" in save_head(make_plan(model, ["resid"]), tmp_path / FILE, PRINT)
    assert not (tmp_path / FILE).exists()


def test_the_words_of_the_whole_vocabulary_are_kept(llama: Any, tmp_path: Path) -> None:
    plan = make_plan(llama, ["resid"])
    assert save_head(plan, tmp_path / FILE, PRINT) == ""
    assert not Head(tmp_path / FILE).has_words
    assert Head(tmp_path / FILE).label(7) == "#7"
    save_head(plan, tmp_path / FILE, PRINT, lambda token: Piece(token, f"Ġ{token}", f" {token}".encode(), token == 2))
    head = Head(tmp_path / FILE)  # written again, with words
    assert head.has_words
    assert [head.label(token) for token in (7, 96, 2, 97)] == ["␣7", "␣96", "Ġ2", "#97"]


def test_a_head_is_read_where_torch_is_not_installed(go: Callable[..., Any], llama: Any) -> None:
    run = go(llama, max_new_tokens=2, config=EMBED)
    code = (
        "import sys\n"
        "sys.modules.update(torch=None, transformers=None, filelock=None)\n"
        "from sotscope.analysis.run import analyze\n"
        "print(analyze('lens', sys.argv[1]).tables['check'].eval('(recorded == rebuilt).all()'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run.path)], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("True", "")


def test_states_that_are_not_finite_stay_so(llama: Any, tmp_path: Path) -> None:
    save_head(make_plan(llama, ["resid"]), tmp_path / FILE, PRINT)
    head = Head(tmp_path / FILE)
    states = np.ones((3, 32), np.float32)
    states[1, 4] = np.nan
    logits = head.logits(head.normed(states))
    assert np.isnan(logits[1]).all()
    assert np.isfinite(logits[[0, 2]]).all()
    large = np.full((1, 32), 25_000, np.float32)  # squares are taken in float64
    np.testing.assert_allclose(head.normed(large), head.normed(large / 1000), rtol=1e-4)
