"""From decode settings to what decides a step: drafter, policy, gates. Also while decoding, when settings change."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from platformdirs import user_data_path

from sotscope.cache import cache_folder
from sotscope.catalog import DRAFTERS, GATES
from sotscope.config import DecodeConfig, RunConfig
from sotscope.decode import timing
from sotscope.decode.contracts import UNLIMITED, Drafter, Gate, Parts, Setup
from sotscope.decode.gates.options import check_gates
from sotscope.errors import ConfigError, DecodeError
from sotscope.models.load import Loaded, fingerprint, load

CHANGEABLE = (
    "mode", "window", "policy", "typical", "gates", "controller", "guard", "draft", "lookup", "combine", "drafter",
    "do_sample", "temperature", "top_p", "top_k", "repetition_penalty", "no_repeat_ngram_size",
)  # fmt: skip
"""Settings that can change at a step boundary."""
SAMPLING = frozenset(CHANGEABLE[CHANGEABLE.index("do_sample") :])
"""Those of them that say how a token is drawn."""


class PartsMaker:
    """Makes Parts for one model. Drafters and gates whose settings stay the same are kept, with what they learnt."""

    def __init__(
        self,
        loaded: Loaded,
        decode: DecodeConfig,
        report: Callable[[str], None] = lambda text: None,
        drafter: Drafter | None = None,
    ) -> None:
        self._loaded = loaded
        self._report = report
        self._given = drafter
        self._fingerprint = ""
        self._drafters: dict[str, Drafter] = {}
        self._gates: dict[str, Gate] = {}
        self.settings = decode

    def parts(self) -> Parts:
        """What the settings ask for. Raises DecodeError for an unknown name or values out of range."""
        decode = self.settings
        drafter = self._given or self._drafter(decode)
        options = decode.typical.model_dump() if decode.policy == "typical" else {}
        window = UNLIMITED if decode.window is None or drafter.mode == "forced" else decode.window
        return Parts(drafter, decode.policy, self._gates_of(decode, drafter), window, options)

    def check_window(self, drafter: Drafter) -> None:
        """Raises DecodeError for a window that would limit nothing. To begin with: later the mode may change."""
        window = self.settings.window
        if window is None or drafter.mode == "forced" or self._given is not None:
            return
        if not drafter.window:
            raise DecodeError(f"--window goes with a mode that drafts; {drafter.mode} drafts nothing to limit.")
        if window > drafter.window:
            raise DecodeError(f"--window {window}: the {drafter.mode} drafter drafts at most {drafter.window} tokens.")

    def change(self, changes: Mapping[str, Any]) -> Parts:
        """Parts after ``changes``; the settings are left as they were where they cannot be met."""
        before, given = self.settings, self._given
        self.settings = self.checked(changes)
        if "mode" in changes:
            self._given = None
        try:
            return self.parts()
        except Exception:
            self.settings, self._given = before, given
            raise

    def checked(self, changes: Mapping[str, Any]) -> DecodeConfig:
        """The settings with ``changes``, validated. Raises DecodeError in one line."""
        wrong = [name for name in changes if name not in CHANGEABLE]
        if wrong:
            raise DecodeError(f"{wrong[0]!r} cannot change while decoding; what can: {', '.join(CHANGEABLE)}.")
        mode = str(changes.get("mode", self.settings.mode))
        DRAFTERS.get(mode)
        if mode == "forced" and self.settings.mode != "forced":
            raise DecodeError("mode forced cannot begin while decoding.")
        data = {"decode": {**self.settings.model_dump(), **changes}}
        try:
            decode = RunConfig.build(data, "change").decode
        except ConfigError as error:
            raise DecodeError(str(error)) from error
        check_gates(decode.gates)
        return decode

    def _drafter(self, decode: DecodeConfig) -> Drafter:
        if decode.force is not None and decode.mode != "forced":
            raise DecodeError(f"--force goes with --mode forced, not with {decode.mode}.")
        key = json.dumps([decode.mode, decode.drafter, *(getattr(decode, n) for n in ("lookup", "combine", "draft"))],
                         default=lambda model: model.model_dump())  # fmt: skip
        if key not in self._drafters:
            made: Drafter = DRAFTERS.get(decode.mode)(self._setup(decode))
            self._drafters[key] = made
        return self._drafters[key]

    def _setup(self, decode: DecodeConfig) -> Setup:
        def other(name: str) -> tuple[Any, Any]:
            loaded = load(name, device=str(self._loaded.model.device), report=self._report)
            return loaded.model, loaded.tokenizer

        return Setup(
            self._loaded.model, self._loaded.tokenizer, decode, self._loaded.name, self._print(),
            find=lambda mode: find_drafter(mode, decode.drafter, self._print(), self._loaded.name), load=other,
        )  # fmt: skip

    def _print(self) -> str:
        self._fingerprint = self._fingerprint or fingerprint(self._loaded.model)
        return self._fingerprint

    def _gates_of(self, decode: DecodeConfig, drafter: Drafter) -> list[Gate]:
        check_gates(decode.gates)
        wanted: dict[str, dict[str, Any]] = {"context": {}}
        if drafter.may_reject and drafter.window:
            wanted.update(decode.gates)
            # gates that go by the clock would make a lossy text differ from run to run
            if self._given is None and decode.policy == "exact" and not decode.draft.sample:
                wanted.update({name: wanted.get(name, {}) for name in _by_the_clock(decode)})
        return [self._gate(name, options, drafter) for name, options in wanted.items()]

    def _gate(self, name: str, options: Mapping[str, Any], drafter: Drafter) -> Gate:
        key = json.dumps([name, options], default=str)
        if key not in self._gates:
            factory: Any = GATES.get(name)
            supplied = {"widths": self._widths, "folder": self._controller}
            asked = inspect.signature(factory).parameters
            needed = {key: make() for key, make in supplied.items() if key in asked and key not in options}
            try:
                self._gates[key] = factory(**needed, **options)
            except TypeError as error:
                raise DecodeError(f"gate {name}: {error}.") from error
        return self._gates[key]

    def _controller(self) -> Path:
        return find_drafter("controller", None, self._print(), self._loaded.name)

    def _widths(self) -> dict[int, float]:
        return timing.widths(self._loaded.model, self._print(), cache_folder(), self._report)


def _by_the_clock(decode: DecodeConfig) -> list[str]:
    return [*([decode.controller] if decode.controller != "none" else []), *(["guard"] if decode.guard else [])]


def drafter_folder(mark: str, mode: str) -> Path:
    """Where a drafter that was trained here for the base with fingerprint ``mark`` is kept."""
    return user_data_path("sotscope") / "drafters" / mark / mode


def find_drafter(mode: str, given: str | None, mark: str, base: str) -> Path:
    """The folder of the trained drafter: the one ``given``, one trained here, or the one that ships.

    Raises DecodeError that names the command that makes one.
    """
    if given is not None and mode != "draft":
        return Path(given)
    shipped = Path(str(files("sotscope.decode") / "weights"))
    for folder in (drafter_folder(mark, mode), *sorted(shipped.glob(f"*/{mode}"))):
        card = folder / "card.json"
        if card.is_file() and mark in _marks(card):
            return folder
    raise DecodeError(
        f"there is no trained {mode} drafter for {base or 'this model'}; train one (sotscope train {mode} --model "
        f"{base or 'MODEL'}), name its folder (--drafter), or use --mode lookup, which needs none."
    )


def _marks(card: Path) -> list[str]:
    try:
        base = json.loads(card.read_text())["base"]
        return [base["fingerprint"], *base.get("also", [])]
    except (OSError, ValueError, KeyError, TypeError):
        return []  # a broken one is no candidate; one that is named gets its error from load_bundle
