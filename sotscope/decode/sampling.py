"""Effective generation settings and logits processors: transformers' own, so that greedy `ar` equals ``generate()``.

Defaults are the model's generation_config. Processors run position by position on the true prefix: they never see a
rejected token.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sotscope.errors import DecodeError

_UNSUPPORTED = {
    "num_beams": "beam search",
    "num_beam_groups": "beam search",
    "penalty_alpha": "contrastive search",
    "dola_layers": "DoLa",
    "guidance_scale": "classifier-free guidance",
    "prompt_lookup_num_tokens": "transformers' own prompt lookup (use --mode lookup)",
}
_KEPT = (
    "do_sample", "temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "no_repeat_ngram_size",
    "min_new_tokens", "max_new_tokens", "eos_token_id", "pad_token_id", "bos_token_id", "bad_words_ids",
    "suppress_tokens", "begin_suppress_tokens", "sequence_bias", "epsilon_cutoff", "eta_cutoff", "min_length",
)  # fmt: skip


class Sampler:
    """The settings of one generation, and the processed scores of a position.

    ``overrides`` are changes to the model's generation_config under transformers' names; ``processors`` are run after
    the built-in ones. With ``prepared``, a generation_config that ``model.generate()`` has made, ``processors`` are
    those it made, all of them. Raises DecodeError for settings that this loop does not decode.
    """

    def __init__(
        self,
        model: Any,
        prompt_length: int,
        *,
        overrides: dict[str, Any] | None = None,
        processors: Sequence[Any] = (),
        prepared: Any = None,
    ) -> None:
        given = {key: value for key, value in (overrides or {}).items() if value is not None}
        if given.get("temperature") == 0:
            del given["temperature"]
            given["do_sample"] = False
        self.config = self._effective(model, given) if prepared is None else prepared
        self._refuse()
        self.sample = bool(self.config.do_sample)
        self.processors: Any = processors
        if prepared is None:
            self.processors = self._built(model, prompt_length, processors)
        self._ids = torch.empty(1, 0, dtype=torch.long, device=model.device)

    @staticmethod
    def _effective(model: Any, given: dict[str, Any]) -> Any:
        try:
            effective, rest = model._prepare_generation_config(None, **given)
        except (ValueError, TypeError) as error:
            raise DecodeError(f"generation settings refused: {str(error).splitlines()[0]}") from error
        if rest:
            raise DecodeError(f"unknown generation settings: {', '.join(rest)}.")
        return effective

    def _built(self, model: Any, prompt_length: int, processors: Sequence[Any]) -> Any:
        special = copy.deepcopy(self.config)
        model._prepare_special_tokens(special, device=model.device)
        return model._get_logits_processor(
            generation_config=special,
            input_ids_seq_length=prompt_length,
            logits_processor=list(processors) or None,
            device=model.device,
        )

    def _refuse(self) -> None:
        for name, what in _UNSUPPORTED.items():
            value = getattr(self.config, name, None)
            if value is not None and value != 1:
                raise DecodeError(f"{what} ({name}={value}) is not decoded here; leave it out.")

    @property
    def eos(self) -> frozenset[int]:
        return end_ids(self.config)

    @property
    def stop(self) -> tuple[str, ...]:
        """Stop strings of the model's own generation_config."""
        value = getattr(self.config, "stop_strings", None)
        if not value:
            return ()
        return (value,) if isinstance(value, str) else tuple(value)

    def settings(self) -> dict[str, Any]:
        """The effective settings in plain values; those that are not set are left out."""
        found = {name: getattr(self.config, name, None) for name in _KEPT}
        return {name: value for name, value in found.items() if value is not None}

    def scores(self, prefix: list[int], logits: Tensor) -> Tensor:
        """Processed scores [vocab] of the position after ``prefix``; float32, the ``logits`` themselves unchanged."""
        scores = logits.float()
        if not self.processors:
            return scores
        return self.processors(self.prefix(prefix), scores[None].clone())[0]  # type: ignore[no-any-return]

    def prefix(self, prefix: list[int]) -> Tensor:
        """``prefix`` as [1, n], int64; only what is new since the last call is copied."""
        known = self._ids.shape[1]
        if known > len(prefix):
            known = 0
            self._ids = self._ids[:, :0]
        if known < len(prefix):
            fresh = torch.tensor([prefix[known:]], dtype=torch.long, device=self._ids.device)
            self._ids = torch.cat([self._ids, fresh], 1)
        return self._ids


def end_ids(config: Any) -> frozenset[int]:
    """The tokens that end a text, by a generation_config; there may be none."""
    value = config.eos_token_id
    if value is None:
        return frozenset()
    return frozenset([value] if isinstance(value, int) else [int(token) for token in value])
