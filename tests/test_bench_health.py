"""`sotscope bench health`: its texts, its rows and its figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_helpers import call, model_folder
from transformers import RepetitionPenaltyLogitsProcessor

from sotscope.bench.decode_prompts import bench_prompts
from sotscope.bench.health import PROMPTS
from sotscope.bench.health_figures import Judged, detection, early
from sotscope.bench.health_live import _state_bytes, cost, live
from sotscope.bench.health_parts import Parts
from sotscope.bench.health_recover import AFTER, ATTEMPTS, recover
from sotscope.bench.health_replay import Replay, described
from sotscope.catalog import MONITORS
from sotscope.config import CaptureConfig, DecodeConfig, HealthConfig, PromptConfig, RunConfig
from sotscope.errors import HealthError
from sotscope.events import Alarm
from sotscope.health.loops import loop_start
from sotscope.models.load import Loaded
from sotscope.recorder import recording
from sotscope.store.reader import open_run
from sotscope.testing.tiny import tiny
from sotscope.training.generate import continue_batch


@pytest.mark.parametrize("penalty", [1.1, 1.5, 0.8])
def test_a_batch_is_penalised_as_transformers_penalises_each_text(penalty: float) -> None:
    model = tiny("llama")
    prompts = [[5, 6, 7, 5], [9], [11, 3, 9, 9, 9, 2, 40]]
    process = RepetitionPenaltyLogitsProcessor(penalty)
    alone = []
    for prompt in prompts:
        ids = list(prompt)
        with torch.inference_mode():
            for _ in range(24):
                scores = process(torch.tensor([ids]), model(torch.tensor([ids])).logits[:, -1])
                ids.append(int(scores.argmax()))
        alone.append(ids[len(prompt) :])
    assert continue_batch(model, prompts, 24, frozenset(), repetition_penalty=penalty) == alone
    assert alone != continue_batch(model, prompts, 24, frozenset())


def test_a_text_that_ends_takes_its_penalties_with_it() -> None:
    model = tiny("llama")
    prompts = [[5, 6, 7, 5], [9], [11, 3, 9, 9, 9, 2, 40]]
    whole = continue_batch(model, prompts, 24, frozenset(), repetition_penalty=1.3)
    stop = frozenset({whole[0][4]})
    cut = [next((text[: i + 1] for i, token in enumerate(text) if token in stop), text) for text in whole]
    assert continue_batch(model, prompts, 24, stop, repetition_penalty=1.3) == cut


def test_the_shipped_prompts_are_at_least_a_hundred_different_ones_of_several_kinds() -> None:
    lines = bench_prompts(PROMPTS)
    assert len({line.title for line in lines}) == len(lines) >= 100
    assert len({line.kind for line in lines}) >= 5
    assert any(line.raw for line in lines)


def alarm(kind: str, pos: int, severity: str = "critical") -> dict[str, Any]:
    return {"kind": kind, "severity": severity, "onset": pos, "pos": pos, "episode": 0}


def judged(
    written: list[int], *alarms: dict[str, Any], looks: Sequence[list[float]] = (), ended: bool = True
) -> Judged:
    return Judged(10, written, ended, {"alarms": list(alarms), "looks": list(looks)})


NEVER = list(range(1000, 1300))
LOOPS = [*range(200), *([7] * 100)]  # meets the definition after 224 tokens
KNOWN_AT = 8
"""An alarm at position p knows p + 2 tokens, 10 of them the prompt's: p - 8 are generated."""


def test_alarms_become_recall_precision_false_alarms_and_lead() -> None:
    found = detection(
        [
            judged(LOOPS, alarm("repetition", 214 + KNOWN_AT), alarm("collapse", 230 + KNOWN_AT)),  # 10 tokens early
            judged(LOOPS, alarm("repetition", 229 + KNOWN_AT), alarm("loop_risk", 200 + KNOWN_AT, "warning")),  # 5 late
            judged(LOOPS, alarm("norms", 20 + KNOWN_AT)),  # not about the loop: a false one, and not found
            judged(LOOPS),
            judged(NEVER, alarm("norms", 50), alarm("norms", 150)),
            judged(NEVER, alarm("loop_risk", 50, "warning")),
        ]
    )
    healthy = 4 * 224 + 2 * 300
    assert found["recall"] == 0.5
    assert found["precision"] == 0.5
    assert found["false_alarms_per_1000"] == pytest.approx(3000 / healthy, abs=1e-3)
    assert found["lead_median"] == 2.5
    assert (found["looping"], found["texts"], found["healthy_tokens"]) == (4, 6, healthy)
    assert found["by_monitor"]["norms"] == {"loops": 0, "false": 3}
    assert found["by_monitor"]["loop_risk"] == {"loops": 1, "false": 1}
    assert detection([judged(NEVER)])["recall"] is None


