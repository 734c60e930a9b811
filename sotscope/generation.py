"""transformers' own ``generate()`` with drafts: ``decoding()`` for its ``custom_generate``, ``generate()`` around both.

Nothing is recorded. generate() prepares prompt, logits processors and stopping criteria; what it does not hand on
(streamer, tokenizer, stop strings) is given here.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteriaList, StopStringCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from sotscope.capture.plan import anatomy
from sotscope.capture.watch import StateWatch
from sotscope.config import DecodeConfig, RunConfig
from sotscope.decode.cache import CachedModel
from sotscope.decode.contracts import UNLIMITED, Drafter
from sotscope.decode.controls import Controls
from sotscope.decode.loop import Decoder
from sotscope.decode.sampling import Sampler
from sotscope.decode.snapshot import Snapshot
from sotscope.errors import DecodeError
from sotscope.events import Alarm, Command, Step
from sotscope.models.load import Loaded, fingerprint
from sotscope.parts import PartsMaker
from sotscope.preparation import load_model

THEIRS = frozenset(
    ("max_new_tokens", "do_sample", "temperature", "top_p", "top_k", "repetition_penalty", "no_repeat_ngram_size",
     "min_new_tokens", "eos_token_id", "stop", "force")
)  # fmt: skip
"""Fields of DecodeConfig that generate() settles."""
OURS = frozenset(DecodeConfig.model_fields) - THEIRS
_MORE = {"attention_mask", "position_ids", "cache", "use_cache", "logits_to_keep", "output_attentions",
         "output_hidden_states"}  # fmt: skip
"""Keywords that generate() adds to a prompt of its own accord."""
_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


def decoding(
    mode: str = "sot",
    policy: str = "exact",
    *,
    tokenizer: Any = None,
    streamer: Any = None,
    stop_strings: str | Sequence[str] | None = None,
    drafter: Drafter | str | Path | None = None,
    window: int | None = None,
    controls: Controls | None = None,
    prefix: Snapshot | None = None,
    seed: int = 0,
    **decode: Any,
) -> Decoding:
    """A decoding method for ``model.generate(**inputs, custom_generate=sotscope.decoding("lookup"))``.

    It returns what greedy or sampling generate() returns: ids [1, prompt + new], or an output with ``sequences``.
    Greedy text is that of plain generate(); sampled text has its distribution and repeats with ``seed``. generate()
    drops its ``streamer``, ``tokenizer`` and ``assistant_model`` on the way here: give ``streamer`` (which then gets
    the prompt, too), ``tokenizer`` and ``stop_strings`` to this function and not to generate(). ``drafter`` is the
    folder of a trained one, a model (mode draft) or a Drafter; ``controls`` change mode, window and policy from any
    thread; ``prefix`` (from ``warm_up``) is the beginning of the prompt, which is then not computed again; ``decode``
    are further fields of DecodeConfig (``gates={...}``, ``guard=False``).

    Raises ConfigError or DecodeError in one line; what generate() asks for and this cannot give is refused when it is
    called (batches, beams, padding, a cache of the user's, scores).
    """
    wrong = next((name for name in decode if name in THEIRS), None)
    if wrong is not None:
        raise DecodeError(f"{wrong} is generate()'s own setting: model.generate(..., {wrong}=...).")
    given = drafter if isinstance(drafter, Drafter) else None
    folder = None if drafter is None or given is not None else str(drafter)
    values = {**decode, "mode": mode, "policy": policy, "drafter": folder, "window": window, "seed": seed}
    settings = RunConfig.build({"decode": values}, "decoding()").decode
    if settings.mode == "forced":
        raise DecodeError("mode forced reads a given text and generates nothing; record(force=...) records one.")
    strings = [stop_strings] if isinstance(stop_strings, str) else list(stop_strings or [])
    if strings and (tokenizer is None or "" in strings):
        raise DecodeError("stop strings need tokenizer=, and at least one character each.")
    return Decoding(settings, tokenizer, streamer, strings, given, controls, prefix)


def generate(
    model: Any,
    inputs: Tensor | Mapping[str, Any] | Sequence[int],
    *,
    mode: str = "sot",
    policy: str = "exact",
    tokenizer: Any = None,
    streamer: Any = None,
    stop_strings: str | Sequence[str] | None = None,
    drafter: Drafter | str | Path | None = None,
    window: int | None = None,
    controls: Controls | None = None,
    prefix: Snapshot | None = None,
    seed: int = 0,
    **options: Any,
) -> Any:
    """``model.generate(inputs, ...)`` with drafts, and with streamer and stop strings that work.

    ``model`` is a transformers model or a Loaded, ``inputs`` ids [1, prompt], what a tokenizer returns, or a list of
    ids. ``streamer`` gets the prompt once, then every token as it is committed; its ``end()`` is called whatever
    happens. ``options`` go to ``decoding`` where they are its own, else to generate() (``max_new_tokens=64``,
    ``temperature=0.7, do_sample=True``). Returns and raises what ``decoding`` and generate() do.

    Example::

        streamer = TextStreamer(tokenizer, skip_prompt=True)
        sotscope.generate(model, tokenizer("Once", return_tensors="pt"), mode="lookup", streamer=streamer)
    """
    stream = None if streamer is None else _EndsOnce(streamer)
    try:
        if isinstance(model, Loaded):
            model, tokenizer = model.model, tokenizer or model.tokenizer
        for name in ("custom_generate", "assistant_model", "assistant_tokenizer"):
            if options.get(name) is not None:
                raise DecodeError(f"{name} is not for here; a draft model is mode='draft', drafter='MODEL'.")
        ours = {name: options.pop(name) for name in [*options] if name in OURS}
        strings = stop_strings or _own_stop_strings(model, options.get("generation_config"))
        if strings:
            options["stop_strings"] = None  # generate() would ask for a tokenizer that it does not hand on
        method = decoding(
            mode, policy, tokenizer=tokenizer, streamer=stream, stop_strings=strings, drafter=drafter, window=window,
            controls=controls, prefix=prefix, seed=seed, **ours,
        )  # fmt: skip
        prompt = dict(inputs) if isinstance(inputs, Mapping) else {"inputs": _ids(inputs, model.device)}
        return model.generate(**prompt, custom_generate=method, **options)
    finally:
        if stream is not None:
            stream.end()


@torch.inference_mode()
def warm_up(model: Any, inputs: Tensor | Sequence[int], *, block: int = 256) -> Snapshot:
    """The states of a common beginning (a system prompt, a header of code), computed once for ``prefix=``.

    ``inputs`` are its ids, [1, prompt] or a list; ``Snapshot.save`` keeps them. Tokenize it so that the prompts really
    begin with these ids. Raises DecodeError for an empty one.
    """
    model = model.model if isinstance(model, Loaded) else model
    ids = _ids(inputs, model.device)[0].tolist()
    if not ids:
        raise DecodeError("the prefix has no tokens.")
    cached = CachedModel(model)
    for _ in cached.prefill(ids, block, all_logits=False):
        pass
    return Snapshot(ids, len(ids), cached.cache, cached.length, fingerprint(model))


def _ids(inputs: Tensor | Sequence[int], device: torch.device) -> Tensor:
    return inputs if isinstance(inputs, Tensor) else torch.tensor([list(inputs)], dtype=torch.long, device=device)


def _own_stop_strings(model: Any, config: Any) -> Any:
    return getattr(config, "stop_strings", None) or getattr(model.generation_config, "stop_strings", None)


class Decoding:
    """A decoding method of ``model.generate()``; made by ``decoding``. One call at a time."""

    def __init__(
        self,
        settings: DecodeConfig,
        tokenizer: Any,
        streamer: Any,
        stop_strings: list[str],
        drafter: Drafter | None,
        controls: Controls | None,
        prefix: Snapshot | None = None,
    ) -> None:
        self.settings = settings
        self._tokenizer = tokenizer
        self._streamer = streamer
        self._stop_strings = stop_strings
        self._drafter = drafter
        self._controls = controls
        self._prefix = prefix
        self._model: Any = None
        self._maker: PartsMaker | None = None

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Any:
        try:
            sampler = Sampler(model, input_ids.shape[1], processors=logits_processor, prepared=generation_config)
            _refuse(input_ids, generation_config, model_kwargs)
            new = self._decode(model, input_ids, sampler, stopping_criteria)
        finally:
            if self._streamer is not None:
                self._streamer.end()
        found: Any = torch.cat([input_ids, torch.tensor([new], dtype=input_ids.dtype, device=input_ids.device)], 1)
        return GenerateDecoderOnlyOutput(sequences=found) if generation_config.return_dict_in_generate else found

    def _decode(self, model: Any, input_ids: Tensor, sampler: Sampler, criteria: Any) -> list[int]:
        name = str(getattr(model, "name_or_path", "") or "")
        loaded = load_model(Loaded(model, self._tokenizer, name, "in memory"), None, RunConfig(), lambda text: None)
        asked = StoppingCriteriaList(criteria)
        if self._stop_strings:
            asked.append(StopStringCriteria(self._tokenizer, self._stop_strings))
        listener = _Listener(self._streamer)
        maker, prefix = self._maker_for(loaded), self._prefix
        decoder = Decoder(
            loaded.model,
            None,
            sampler,
            sink=listener,
            parts=maker.parts(),
            controls=self._controls,
            rebuild=maker.change,
            watch=StateWatch(loaded.model),
            tokenizer=self._tokenizer,
            seed=self.settings.seed,
            stop_when=lambda ids: bool(asked(sampler.prefix(ids), None).all()),
            max_new_tokens=sampler.config.max_length - input_ids.shape[1],
            context_length=anatomy(loaded.model).context_length or UNLIMITED,
            prefill_block=self.settings.prefill_block,
            draw_drafts=self.settings.draft.sample,
            cached=prefix.begin(model, fingerprint(model), input_ids[0].tolist()) if prefix else None,
        )
        if self._streamer is not None:
            self._streamer.put(input_ids.cpu())
        for _ in decoder.run(input_ids[0].tolist()):
            pass
        assert decoder.outcome is not None
        if decoder.outcome.finish_reason == "non_finite":
            raise DecodeError(f"{decoder.outcome.detail}: no token can be chosen there; is a weight NaN or infinite?")
        if decoder.outcome.finish_reason == "context_limit":
            warnings.warn(
                f"the model's context is full after {len(listener.ids)} new tokens", RuntimeWarning, stacklevel=2
            )
        return listener.ids

    def _maker_for(self, loaded: Loaded) -> PartsMaker:
        """Drafters are kept from one call to the next, unless another model comes or commands changed them."""
        maker = self._maker
        if maker is None or self._model is not loaded.model or maker.settings is not self.settings:
            maker = self._maker = PartsMaker(loaded, self.settings, drafter=self._drafter)
            self._model = loaded.model
        return maker


class _Listener:
    """Keeps the committed tokens and gives them to a streamer, one by one. Alarms become warnings."""

    def __init__(self, streamer: Any) -> None:
        self.ids: list[int] = []
        self._streamer = streamer

    def on_step(self, step: Step) -> None:
        if step.mode == "prompt":
            return
        for token in step.next_ids:
            if token < 0:
                break
            self.ids.append(token)
            if self._streamer is not None:
                self._streamer.put(torch.tensor([token]))

    def on_alarm(self, alarm: Alarm) -> None:
        if alarm.kind != "non_finite":  # that one is raised
            warnings.warn(alarm.message, RuntimeWarning, stacklevel=2)

    def on_command(self, command: Command) -> None:
        pass


class _EndsOnce:
    """A streamer whose ``end`` may be called by everyone who must be sure that it was."""

    def __init__(self, streamer: Any) -> None:
        self._streamer = streamer
        self._ended = False

    def put(self, value: Tensor) -> None:
        self._streamer.put(value)

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self._streamer.end()


def _refuse(input_ids: Tensor, config: Any, more: Mapping[str, Any]) -> None:
    """Raise DecodeError for what generate() was asked and this loop does not do."""
    if (config.num_return_sequences or 1) > 1 or len(input_ids) > 1:
        raise DecodeError(f"{len(input_ids)} sequences at once are not decoded here; call generate() for each one.")
    if not input_ids.shape[1]:
        raise DecodeError("the prompt has no input_ids; inputs_embeds cannot be decoded here.")
    mask, positions, cache = (more.get(name) for name in ("attention_mask", "position_ids", "cache"))
    if mask is not None and not bool((mask == 1).all()):
        raise DecodeError(
            "the attention mask hides part of the prompt; leave the padding out (or give attention_mask of ones)."
        )
    if positions is not None and positions.flatten().tolist() != list(range(input_ids.shape[1])):
        raise DecodeError("position_ids of your own are not decoded here; leave them out.")
    if getattr(cache, "_is_user_defined", False) or config.cache_implementation not in (None, "dynamic"):
        raise DecodeError("drafts need a cache that can be rolled back: leave out cache and cache_implementation.")
    if not config.use_cache:
        raise DecodeError("use_cache=False cannot be decoded here; leave it out.")
    wrong = [name for name in _OUTPUTS if config.return_dict_in_generate and getattr(config, name, None)]
    wrong += [name for name, value in more.items() if name not in _MORE and value is not None]
    if wrong:
        raise DecodeError(
            f"{wrong[0]} is not given here; leave it out (sotscope.record keeps states and likeliest tokens)."
        )
