"""The options of ``record``: types with their help, grouped as --help shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sotscope.cli import options as shared
from sotscope.config import RunConfig

INPUT = "What is decoded"
CAPTURE = "What is recorded"
DECODE = "How it is decoded"
SAMPLING = "Sampling (by default as the model's own settings say)"
OUTPUT = "Output"

_BY_DEFAULT = RunConfig()


_SITES = (
    "Where states (activations) are taken: resid (default), head_out, mlp_act ..., all or none. Names that other tools "
    "use for these hook points are understood, too; sotscope inspect lists them."
)
_LAYERS = "all (default), first, last, every 4, 0-29, 3, -1, or several of these with commas."
_MAX_BYTES = "Refuse a run that may take more: 20GB, 500MB. By default 10 GB or a fifth of the free disk."

PromptArgument = Annotated[str | None, typer.Argument(metavar="PROMPT", help="The prompt.", show_default=False)]
Prompt = Annotated[
    str | None, shared.option(INPUT, "The prompt, given as an option.", "--prompt", "-p", metavar="TEXT")
]
PromptFile = Annotated[
    Path | None, shared.option(INPUT, "A text file with the prompt.", "--prompt-file", metavar="FILE")
]
Messages = Annotated[
    Path | None, shared.option(INPUT, "A conversation: a JSON list of {role, content}.", "--messages", metavar="FILE")
]
System = Annotated[str | None, shared.option(INPUT, "A system prompt to go before it.", "--system", metavar="TEXT")]
Raw = Annotated[bool | None, shared.option(INPUT, "Give the prompt as it is, without the chat template.", "--raw")]
Source = Annotated[
    str | None,
    shared.option(
        INPUT,
        "Go on from a position of a run (RUN@40, RUN for its end, RUN@SEQ:40), with its settings where none are given.",
        "--from",
        metavar="RUN@POS",
    ),
]
Force = Annotated[
    str | None,
    shared.option(INPUT, "Record this continuation, word for word (mode forced).", "--force", metavar="TEXT"),
]
Config = Annotated[
    Path | None,
    shared.option(INPUT, "Settings from a YAML file; options override it.", "--config", "-c", metavar="FILE"),
]

Model = Annotated[
    str | None,
    shared.option(
        shared.MODEL,
        "smollm2 (default), a folder, a .gguf file or a Hugging Face id.",
        "--model",
        "-m",
        metavar="MODEL",
        autocompletion=shared.complete_models,
    ),
]

Sites = Annotated[
    list[str] | None,
    shared.option(CAPTURE, _SITES, "--sites", "-s", metavar="SITE,...", autocompletion=shared.complete_sites),
]
Layers = Annotated[
    str | None,
    shared.option(CAPTURE, _LAYERS, "--layers", "-l", metavar="LAYERS", autocompletion=shared.complete_layers),
]
StoreDtype = Annotated[
    str | None,
    shared.option(
        CAPTURE,
        "Number type of the stored states: float32, bfloat16 or float16. By default the model's.",
        "--store-dtype",
        metavar="DTYPE",
        autocompletion=shared.complete_dtypes,
    ),
]
AttnLayers = Annotated[
    str | None,
    shared.option(
        CAPTURE, "Layers whose attention weights are kept (needs eager attention).", "--attn-layers", metavar="LAYERS"
    ),
]
AttnEntropy = Annotated[
    bool | None, shared.option(CAPTURE, "Keep the entropy of each head's attention (needs eager).", "--attn-entropy")
]
PromptLogits = Annotated[
    bool | None, shared.option(CAPTURE, "Entropy, margin and likeliest tokens for the prompt, too.", "--prompt-logits")
]
LastRow = Annotated[
    bool | None, shared.option(CAPTURE, "Feed the last token as well, to have its states.", "--last-row")
]
Top = Annotated[
    int | None,
    shared.option(CAPTURE, f"How many likeliest tokens are kept ({_BY_DEFAULT.capture.top_k}).", "--top", metavar="K"),
]
Modules = Annotated[
    list[str] | None,
    shared.option(CAPTURE, "Name a site's module below a block by hand; repeatable.", "--module", metavar="SITE=PATH"),
]

Mode = Annotated[
    str | None,
    shared.option(
        DECODE,
        "ar (default), one token a step; with drafts: lookup, sot, dmtd, combine, draft; or forced.",
        "--mode",
        metavar="MODE",
        autocompletion=shared.complete_modes,
    ),
]
MaxNewTokens = Annotated[
    int | None,
    shared.option(
        DECODE, f"How many tokens at most ({_BY_DEFAULT.decode.max_new_tokens}).", "--max-new-tokens", "-n", metavar="N"
    ),
]
Eos = Annotated[
    list[int] | None, shared.option(DECODE, "Id of a token that ends the text; repeatable.", "--eos", metavar="ID")
]
Stop = Annotated[
    list[str] | None, shared.option(DECODE, "A string that ends the text; repeatable.", "--stop", metavar="STR")
]
PrefillBlock = Annotated[
    int | None,
    shared.option(
        DECODE,
        f"How many prompt tokens go into one forward ({_BY_DEFAULT.decode.prefill_block}).",
        "--prefill-block",
        metavar="N",
    ),
]

Greedy = Annotated[bool | None, shared.option(SAMPLING, "Always take the likeliest token.", "--greedy")]
Temperature = Annotated[
    float | None, shared.option(SAMPLING, "Draw tokens; 0 is greedy.", "--temperature", "-t", metavar="T")
]
TopP = Annotated[
    float | None, shared.option(SAMPLING, "Draw from the likeliest tokens, P in all.", "--top-p", metavar="P")
]
TopK = Annotated[int | None, shared.option(SAMPLING, "Draw from the K likeliest tokens.", "--top-k", metavar="K")]
RepetitionPenalty = Annotated[
    float | None,
    shared.option(SAMPLING, "Above 1: make what was said less likely.", "--repetition-penalty", metavar="X"),
]
NoRepeatNgramSize = Annotated[
    int | None,
    shared.option(SAMPLING, "Never the same N tokens in a row twice.", "--no-repeat-ngram-size", metavar="N"),
]
MinNewTokens = Annotated[
    int | None, shared.option(SAMPLING, "Do not end before N tokens.", "--min-new-tokens", metavar="N")
]
Seed = Annotated[int | None, shared.option(SAMPLING, "Seed of what is drawn (0).", "--seed", metavar="N")]

Out = Annotated[
    Path | None,
    shared.option(OUTPUT, "Folder of the run; by default runs/TIME-MODE-PROMPT.sot.", "--out", "-o", metavar="RUN"),
]
MaxBytes = Annotated[str | None, shared.option(OUTPUT, _MAX_BYTES, "--max-bytes", metavar="SIZE")]
RingMb = Annotated[
    int | None,
    shared.option(
        OUTPUT,
        f"Memory for states that wait for the disk, in MB ({_BY_DEFAULT.capture.ring_mb}).",
        "--ring-mb",
        metavar="MB",
    ),
]
Durable = Annotated[bool | None, shared.option(OUTPUT, "Sync every step to the device; slower.", "--durable")]
NoSelfCheck = Annotated[
    bool | None, shared.option(OUTPUT, "Do not compare rows with a second forward at the end.", "--no-self-check")
]
EmbedHead = Annotated[
    bool | None,
    shared.option(
        OUTPUT,
        "Put the model's final norm and lm_head into the run, so that the lens works wherever the run goes.",
        "--embed-head",
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print the path of the run and nothing else.", rich_help_panel=OUTPUT)
]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object as the last line of stdout, no text.", rich_help_panel=OUTPUT),
]
