"""Watch, record, diagnose and steer the hidden states of a causal language model while it decodes.

``import sotscope`` loads no torch: names are imported from their modules when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sotscope.analysis.run import analyze as analyze
    from sotscope.decode.controls import Controls as Controls
    from sotscope.decode.snapshot import Snapshot as Snapshot
    from sotscope.generation import decoding as decoding
    from sotscope.generation import generate as generate
    from sotscope.generation import warm_up as warm_up
    from sotscope.health.diagnose import diagnose as diagnose
    from sotscope.models.load import Loaded as Loaded
    from sotscope.models.load import load as load
    from sotscope.recorder import record as record
    from sotscope.store.reader import Run as Run
    from sotscope.store.reader import open_run as open_run

__version__ = "0.1.0"

_PUBLIC = {
    "Controls": "sotscope.decode.controls",
    "Loaded": "sotscope.models.load",
    "Run": "sotscope.store.reader",
    "Snapshot": "sotscope.decode.snapshot",
    "analyze": "sotscope.analysis.run",
    "decoding": "sotscope.generation",
    "diagnose": "sotscope.health.diagnose",
    "generate": "sotscope.generation",
    "load": "sotscope.models.load",
    "open_run": "sotscope.store.reader",
    "record": "sotscope.recorder",
    "warm_up": "sotscope.generation",
}


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'sotscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
