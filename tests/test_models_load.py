"""Loading: what can go wrong is one line that names it; what is loaded is described and told apart by fingerprint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from sotscope.errors import ModelError
from sotscope.models import embedded
from sotscope.models.load import Loaded, fingerprint, load
from sotscope.testing.drafters import greedy
from sotscope.testing.tiny import tiny
from sotscope.testing.tokenizers import byte_tokenizer


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model and its tokenizer in a folder, as anybody may have one."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny("llama", vocab_size=258).save_pretrained(folder)
    byte_tokenizer(chat=True).save_pretrained(folder)
    return folder


def refusal(name: str, **options: Any) -> str:
    with pytest.raises(ModelError) as error:
        load(name, **options)
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 500
    return text


def test_a_saved_model_loads_as_it_was(saved: Path) -> None:
    loaded = load(str(saved))
    original = tiny("llama", vocab_size=258)
    assert greedy(loaded.model, [5, 17, 3], 12) == greedy(original, [5, 17, 3], 12)
    assert not loaded.model.training
    assert loaded.tokenizer("hi")["input_ids"] == byte_tokenizer()("hi")["input_ids"]
    assert loaded.describe() == {
        "name": str(saved),
        "source": str(saved),
        "origin": "",
        "quantisation": "none",
        "model_type": "llama",
        "dtype": "float32",
        "parameters": original.num_parameters(),
        "attention": "sdpa",
        "fingerprint": fingerprint(original),
    }
    json.dumps(loaded.describe())


def test_dtype_attention_and_device_are_as_asked(saved: Path) -> None:
    loaded = load(str(saved), dtype="bfloat16", attn_implementation="eager", device="cpu")
    assert loaded.model.dtype is torch.bfloat16
    assert loaded.describe()["attention"] == "eager"
    assert loaded.model.device.type == "cpu"


def test_the_dtype_is_that_of_the_weights_unless_asked(tmp_path: Path) -> None:
    tiny("llama", vocab_size=258, dtype="bfloat16").save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    assert load(str(tmp_path)).model.dtype is torch.bfloat16


def test_a_loaded_model_records(saved: Path, go: Any) -> None:
    run = go(str(saved), "hi", max_new_tokens=3)
    assert run.attributes["model"]["name"] == str(saved)
    assert run.attributes["family"] == "llama"
    assert run.tokens.segments[0] == "user"


def test_loading_tells_what_takes_time(saved: Path) -> None:
    told: list[str] = []
    load(str(saved), report=told.append)
    assert told == [f"loading {saved}"]


def test_fingerprints_tell_weights_apart_and_nothing_else() -> None:
    first = fingerprint(tiny("llama"))
    assert first == fingerprint(tiny("llama"))
    assert len({first, fingerprint(tiny("llama", seed=1)), fingerprint(tiny("qwen2"))}) == 3
    changed = tiny("llama")
    changed.model.layers[2].mlp.up_proj.weight.data *= 1.01
    assert fingerprint(changed) != first


def test_a_model_in_memory_is_described_too(llama: Any) -> None:
    found = Loaded(llama, None, "LlamaForCausalLM", "in memory").describe()
    assert (found["name"], found["source"], found["quantisation"]) == ("LlamaForCausalLM", "in memory", "none")


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    missing = tmp_path / "nothing"
    assert refusal(str(missing)) == f"the folder {missing} does not exist."
    assert "does not exist" in refusal(f"{missing}.gguf")
    assert "does not exist" in refusal("./nothing")
    assert "no model given" in refusal(" ")


def test_what_is_no_model_is_said(tmp_path: Path) -> None:
    assert "no config.json" in refusal(str(tmp_path))
    file = tmp_path / "weights.bin"
    file.write_text("x")
    assert "neither a model folder nor a .gguf file" in refusal(str(file))
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but not really")
    assert str(broken) in refusal(str(broken))


def test_a_corrupt_config_is_said(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", ')
    assert str(tmp_path) in refusal(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "no_such_thing"}')
    assert "no_such_thing" in refusal(str(tmp_path))


def test_a_folder_without_weights_or_tokenizer_is_said(saved: Path, tmp_path: Path) -> None:
    config = (saved / "config.json").read_text()
    (tmp_path / "config.json").write_text(config)
    assert str(tmp_path) in refusal(str(tmp_path))
    tiny("llama", vocab_size=258).save_pretrained(tmp_path)
    assert str(tmp_path) in refusal(str(tmp_path))  # now it is the tokenizer that is missing


def test_an_encoder_decoder_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "t5", "is_encoder_decoder": true}')
    assert "t5 is an encoder-decoder model" in refusal(str(tmp_path))


def test_options_that_make_no_sense_are_refused(saved: Path) -> None:
    assert refusal(str(saved), dtype="int8") == "dtype 'int8' is not one of float32, bfloat16, float16."
    assert "either device or device_map" in refusal(str(saved), device="cpu", device_map="auto")
    assert "magic" in refusal(str(saved), attn_implementation="magic")
    assert "cannot load" in refusal(str(saved), device="cuda:99")


def test_a_hub_id_without_a_network_names_the_ways_out(tmp_path: Path) -> None:
    code = (
        "from sotscope.models.load import load\nfrom sotscope.errors import ModelError\n"
        "try:\n    load('somebody/some-model')\nexcept ModelError as error:\n    print(error)\n"
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    (line,) = done.stdout.splitlines()
    assert line.startswith("cannot get 'somebody/some-model' from the hub")
    assert "local folder" in line
    assert "--model smollm2" in line


def test_a_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOTSCOPE_CACHE", str(tmp_path))
    monkeypatch.setattr(embedded, "PACKAGE", "no-such-distribution")
    assert "sotscope fetch smollm2" in refusal("smollm2")


def test_a_cache_that_cannot_be_written_says_which(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SOTSCOPE_CACHE", str(tmp_path / "file" / "below"))
    monkeypatch.setattr(embedded, "gguf_path", lambda: tmp_path / "any.gguf")
    text = refusal("smollm2")
    assert "SOTSCOPE_CACHE" in text
    assert str(tmp_path / "file") in text


@pytest.mark.parametrize("fault", [RuntimeError("disk full"), KeyboardInterrupt()])
def test_a_conversion_that_fails_leaves_nothing_that_looks_finished(
    fault: BaseException, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def half(source: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise fault

    monkeypatch.setenv("SOTSCOPE_CACHE", str(tmp_path))
    monkeypatch.setattr(embedded, "gguf_path", lambda: tmp_path / "any.gguf")
    monkeypatch.setattr(embedded, "save_dequantised", half)
    with pytest.raises((ModelError, KeyboardInterrupt)) as failure:
        embedded.converted_folder()
    assert isinstance(failure.value, KeyboardInterrupt) or "disk full" in str(failure.value)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]

    def whole(source: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(embedded, "save_dequantised", whole)
    folder = embedded.converted_folder()
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "sotscope.json"]
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [folder]


def test_what_an_earlier_kill_left_behind_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOTSCOPE_CACHE", str(tmp_path))
    monkeypatch.setattr(embedded, "gguf_path", lambda: tmp_path / "any.gguf")
    monkeypatch.setattr(embedded, "save_dequantised", lambda source, folder: (folder / "new").write_text(""))
    target = tmp_path / f"smollm2-{embedded.VERSION}-fp32"
    target.mkdir()
    (target / "half").write_text("no provenance, so it is not finished")
    assert sorted(path.name for path in embedded.converted_folder().iterdir()) == ["new", "sotscope.json"]
