"""The table of contents: everything that can be added with one new file and one line here.

Values are ``"module:attr"`` strings; reading this file loads none of them. Other distributions add entries through the
entry-point groups named below (``sotscope.sites``, ``sotscope.monitors`` ...).
"""

from __future__ import annotations

from typing import Any

from sotscope.errors import AnalysisError, DecodeError, HealthError
from sotscope.registry import Registry

SITES: Registry[Any] = Registry(
    "site",
    {
        "embed": "sotscope_hooks.sites.embed:SITE",
        "resid": "sotscope_hooks.sites.resid:SITE",
        "attn_out": "sotscope_hooks.sites.attn_out:SITE",
        "mlp_out": "sotscope_hooks.sites.mlp_out:SITE",
        "mlp_act": "sotscope_hooks.sites.mlp_act:SITE",
        "head_out": "sotscope_hooks.sites.head_out:SITE",
        "query": "sotscope_hooks.sites.query:SITE",
        "router": "sotscope_hooks.sites.router:SITE",
        "final": "sotscope_hooks.sites.final:SITE",
        "attn": "sotscope_hooks.sites.attn:SITE",
    },
    group="sotscope.sites",
)

FAMILIES: Registry[Any] = Registry(
    "family",
    {
        "llama": "sotscope_hooks.families.llama:FAMILY",
        "qwen3": "sotscope_hooks.families.qwen3:FAMILY",
        "gemma3": "sotscope_hooks.families.gemma3:FAMILY",
        "phi3": "sotscope_hooks.families.phi3:FAMILY",
        "gpt2": "sotscope_hooks.families.gpt2:FAMILY",
        "gpt_neox": "sotscope_hooks.families.gpt_neox:FAMILY",
        "opt": "sotscope_hooks.families.opt:FAMILY",
        "mixtral": "sotscope_hooks.families.mixtral:FAMILY",
        "qwen3_moe": "sotscope_hooks.families.qwen3_moe:FAMILY",
        "mamba": "sotscope_hooks.families.mamba:FAMILY",
    },
    group="sotscope.families",
)

DRAFTERS: Registry[Any] = Registry(
    "mode",
    {
        "ar": "sotscope.decode.drafters.ar:make",
        "forced": "sotscope.decode.drafters.forced:make",
        "lookup": "sotscope.decode.drafters.lookup:make",
        "sot": "sotscope.decode.drafters.sot:make",
        "dmtd": "sotscope.decode.drafters.dmtd:make",
        "combine": "sotscope.decode.drafters.combine:make",
        "draft": "sotscope.decode.drafters.draft:make",
    },
    group="sotscope.drafters",
    error=DecodeError,
)

GATES: Registry[Any] = Registry(
    "gate",
    {
        "context": "sotscope.decode.gates.context:ContextLimit",
        "cost": "sotscope.decode.gates.cost:WindowCost",
        "lstm": "sotscope.decode.gates.lstm:WindowLstm",
        "guard": "sotscope.decode.gates.guard:Guard",
        "warmup": "sotscope.decode.gates.warmup:WarmUp",
        "periodic": "sotscope.decode.gates.periodic:Periodic",
        "perplexity": "sotscope.decode.gates.perplexity:PerplexitySpike",
        "entropy": "sotscope.decode.gates.entropy:EntropyThreshold",
        "paragraph": "sotscope.decode.gates.paragraph:Paragraph",
        "mix_ratio": "sotscope.decode.gates.mix_ratio:MixRatio",
    },
    group="sotscope.gates",
    error=DecodeError,
)

PREDICTORS: Registry[Any] = Registry(
    "predictor",
    {
        "attention": "sotscope.decode.predictors.attention:Attention",
        "gru": "sotscope.decode.predictors.gru:Gru",
        "gru_parallel": "sotscope.decode.predictors.gru:GruParallel",
        "tcn": "sotscope.decode.predictors.tcn:Tcn",
        "heads": "sotscope.decode.predictors.heads:Heads",
    },
    group="sotscope.predictors",
    error=DecodeError,
)

ANALYZERS: Registry[Any] = Registry(
    "analyzer",
    {
        "norms": "sotscope.analysis.norms:Norms",
        "change": "sotscope.analysis.change:Change",
        "dims": "sotscope.analysis.dims:Dims",
        "pca": "sotscope.analysis.pca:Pca",
        "project": "sotscope.analysis.project:Project",
        "lens": "sotscope.analysis.lens:Lens",
        "similarity": "sotscope.analysis.similarity:Similarity",
        "heads": "sotscope.analysis.heads:Heads",
        "drafts": "sotscope.analysis.drafts:Drafts",
        "latency": "sotscope.analysis.latency:Latency",
        "health": "sotscope.analysis.health:Health",
    },
    group="sotscope.analyzers",
    error=AnalysisError,
)

MONITORS: Registry[Any] = Registry(
    "monitor",
    {
        "non_finite": "sotscope.health.monitors.non_finite:NonFinite",
        "norms": "sotscope.health.monitors.norms:Norms",
        "collapse": "sotscope.health.monitors.collapse:Collapse",
        "repetition": "sotscope.health.monitors.repetition:Repetition",
        "entropy": "sotscope.health.monitors.entropy:Entropy",
        "perplexity": "sotscope.health.monitors.perplexity:Perplexity",
        "heads": "sotscope.health.monitors.heads:Heads",
        "lag": "sotscope.health.monitors.lag:Lag",
        "loop_risk": "sotscope.health.monitors.loop_risk:LoopRisk",
    },
    group="sotscope.monitors",
    error=HealthError,
)

RECOVERIES: Registry[Any] = Registry(
    "recovery",
    {
        "rollback": "sotscope.health.recoveries.rollback:Rollback",
        "refresh": "sotscope.health.recoveries.refresh:Refresh",
        "rescale": "sotscope.health.recoveries.rescale:Rescale",
        "plain": "sotscope.health.recoveries.plain:Plain",
        "stop": "sotscope.health.recoveries.stop:Stop",
    },
    group="sotscope.recoveries",
    error=HealthError,
)

INTERVENTIONS: Registry[Any] = Registry(
    "intervention",
    {
        "prune": "sotscope_hooks.interventions.prune:Prune",
        "interpolate": "sotscope_hooks.interventions.interpolate:Interpolate",
        "rescale": "sotscope_hooks.interventions.rescale:Rescale",
        "steer": "sotscope_hooks.interventions.steer:Steer",
        "transfer": "sotscope_hooks.interventions.transfer:Transfer",
        "temperature": "sotscope_hooks.interventions.temperature:Temperature",
        "skip": "sotscope_hooks.interventions.skip:Skip",
        "freeze": "sotscope_hooks.interventions.freeze:Freeze",
    },
    group="sotscope.interventions",
    error=HealthError,
)
