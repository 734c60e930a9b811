"""What a recording is made of. What can be told from the settings alone is refused here, before anything is created."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sotscope.capture.plan import Plan, make_plan
from sotscope.config import RunConfig
from sotscope.decode.contracts import UNLIMITED, Drafter
from sotscope.errors import DecodeError, PromptError
from sotscope.events import MODES
from sotscope.head_file import head_bytes
from sotscope.models.load import Loaded
from sotscope.models.prompt import Prompt
from sotscope.parts import PartsMaker
from sotscope.preparation import check_ids, make_prompt, probe_spec, title, token_limit
from sotscope.store.forecast import Forecast, check_forecast
from sotscope.store.runs import default_path


class Prepared:
    """Prompt, capture plan, parts of the decode loop, shapes on disk, and where the run will be.

    ``limit`` is how many new tokens there may be, ``given`` how many tokens of the prompt were not written by a run
    that it goes on from, ``max_keys`` how many keys a row of attention can have.

    Raises a SotscopeError in one line for whatever cannot be met.
    """

    def __init__(
        self,
        loaded: Loaded,
        settings: RunConfig,
        *,
        drafter: Drafter | None = None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.prompt: Prompt = make_prompt(loaded, settings)
        self.plan: Plan = _plan(loaded, settings)
        check_ids(self.prompt.ids, self.plan)
        self.given = len(self.prompt.ids) - self.prompt.written
        self.context_length = self.plan.anatomy.context_length or UNLIMITED
        self.maker = PartsMaker(loaded, settings.decode, report, drafter)
        self.parts = self.maker.parts()
        self.maker.check_window(self.parts.drafter)
        if self.parts.drafter.mode not in MODES:
            mode = self.parts.drafter.mode
            raise DecodeError(f"the drafter calls its mode {mode!r}; call one of your own 'other'.")
        self.limit = token_limit(self.parts.drafter, settings.decode)
        self._refuse_long_prompt()
        self.max_keys = min(len(self.prompt.ids) + self.limit + 1, self.context_length)
        self.spec = probe_spec(self.plan, self.prompt.ids, settings, self.max_keys)
        self.forecast = self._forecast(embed_head=settings.capture.embed_head)
        self.path = Path(settings.out) if settings.out else default_path(self.parts.drafter.mode, title(settings.input))
        check_forecast(self.forecast, self.path, settings.max_bytes)

    def _forecast(self, *, embed_head: bool) -> Forecast:
        found = Forecast.of(self.spec, len(self.prompt.ids) + self.limit)
        return replace(found, bytes=found.bytes + head_bytes(self.plan)) if embed_head else found

    def _refuse_long_prompt(self) -> None:
        if len(self.prompt.ids) > self.context_length:
            raise PromptError(
                f"the prompt has {len(self.prompt.ids)} tokens, the model's context holds {self.context_length}; "
                "shorten it."
            )


def _plan(loaded: Loaded, settings: RunConfig) -> Plan:
    capture = settings.capture
    return make_plan(
        loaded.model,
        capture.sites,
        capture.layers,
        attn_layers=capture.attn_layers,
        attn_entropy=capture.attn_entropy,
        module_names=capture.modules,
    )
