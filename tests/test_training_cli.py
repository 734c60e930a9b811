"""`sotscope train`: from a model to a drafter that `record` uses, and a card that says what happened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_helpers import call, mistake, model_folder

from sotscope.store.reader import open_run
from sotscope.training.corpus import Sample, read_corpus, write_corpus

SMALL = ("--epochs", 2, "--slots", 3, "--rows", 256, "--vocabulary", 64)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[str, object]]:
    """A drafter trained on 1,500 tokens the tiny model wrote; its folder, the work folder, what was printed."""
    folder = tmp_path_factory.mktemp("trained")
    answer = call(
        "train",
        "sot",
        "-m",
        model_folder(),
        "--tokens",
        4000,
        "-o",
        folder / "sot",
        "--work",
        folder / "work",
        *SMALL,
        "--json",
    )
    assert answer.code == 0, answer.err
    return folder / "sot", folder / "work", answer.json


def test_the_drafter_writes_what_ar_writes(trained: tuple[Path, Path, dict[str, object]], tmp_path: Path) -> None:
    for mode, more in (("ar", ()), ("sot", ("--drafter", trained[0], "--controller", "none", "--no-guard"))):
        out = tmp_path / f"{mode}.sot"
        assert call("record", "why?", "-m", model_folder(), "-n", 30, "--mode", mode, *more, "-o", out, "-q").code == 0
    ar, sot = open_run(tmp_path / "ar.sot"), open_run(tmp_path / "sot.sot")
    assert sot.tokens.all_ids == ar.tokens.all_ids
    assert len(sot.drafts)
    compared = call("compare", tmp_path / "ar.sot", tmp_path / "sot.sot", "--json").json
    assert [line["first_difference"] for line in compared["runs"]] == [None, None]
    assert compared["runs"][1]["acceptance_rate"] == pytest.approx(sot.drafts.accepted.mean())


def test_the_card_says_what_was_done(trained: tuple[Path, Path, dict[str, object]]) -> None:
    folder, work, printed = trained
    card = json.loads((folder / "card.json").read_text())
    samples = [s for s in read_corpus(next(work.glob("text-*.jsonl.gz"))) if len(s.new_ids) > 2]
    tokens = card["data"]["tokens"]
    for split in ("train", "test"):
        said = sum(count for name, count in tokens.items() if name.endswith(split))
        assert said == sum(len(s.new_ids) for s in samples if s.split == split)
    assert card["data"]["sources"][0]["own"] == 4000
    assert [epoch["epoch"] for epoch in card["epochs"]] == [1.0, 2.0]
    assert card["settings"]["epochs"] == 2
    assert printed["epochs"] == card["epochs"]
    assert card["predictor"]["kind"] == "gru"
    assert card["base"]["name"] == str(model_folder())
    assert not (folder / "checkpoint.pt").exists()


def test_training_again_gives_the_same_drafter(trained: tuple[Path, Path, dict[str, object]], tmp_path: Path) -> None:
    again = call("train", "sot", "-m", model_folder(), "--tokens", 4000, "-o", tmp_path, "--work", trained[1], *SMALL)
    assert again.code == 0, again.err
    assert (tmp_path / "model.safetensors").read_bytes() == (trained[0] / "model.safetensors").read_bytes()


def test_data_of_ones_own_and_the_heads_of_dmtd(trained: tuple[Path, Path, dict[str, object]], tmp_path: Path) -> None:
    data = tmp_path / "mine.jsonl"
    write_corpus(data, [Sample("chat", [5, 6, 7 + i], list(range(20 + i, 40 + i)), split="train") for i in range(30)])
    out = tmp_path / "dmtd"
    made = call(
        "train", "dmtd", "-m", model_folder(), "--data", data, "-o", out, "--work", tmp_path / "w", *SMALL, "--json"
    )
    assert made.code == 0, made.err
    assert made.json["data"]["samples"] == 30
    assert any(name.endswith("test") for name in made.json["data"]["tokens"]), (
        "without a split of its own, some is held out"
    )
    run = tmp_path / "r.sot"
    assert (
        call("record", "why?", "-m", model_folder(), "-n", 8, "--mode", "dmtd", "--drafter", out, "-o", run, "-q").code
        == 0
    )


def test_a_drafter_without_a_folder_of_its_own_is_found_by_record(
    trained: tuple[Path, Path, dict[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    missing = mistake("record", "why?", "-m", model_folder(), "-n", 4, "--mode", "sot", "-o", tmp_path / "a.sot")
    assert "sotscope train sot" in missing
    call("train", "sot", "-m", model_folder(), "--tokens", 4000, "--work", trained[1], *SMALL)
    found = call("record", "why?", "-m", model_folder(), "-n", 4, "--mode", "sot", "-o", tmp_path / "a.sot", "-q")
    assert found.code == 0, found.err


def test_a_controller_is_trained_on_what_became_of_drafts(
    trained: tuple[Path, Path, dict[str, object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("sotscope.training.controller.PASSES", 20)
    refused = mistake("train", "controller", "-m", model_folder(), "--tokens", 300)
    assert "no trained sot drafter" in refused
    call("train", "sot", "-m", model_folder(), "--tokens", 4000, "--work", trained[1], *SMALL)
    made = call("train", "controller", "-m", model_folder(), "--tokens", 300, "--json")
    assert made.code == 0, made.err
    assert made.json["data"]["steps"] > 10
    assert set(made.json["figures"]) == {"held_out_loss", "loss_of_constant_rates"}
    out = tmp_path / "a.sot"
    used = call(
        "record", "why?", "-m", model_folder(), "-n", 20, "--mode", "sot", "--controller", "lstm", "-o", out, "-q"
    )
    assert used.code == 0, used.err
    assert len(open_run(out).tokens.generated_ids) == 20


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("sott",), "did you mean sot"),
        (("sot", "--data", "no.jsonl"), "cannot read no.jsonl"),
        (("sot", "--tokens", 0), "too few"),
        (("sot", "--kind", "lstm"), "unknown predictor"),
        (("sot", "--resume", "--tokens", 4000), "no checkpoint"),
    ],
)
def test_mistakes_get_one_line(
    arguments: tuple[object, ...], why: str, trained: tuple[Path, Path, dict[str, object]], tmp_path: Path
) -> None:
    assert why in mistake("train", *arguments, "-m", model_folder(), "-o", tmp_path / "o", "--work", trained[1])