def test_the_early_warning_is_judged_look_by_look_on_what_is_known() -> None:
    def looks(risky: range) -> list[list[float]]:
        return [[pos, 0.9 if pos - KNOWN_AT in risky else 0.1, 0.5] for pos in range(31, 300, 4)]

    texts = [judged(LOOPS, looks=looks(range(184, 400))), judged(NEVER, looks=looks(range(0)), ended=False)]
    found = early(texts, 0.5, 0.95)
    assert found is not None
    assert found["auc"] > 0.98  # looks at 33-40 tokens before count as not soon
    assert found["auc_tokens_only"] == 0.5
    assert found["false_positive_rate"] == 0.0
    assert 36 <= found["lead_median"] <= 40
    assert found["at_threshold_texts"]["warned"] == 0.0
    assert early([judged(NEVER)], 0.5, 0.5) is None


@pytest.fixture(scope="module")
def base() -> Loaded:
    return Loaded(tiny("llama"), None, "tiny", "in memory")


@pytest.mark.parametrize("seed", range(3))
def test_a_replay_raises_the_alarms_of_a_live_recording(base: Loaded, seed: int, tmp_path: Path) -> None:
    monitors: dict[str, dict[str, Any]] = {name: {} for name in MONITORS.names()}
    monitors["repetition"] = {"tokens": 8}
    model = tiny("llama", seed=seed)
    loaded = Loaded(model, None, "tiny", "in memory")
    replay = Replay(loaded, monitors)
    settings = RunConfig(
        input=PromptConfig(prompt="5 17 3 9"), out=tmp_path / "live.sot",
        capture=CaptureConfig(sites=list(replay.sites), self_check=False),
        decode=DecodeConfig(max_new_tokens=100, do_sample=False, eos_token_id=[]),
        health=HealthConfig(monitor=True, monitors=monitors),
    )  # fmt: skip
    live: list[Alarm] = []
    with recording(settings, model=loaded, on_alarm=live.append) as recorded:
        for _ in recorded.steps():
            pass
    ids = [int(token) for token in open_run(tmp_path / "live.sot").tokens.all_ids]
    said = replay(ids[:4], ids[4:])
    assert said["alarms"] == [described(one) for one in live]
    assert said["alarms"], "tiny models loop soon"
    assert len(ids) == 104


def test_a_recovery_starts_at_the_alarm_and_is_judged_by_the_tokens_after_it() -> None:
    loaded = Loaded(tiny("llama", seed=2, max_position_embeddings=1024), None, "tiny", "in memory")
    given = PromptConfig(prompt="5 17 3 9")
    (text,) = continue_batch(loaded.model, [[5, 17, 3, 9]], 90, frozenset())
    start = loop_start(text)
    assert start is not None
    done = recover(loaded, given, text, "rollback", ["resid"])
    assert done["alarmed"]
    assert done["kept"] > 0
    assert 1 <= done["attempts"] <= ATTEMPTS["rollback"]
    assert done["after"] == AFTER or not done["recovered"]
    nothing = recover(loaded, given, text, "plain", ["resid"])  # what ar wrote, ar writes again
    assert (nothing["alarmed"], nothing["recovered"], nothing["attempts"]) == (True, False, 1)
    assert 0 < nothing["after"] < AFTER  # it loops again, and no attempt is left
    never = recover(loaded, given, text[:20], "rollback", ["resid"])  # no alarm so far
    assert (never["alarmed"], never["recovered"], never["attempts"]) == (False, False, 0)


