"""The settings of a recording, validated, in and out of YAML. Unknown keys are errors, with the nearest known one."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sotscope.errors import ConfigError


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ModelConfig(_Settings):
    """Which model, and how it is loaded."""

    name: str = "smollm2"
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    device: str | None = None
    device_map: str | None = None
    attn_implementation: str | None = None


class CaptureConfig(_Settings):
    """What is recorded of each token besides the always-on scalars."""

    sites: list[str] = Field(default_factory=lambda: ["resid"])
    layers: str = "all"
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Type the states are stored in; the model's own by default."""
    attn_entropy: bool = False
    attn_layers: str = ""
    """Layers whose attention rows are recorded; none by default."""
    prompt_logits: bool = False
    last_row: bool = False
    top_k: int = Field(default=10, ge=1, le=100)
    modules: dict[str, str] = Field(default_factory=dict)
    """Module paths below a block, by site, for architectures without a family."""
    ring_mb: int = Field(default=128, ge=8)
    durable: bool = False
    self_check: bool = True
    embed_head: bool = False
    """Put the model's final norm and lm_head into the run; else they are kept once a model in the cache."""


class DraftConfig(_Settings):
    """How `sot` and `dmtd` make drafts. None of it changes what an exact run says."""

    temperature: float = Field(default=1.0, gt=0, le=4)
    """Flattens the drafter's distribution; 1.2-1.5 for one that is too sure of itself."""
    correction: float = Field(default=0.0, ge=0, le=1)
    """Weight of the running mean of past errors that is added to the next predicted states; 0.2-0.5 where used."""
    floor: float = Field(default=0.35, ge=0, lt=1)
    """Stop drafting when all drafts so far being right is less likely than this."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    sample: bool = False
    """Where tokens are sampled, draw drafts too, and judge them by rejection sampling: more are taken, but the text is
    not that of `ar` with the same seed (its distribution is)."""
    record_states: bool = False
    """Record the predicted states themselves, not only their errors."""


class LookupConfig(_Settings):
    """How `lookup` matches: n-grams of ``longest`` to ``shortest`` tokens, ``window`` tokens drafted."""

    window: int = Field(default=15, ge=1, le=64)
    longest: int = Field(default=8, ge=1, le=32)
    shortest: int = Field(default=2, ge=1, le=32)


class TypicalConfig(_Settings):
    """The thresholds of typical acceptance: p(draft) > min(epsilon, alpha * exp(-entropy))."""

    epsilon: float = Field(default=0.3, gt=0, le=1)
    alpha: float = Field(default=0.09, gt=0, le=1)


class DecodeConfig(_Settings):
    """How it is decoded. Sampling values that are None are the model's own generation_config."""

    mode: str = "ar"
    max_new_tokens: int = Field(default=128, ge=0)
    window: int | None = Field(default=None, ge=0)
    """Most tokens drafted a step; None: the drafter's own window. 0: nothing is drafted."""
    policy: Literal["exact", "typical", "none"] = "exact"
    typical: TypicalConfig = Field(default_factory=TypicalConfig)
    drafter: str | None = None
    """Folder of a trained drafter for sot and dmtd (default: the one made for this model); a model for draft."""
    draft: DraftConfig = Field(default_factory=DraftConfig)
    lookup: LookupConfig = Field(default_factory=LookupConfig)
    combine: list[str] = Field(default_factory=lambda: ["lookup", "sot"], min_length=1)
    """Who is asked in mode combine, in this order."""
    gates: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Gates on request, with their parameters: ``{entropy: {threshold: 2.3}}``."""
    controller: Literal["cost", "lstm", "none"] = "cost"
    """Who picks the window of each step."""
    guard: bool = True
    """Stop drafting where it does not pay, and try again later."""
    seed: int = Field(default=0, ge=0)
    do_sample: bool | None = None
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0)
    repetition_penalty: float | None = Field(default=None, gt=0)
    no_repeat_ngram_size: int | None = Field(default=None, ge=0)
    min_new_tokens: int | None = Field(default=None, ge=0)
    eos_token_id: list[int] | None = None
    stop: list[str] = Field(default_factory=list)
    force: str | None = None
    prefill_block: int = Field(default=256, ge=1)

    @model_validator(mode="after")
    def _sampling_is_asked_for(self) -> Self:
        """A temperature above 0, top-p or top-k without do_sample means sampling, as people expect of a flag."""
        wants = (self.temperature or 0) > 0 or self.top_p is not None or self.top_k is not None
        if self.do_sample is None and wants:
            self.do_sample = True
        if self.force is not None and self.mode == "ar":
            self.mode = "forced"
        return self

    def overrides(self) -> dict[str, Any]:
        """Changes to the model's generation_config, under transformers' names."""
        names = ("do_sample", "temperature", "top_p", "top_k", "repetition_penalty", "no_repeat_ngram_size")
        found = {name: getattr(self, name) for name in (*names, "min_new_tokens", "eos_token_id")}
        return {name: value for name, value in found.items() if value is not None}


class HealthConfig(_Settings):
    """What is watched while it decodes, and what is done when it goes wrong."""

    monitor: bool = False
    """Watch with every monitor there is; without it only ``non_finite`` and those that are named."""
    monitors: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Monitors with their parameters: ``{repetition: {tokens: 24}}``."""
    baseline: Path | None = None
    """What is normal for the model (``sotscope baseline``); by default the one made for it here, or the one that
    ships."""
    recover: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Recoveries with their parameters, the first one tried first: ``{rollback: {hold: 64}}``."""
    recover_on: list[str] = Field(default_factory=lambda: ["non_finite", "norms", "repetition"], min_length=1)
    """The monitors whose alarms are recovered from."""
    attempts: int = Field(default=5, ge=1, le=20)
    """How often each recovery is tried before the next one is, or before it is given up."""


class PromptConfig(_Settings):
    """What is decoded: a prompt or messages."""

    prompt: str | None = None
    prompt_file: Path | None = None
    messages: list[dict[str, str]] | None = None
    system: str | None = None
    raw: bool = False
    source: str | None = None
    """Go on from a run instead: ``RUN@POSITION`` (the first new token stands there), ``RUN@SEQUENCE:POSITION``, or
    ``RUN`` for the end of its last sequence."""


class DmtdConfig(_Settings):
    """The `dmtd_config` block of other tools' files: understood, and turned into ours by ``RunConfig``."""

    max_tokens: int | None = Field(default=None, ge=1, le=64)
    """``decode.window``."""
    entropy_threshold: float | None = Field(default=None, gt=0)
    """The threshold of gate ``entropy``, in nats."""
    warmup_steps: int | None = Field(default=None, ge=0)
    """Steps in which the controller (gate ``cost``) only learns, while the window is fixed."""
    batch_strategy: Literal["static", "elastic"] | None = None

    def ours(self) -> dict[str, Any]:
        """What is set, by its place below ``decode``."""
        places = {
            "window": self.max_tokens,
            "gates.entropy.threshold": self.entropy_threshold,
            "gates.cost.warmup_steps": self.warmup_steps,
        }
        return {place: value for place, value in places.items() if value is not None}


