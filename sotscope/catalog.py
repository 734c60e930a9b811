"""The table of contents: everything that can be added with one new file and one line here.

Values are ``"module:attr"`` strings; reading this file loads none of them. Other distributions add entries through the
entry-point groups ``sotscope.sites``, ``sotscope.families``, ``sotscope.drafters`` and ``sotscope.gates``.
"""

from __future__ import annotations

from typing import Any

from sotscope.errors import AnalysisError, DecodeError
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
    },
    group="sotscope.analyzers",
    error=AnalysisError,
)
