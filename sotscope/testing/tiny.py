"""Tiny models of every family, from config, with fixed weights: seconds, not gigabytes."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

_ROPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_ENDS = {"bos_token_id": 1, "eos_token_id": 2}
_HEAD_DIM = {**_ROPE, "head_dim": 16}
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_OPT = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "ffn_dim": 64,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "word_embed_proj_dim": 32,
}

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _ROPE),
    "mistral": ("mistral", {**_ROPE, "sliding_window": None}),
    "mistral-sliding": ("mistral", {**_ROPE, "sliding_window": 8}),
    "qwen2": ("qwen2", _ROPE),
    "gemma": ("gemma", _HEAD_DIM),
    "gemma2": ("gemma2", {**_HEAD_DIM, "sliding_window": 8, "query_pre_attn_scalar": 16}),
    "smollm3": ("smollm3", _ROPE),
    "granite": ("granite", _ROPE),
    "qwen3": ("qwen3", _HEAD_DIM),
    "gemma3": ("gemma3_text", {**_HEAD_DIM, "sliding_window": 8, "query_pre_attn_scalar": 16}),
    "phi3": ("phi3", _ROPE),
    "gpt2": (
        "gpt2",
        {"vocab_size": 97, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 48, **_ENDS},
    ),
    "gpt_neox": ("gpt_neox", {k: v for k, v in _ROPE.items() if k != "num_key_value_heads"}),
    "opt": ("opt", _OPT),
    "opt-projected": ("opt", {**_OPT, "word_embed_proj_dim": 16, "do_layer_norm_before": False}),
    "mixtral": ("mixtral", {**_ROPE, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    "qwen3_moe": ("qwen3_moe", {**_HEAD_DIM, **_MOE, "decoder_sparse_step": 1, "mlp_only_layers": []}),
    "mamba": (
        "mamba",
        {
            "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 3, "state_size": 8, "conv_kernel": 4,
            "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        },
    ),
    "mamba2": (
        "mamba2",
        {
            "vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 3, "state_size": 8, "num_heads": 8,
            "head_dim": 8, "n_groups": 1, "expand": 2, "chunk_size": 8, "pad_token_id": 0, **_ENDS,
        },
    ),
    "bamba": (
        "bamba",
        {
            **_ROPE, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1,
            "mamba_chunk_size": 8, "attn_layer_indices": [1, 3],
        },
    ),
    "phi": ("phi", {**_ROPE, "num_key_value_heads": 4}),
    "bloom": ("bloom", {"vocab_size": 97, "hidden_size": 32, "n_layer": 3, "n_head": 4, **_ENDS}),
}  # fmt: skip
"""Name to (model type, config). `phi`, `bloom` and `bamba` have no family: they go the way of any other decoder."""


def tiny(name: str = "llama", *, seed: int = 0, dtype: str = "float32", **changes: Any) -> Any:
    """A model of ``CONFIGS[name]`` with ``changes`` to its config; weights from ``seed``, eval mode.

    Weights are drawn wider than transformers does, so that greedy text varies instead of repeating one token.
    """
    model_type, config = CONFIGS[name]
    attention = changes.pop("attn_implementation", None)
    made = AutoConfig.for_model(model_type, **{**config, **changes})
    if attention:
        made._attn_implementation = attention
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(made)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.15, generator=generator)
    model.generation_config.eos_token_id = None
    return model.to(getattr(torch, dtype)).eval()