class RunConfig(_Settings):
    """One recording: ``sotscope record --config run.yaml``."""

    model: ModelConfig = Field(default_factory=ModelConfig)
    input: PromptConfig = Field(default_factory=PromptConfig)
    capture: CaptureConfig = Field(default_factory=CaptureConfig)
    decode: DecodeConfig = Field(default_factory=DecodeConfig)
    health: HealthConfig = Field(default_factory=HealthConfig)
    interventions: list[str | dict[str, Any]] = Field(default_factory=list)
    """What changes states on purpose, in this order: ``prune:layers=10-20,k=3``, or its fields by name."""
    measure: bool = False
    """Measure what the interventions do to each step: one more forward without them."""
    dmtd_config: DmtdConfig = Field(default_factory=DmtdConfig)
    """Of this only ``batch_strategy`` stays here; the rest moves to ``decode``."""
    out: Path | None = None
    max_bytes: int | None = None
    """Refuse when the forecast is larger; by default 10 GB or a fifth of the free disk, whichever is less."""

    @model_validator(mode="after")
    def _dmtd_config_moves_to_decode(self) -> Self:
        if "dmtd_config" not in self.model_fields_set:
            return self
        decode = self.decode.model_dump(exclude_unset=True)
        decode.setdefault("mode", "dmtd")
        given = self.dmtd_config.ours()
        controller = self.decode.controller
        if "gates.cost.warmup_steps" in given and controller != "cost":
            raise ValueError(
                f"dmtd_config.warmup_steps is for controller cost, not {controller}; leave one of them out."
            )
        for place, value in given.items():
            *sections, key = place.split(".")
            inner = decode
            for section in sections:
                inner = inner.setdefault(section, {})
            if inner.setdefault(key, value) != value:
                raise ValueError(f"dmtd_config and decode.{place} contradict each other; leave one of them out.")
        self.decode = DecodeConfig.model_validate(decode)
        self.dmtd_config = DmtdConfig.model_validate(self.dmtd_config.model_dump(include={"batch_strategy"}))
        return self

    @property
    def notices(self) -> list[str]:
        """What the user should know of these settings."""
        if self.dmtd_config.batch_strategy == "elastic":
            return ["dmtd_config.batch_strategy elastic has no effect on a single sequence yet"]
        return []

    @classmethod
    def from_yaml(cls, path: Path) -> RunConfig:
        """Read a file. Raises ConfigError with one line that names the file, the key and what is wrong."""
        try:
            data = yaml.safe_load(path.read_text())
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}.") from error
        except yaml.YAMLError as error:
            raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}.") from error
        if not isinstance(data or {}, dict):
            raise ConfigError(f"{path} must hold settings by name (model:, input:, capture:, decode:).")
        return cls.build(data or {}, str(path))

    @classmethod
    def build(cls, data: dict[str, Any], where: str) -> RunConfig:
        """Validate plain values. Raises ConfigError with one line."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise ConfigError(f"{where}: {explain(error, cls)}") from error

    def to_yaml(self) -> str:
        """The settings that differ from the defaults."""
        return yaml.safe_dump(self.model_dump(mode="json", exclude_defaults=True), sort_keys=False)


def explain(error: ValidationError, root: type[BaseModel]) -> str:
    """One line for the first thing that is wrong, naming the key and, for an unknown one, the nearest that exists."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "value_error":  # our own words
        return str(first["ctx"]["error"])
    if first["type"] == "extra_forbidden":
        model: Any = root
        for part in first["loc"][:-1]:
            model = model.model_fields[str(part)].annotation
        names = list(model.model_fields)
        close = difflib.get_close_matches(str(first["loc"][-1]), names, n=1)
        return f"unknown setting {key!r}; " + (
            f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names)}."
        )
    return f"{key} = {first['input']!r}: {first['msg'].lower()}."
