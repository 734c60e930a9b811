"""`bench decode`: what is timed, what the figures mean, and which prompts it ships."""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import call, mistake, model_folder

from sotscope.bench.decode import run
from sotscope.bench.decode_arms import PEERS, Decoded, Ours, Peer
from sotscope.bench.decode_plot import draw, figure
from sotscope.bench.decode_prompts import bench_prompts
from sotscope.bench.decode_report import Sample, interval, latency_ms, shares
from sotscope.decode.contracts import Drafter
from sotscope.events import Step
from sotscope.models.load import Loaded
from sotscope.testing.drafters import anti, greedy, mix, oracle
from sotscope.testing.tiny import tiny

IDS = [5, 17, 3, 88, 41]
TOKENS = 12
KEYS = {
    "speedup", "geomean", "tokens_per_forward", "acceptance", "identical", "ties", "divergences", "latency_ms", "share",
    "ttft_ms", "peers", "intervals", "conditions",
}  # fmt: skip


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return Loaded(tiny("llama"), None, "tiny", "in memory")


def prompts_file(folder: Path, *entries: dict[str, Any]) -> Path:
    file = folder / "prompts.jsonl"
    file.write_text("\n".join(json.dumps(entry) for entry in entries))
    return file


@pytest.fixture(scope="module")
def found(loaded: Loaded, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Drafters with a known hit rate on two prompts, a mode that cannot be had, and a prompt that is too long."""
    vocab = 97

    @functools.cache
    def text(ids: tuple[int, ...]) -> list[int]:
        return greedy(loaded.model, ids, TOKENS)

    def wrong_and_believed(ids: Sequence[int]) -> Drafter:
        drafter = mix(text(tuple(ids)), 3, vocab)
        drafter.policy = "none"
        return drafter

    file = prompts_file(
        tmp_path_factory.mktemp("bench"),
        {"kind": "chat", "prompt": " ".join(map(str, IDS))},
        {"kind": "chat", "prompt": "7 " * 120},
        {"kind": "code", "prompt": "9 9 2 60 31 4"},
    )
    drafters = {
        "right": lambda ids: oracle(text(tuple(ids)), 3),
        "wrong": lambda ids: anti(text(tuple(ids)), 3, vocab),
        "mixed": lambda ids: mix(text(tuple(ids)), 3, vocab),
        "believed": wrong_and_believed,
    }
    return run(model=loaded, prompts=file, tokens=TOKENS, rounds=2, modes=["ar", "sot"], drafters=drafters)


def test_tokens_per_forward_and_acceptance_are_those_of_drafters_with_a_known_hit_rate(found: dict[str, Any]) -> None:
    # right: 12 tokens in 3 steps; mixed: slot 2 is always wrong, so 3 tokens a step, 4 steps; wrong: 12 steps
    assert found["tokens_per_forward"]["right"] == {"chat": 1 + 9 / 3, "code": 1 + 9 / 3}
    assert found["tokens_per_forward"]["mixed"] == {"chat": 1 + 8 / 4, "code": 1 + 8 / 4}
    assert found["tokens_per_forward"]["wrong"] == found["tokens_per_forward"]["ar"] == {"chat": 1.0, "code": 1.0}
    assert found["acceptance"]["right"] == [1.0, 1.0, 1.0]
    assert found["acceptance"]["mixed"] == [1.0, 1.0, 0.0]
    assert found["acceptance"]["wrong"] == [0.0, 0.0, 0.0]
    assert found["acceptance"]["ar"] == []


def test_a_text_that_differs_is_not_identical_and_the_place_is_named(found: dict[str, Any]) -> None:
    assert found["identical"] == {"ar": 1.0, "right": 1.0, "wrong": 1.0, "mixed": 1.0, "believed": 0.0}
    assert found["ties"] == 0
    places = [(entry["arm"], entry["prompt"], entry["verdict"], entry["index"]) for entry in found["divergences"]]
    assert places == [("believed", 0, "divergence", 2), ("believed", 1, "divergence", 2)]
    assert all(entry["margin"] > 0 for entry in found["divergences"])
    # its first block is longer than what it has in common with ar: nothing is left to be timed
    assert math.isnan(found["geomean"]["believed"])
    assert all(found["geomean"][mode] > 0 for mode in ("right", "wrong", "mixed"))
    assert found["geomean"]["ar"] == 1.0


def test_what_cannot_be_measured_is_left_out_with_a_note(found: dict[str, Any]) -> None:
    notes = found["conditions"]["notes"]
    assert any(note.startswith("sot is left out: there is no trained sot drafter for tiny") for note in notes)
    assert any(note.startswith("1 prompts are left out: too long for the context of 128") for note in notes)
    assert "sot" not in found["geomean"]
    assert found["conditions"]["prompts"] == {"chat": 1, "code": 1}


def test_the_plot_shows_every_arm_of_every_kind(found: dict[str, Any], tmp_path: Path) -> None:
    bars = {bar.name: list(bar.y) for bar in figure(found).data if bar.legendgroup == "arms"}
    assert list(bars) == ["right", "wrong", "mixed", "believed", *PEERS]
    assert bars["right"] == [
        found["speedup"]["chat"]["right"],
        found["speedup"]["code"]["right"],
        found["geomean"]["right"],
    ]
    notice = draw(found, tmp_path / "speed.html")
    assert "Plotly.newPlot" in (tmp_path / "speed.html").read_text()
    assert (tmp_path / "speed.png").exists() or notice.startswith("no speed.png: ")


def test_the_command_reports_our_loop_and_transformers_on_the_same_prompts(tmp_path: Path) -> None:
    file = prompts_file(tmp_path, {"kind": "chat", "prompt": "why?"}, {"kind": "raw", "prompt": "abcabcabc"})
    options = ["-m", model_folder(), "--prompts", file, "--tokens", TOKENS, "--rounds", 1, "--modes", "ar,lookup"]
    found = call("bench", "decode", *options, "--json").json
    assert set(found) == KEYS
    assert set(found["speedup"]) == {"chat", "raw"}
    for groups in (*found["speedup"].values(), found["geomean"]):
        assert set(groups) == {"ar", "lookup"}
        assert all(ratio > 0 for ratio in groups.values())
    assert found["peers"].keys() == PEERS.keys()
    assert all(ratio > 0 for arm in found["peers"].values() for ratio in arm.values())
    assert (found["identical"], found["ties"], found["divergences"]) == ({"ar": 1.0, "lookup": 1.0}, 0, [])
    assert all(sum(share.values()) == pytest.approx(1, abs=0.01) for share in found["share"].values())
    assert (found["conditions"]["tokens"], found["conditions"]["rounds"]) == (TOKENS, 1)
    printed = call("bench", "decode", *options)
    assert printed.code == 0, printed.err
    assert "hf_prompt_lookup" in printed.out
    assert "tokens/forward" in printed.out


def block(at: tuple[float, ...], ends: tuple[int, ...], tokens: tuple[int, ...] = (1, 2, 3, 4, 5, 6)) -> Decoded:
    return Decoded(tokens, ends, at)


BEFORE, AFTER = block((1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 6)), block((2, 4, 6, 8, 10, 12), (1, 2, 3, 4, 5, 6))


@pytest.mark.parametrize(
    ("tokens", "ratio"),
    [
        # tokens 3 to 6: ar took 4 s before and 8 s after, this arm 3 s
        ((1, 2, 3, 4, 5, 6), 6 / 3),
        # the last one differs: tokens 3 to 5, 3 s and 6 s over 2 s
        ((1, 2, 3, 4, 5, 9), 4.5 / 2),
        ((1, 2, 3, 9, 9, 9), None),
    ],
    ids=["identical", "last-differs", "no-whole-block"],
)
def test_an_arm_is_compared_with_both_neighbours_on_the_same_tokens(
    tokens: tuple[int, ...], ratio: float | None
) -> None:
    arm = block((10.0, 12.0, 13.0), (2, 5, 6), tokens)
    assert Sample("chat", 0, "arm", arm, (BEFORE, AFTER)).ratio() == ratio


def test_tokens_of_a_block_arrive_together() -> None:
    assert latency_ms([block((1.0, 1.3), (1, 4))]) == {"p50": 0.0, "p95": 270.0, "p99": 294.0}
    assert latency_ms([block((1.0,), (6,))]) == {"p50": None, "p95": None, "p99": None}


def test_time_is_shared_out_after_the_first_block() -> None:
    def step(draft: int, forward: int, accept: int) -> Step:
        return Step(0, 0, "sot", 0, (), (), draft_ns=draft, forward_ns=forward, accept_ns=accept)

    steps = (step(10**9, 10**9, 10**9), step(30_000_000, 200_000_000, 50_000_000))
    run_ = Decoded((1, 2, 3), (1, 3), (1.0, 1.3), steps)
    assert shares([run_]) == {"draft": 0.1, "forward": 0.6667, "accept": 0.1667, "other": 0.0667}


def test_overall_is_the_geometric_mean_of_the_kinds_medians() -> None:
    found = interval({"chat": [1.0, 2.0, 9.0], "code": [8.0], "raw": []})
    assert (found["median"], found["prompts"]) == (4.0, 4)
    assert (found["low"], found["high"]) == (round(8**0.5, 4), round(72**0.5, 4))


def test_every_arm_stops_with_eos(loaded: Loaded) -> None:
    text = greedy(loaded.model, IDS, TOKENS)
    eos = text[7]
    expected = tuple(text[: text.index(eos) + 1])
    loaded.model.generation_config.eos_token_id = eos
    try:
        arms = [
            Ours(loaded, "ar", TOKENS),
            Ours(loaded, "right", TOKENS, lambda ids: oracle(text, 3)),
            *(Peer(loaded, TOKENS, options) for options in PEERS.values()),
        ]
        runs = [arm(IDS) for arm in arms]
    finally:
        loaded.model.generation_config.eos_token_id = None
    assert [found.tokens for found in runs] == [expected] * 4
    assert all(found.ends[-1] == len(expected) and list(found.at) == sorted(found.at) for found in runs)
    assert runs[0].ends == runs[2].ends == tuple(range(1, len(expected) + 1))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('{"kind": "chat", "prompt": "a"}\n\n{"kind": "chat"', "line 3: not JSON"),
        ('["chat"]', "line 1: give a string"),
        ('{"kind": "chat", "prompt": " "}', "line 1: the prompt is empty"),
        ('{"prompt": "a"}', "line 1: give a kind"),
        ('{"kind": "chat", "prompt": "a", "raw": 1}', "line 1: raw must be a bool"),
        ('{"kind": "chat", "text": "a"}', "line 1: unknown field 'text'"),
        ("\n", "holds no prompts"),
    ],
)
def test_a_bad_prompts_file_is_one_line_that_names_the_line(lines: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(lines)
    line = mistake("bench", "decode", "--prompts", file)
    assert f"{file}" in line
    assert said in line


def test_what_would_fail_later_is_refused_at_once(tmp_path: Path) -> None:
    assert mistake("bench", "decode", "--modes", "lokup") == "unknown mode 'lokup'; did you mean lookup?"
    assert "nothing to measure" in mistake("bench", "decode", "--modes", "lookup,forced")
    assert "cannot read" in mistake("bench", "decode", "--prompts", tmp_path / "none.jsonl")
    assert "there is no folder" in mistake("bench", "decode", "--plot", tmp_path / "no" / "a.html")
    assert "ends in .html" in mistake("bench", "decode", "--plot", tmp_path / "a.png")


def test_the_shipped_prompts_are_of_four_kinds_and_all_different() -> None:
    prompts = bench_prompts()
    kinds = Counter(prompt.kind for prompt in prompts)
    assert set(kinds) == {"chat", "raw", "copy", "code"}
    assert min(kinds.values()) >= 8
    assert len({" ".join(prompt.prompt.lower().split()) for prompt in prompts}) == len(prompts)
    assert all(prompt.raw for prompt in prompts if prompt.kind == "raw")
    assert not any(prompt.raw for prompt in prompts if prompt.kind in ("chat", "copy"))
    assert {prompt.raw for prompt in prompts if prompt.kind == "code"} == {True, False}
