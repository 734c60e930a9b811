"""record() and recording(): one call, or one context, from settings to a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from sotscope.config import RunConfig
from sotscope.decode.contracts import Drafter
from sotscope.events import Alarm, Step
from sotscope.models.load import Loaded
from sotscope.preparation import load_model, merge_settings
from sotscope.recording import Recording as Recording
from sotscope.store.reader import Run, open_run

Progress = Callable[[Step, Recording], None]


def record(
    model: str | Loaded | Any = "smollm2",
    prompt: str | None = None,
    *,
    tokenizer: Any = None,
    messages: Sequence[Mapping[str, Any]] | None = None,
    system: str | None = None,
    raw: bool = False,
    out: str | Path | None = None,
    sites: Sequence[str] | None = None,
    layers: str | None = None,
    max_new_tokens: int | None = None,
    config: RunConfig | None = None,
    drafter: Drafter | None = None,
    processors: Sequence[Any] = (),
    on_step: Progress | None = None,
    **decode: Any,
) -> Run:
    """Decode ``prompt`` and record it; returns the finished run.

    ``model``: a name or path as ``load`` takes it, a ``Loaded``, or a transformers model (then give ``tokenizer``,
    or token ids are all there is). ``sites``, ``layers`` and ``max_new_tokens`` are shortcuts into ``config``;
    further keywords are fields of DecodeConfig (``temperature=0.7``, ``mode="forced"``, ``force="..."``).
    ``drafter`` injects one that is not in the catalog, ``processors`` are transformers logits processors, ``on_step``
    is called after every committed step.

    Raises a SotscopeError for anything that is wrong before the first token. A run that fails later is kept.

    Example::

        run = sotscope.record("smollm2", "Why is the sky blue?", sites=["resid", "head_out"], max_new_tokens=64)
        run.states("resid", layer=12)      # [token, dim]
    """
    settings = merge_settings(config, prompt, messages, system, raw, out, sites, layers, max_new_tokens, decode)
    with recording(settings, model=model, tokenizer=tokenizer, drafter=drafter, processors=processors) as recorded:
        for step in recorded.steps():
            if on_step is not None:
                on_step(step, recorded)
    return open_run(recorded.path)


@contextmanager
def recording(
    settings: RunConfig,
    *,
    model: str | Loaded | Any = None,
    tokenizer: Any = None,
    drafter: Drafter | None = None,
    processors: Sequence[Any] = (),
    report: Callable[[str], None] = lambda text: None,
    on_alarm: Callable[[Alarm], None] | None = None,
) -> Iterator[Recording]:
    """Set a recording up; iterate ``steps()`` of what it yields. On exit hooks are gone and the run is closed and kept.

    An exception inside is noted in the run (finish reason ``interrupted`` or ``error``) and raised on.
    """
    loaded = load_model(model, tokenizer, settings, report)
    recorded = Recording(loaded, settings, drafter=drafter, processors=processors, report=report, on_alarm=on_alarm)
    try:
        with recorded.intervening:
            with recorded.measure or nullcontext(), recorded.tap:
                yield recorded
            recorded.finish()
    except BaseException as error:
        recorded.fail(error)
        raise