def test_no_more_tokens_are_judged_than_were_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """The known text is fed many tokens a step, over the end of what is judged."""
    monkeypatch.setattr("sotscope.bench.health_recover.AFTER", 3)
    loaded = Loaded(tiny("llama", seed=2, max_position_embeddings=1024), None, "tiny", "in memory")
    (text,) = continue_batch(loaded.model, [[5, 17, 3, 9]], 200, frozenset())
    found = recover(loaded, PromptConfig(prompt="5 17 3 9"), text, "refresh", ["resid"])
    assert (found["after"], found["recovered"]) == (3, True)


def test_a_text_of_which_only_the_states_differ_is_a_changed_one(base: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, bytes]] = []

    def other(run: Path) -> dict[str, bytes]:
        seen.append(_state_bytes(run))
        return {name: data + run.name.encode() for name, data in seen[-1].items()}

    monkeypatch.setattr("sotscope.bench.health_live._state_bytes", other)
    found = live(base, PromptConfig(prompt="5 17 3 9"), 12, ["resid"])
    assert (found["changed"], found["same_tokens"]) == (True, True)
    assert all(any(map(len, files.values())) for files in seen), "nothing was compared"


def test_a_text_without_trouble_is_the_same_with_everything_on(base: Loaded) -> None:
    found = live(base, PromptConfig(prompt="5 17 3 9"), 12, ["resid"])
    seconds = found.pop("seconds")
    assert found == {"changed": False, "same_tokens": True, "recoveries": 0, "tokens": 11}
    assert seconds.keys() == {"off", "on"}
    assert all(value > 0 for value in seconds.values())


def test_a_text_that_a_recovery_changes_is_a_changed_one() -> None:
    loaded = Loaded(tiny("llama", seed=2, max_position_embeddings=1024), None, "tiny", "in memory")
    found = live(loaded, PromptConfig(prompt="5 17 3 9"), 120, ["resid"])
    assert found["recoveries"] > 0
    assert (found["changed"], found["same_tokens"]) == (True, False)


def test_the_cost_is_the_median_of_what_texts_took() -> None:
    texts = [{"tokens": 10, "seconds": {"off": off, "on": on}} for off, on in ((0.9, 1.0), (1.0, 1.0), (0.5, 1.0))]
    found = cost([*texts, {"tokens": 0, "seconds": {"off": 0.0, "on": 0.0}}])
    assert found is not None
    assert (found["median"], found["rounds"]) == (0.9, 3)
    assert found["tokens_per_second"] == {"off": 12.5, "on": 10.0}
    assert cost([]) is None


def test_parts_are_made_once_and_those_of_another_bench_are_refused(tmp_path: Path) -> None:
    made: list[int] = []
    for _ in range(2):
        parts = Parts(tmp_path / "here", {"tokens": 5})
        assert parts.get("a.json", lambda: made.append(1) or {"x": float("nan")}) == {"x": None}
    assert made == [1]
    with pytest.raises(HealthError, match="another"):
        Parts(tmp_path / "here", {"tokens": 6})
    (tmp_path / "here" / "a.json").write_text("{")
    with pytest.raises(HealthError, match="delete it"):
        parts.get("a.json", dict)


def test_the_whole_bench_runs_resumes_and_says_what_it_promises(tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("".join(json.dumps({"kind": "chat", "prompt": text}) + "\n" for text in ("why?", "how?")))
    options = ("-m", model_folder(), "--prompts", prompts, "--quick", "--tokens", 60, "--resume", tmp_path / "parts")
    answer = call("bench", "health", *options, "--json")
    assert answer.code == 0, answer.err
    found = answer.json
    promised = "recall precision false_alarms_per_1000 lead_median early recovered baselines cost_ratio healthy_changed"
    assert set(promised.split()) <= set(found)
    assert set(found["recovered"]) == {"rollback", "refresh", "rescale", "plain"}
    assert set(found["baselines"]) >= {"none", "repetition_penalty"}
    assert found["healthy_changed"] == 0
    assert call("bench", "health", *options, "--json").json == found
    refused = call("bench", "health", *options[:-4], "--tokens", 50, "--resume", tmp_path / "parts")
    assert refused.code == 2
    assert "another bench" in refused.err or "bench with another" in refused.err
