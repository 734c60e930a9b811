"""How much of its speed decoding keeps while somebody looks: a plain client that asks what the page asks, or a tab."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from sotscope.bench.dashboard_browser import Tab
from sotscope.bench.dashboard_server import Client, Server, start
from sotscope.bench.dashboard_timeline import journal_of, new_run, timeline, wait_end
from sotscope.bench.stats import Report, interleave, ratio

PAUSE_S = 0.18
"""The page asks again so long after an answer is on the screen."""


def decode_ratios(
    server: Server, open_tab: Callable[[], Tab], folder: Path, tokens: int, pairs: int, report: Report
) -> dict[str, Any]:
    """Tokens/s of the engine with a client, and with a tab, over those without either.

    ``look_cpu_ms``: processor time of the server for one of the client's requests, which others on the machine change
    less than they do speeds.
    """
    looks: list[float] = []
    watched: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "alone": nullcontext, "client": lambda: _asking(server, looks), "tab": lambda: _looking(open_tab),
    }  # fmt: skip
    arms = {name: _arm(server.link, folder, tokens, watching) for name, watching in watched.items()}
    seen = interleave(arms, pairs, lambda text: report(f"decode ratio: {text}"))
    found: dict[str, Any] = {}
    for name in ("client", "tab"):
        one = ratio(seen[name], seen["alone"])
        found[f"decode_ratio_with_{name}"] = one["median"]
        found[f"decode_ratio_with_{name}_interval"] = [one["low"], one["high"]]
    found["tokens_per_second"] = {name: round(statistics.median(speeds), 2) for name, speeds in seen.items()}
    return found | {"look_cpu_ms": round(statistics.median(looks), 1), "pairs": pairs}


def _arm(
    link: str, folder: Path, tokens: int, watching: Callable[[], AbstractContextManager[Any]]
) -> Callable[[], float]:
    def speed() -> float:
        with watching():
            return timeline(journal_of(decode(link, folder, tokens))).tokens_per_second

    return speed


def decode(link: str, folder: Path, tokens: int) -> Path:
    """Have the engine write a run of so many tokens, without looking at the page; returns where it is."""
    client = Client(link)
    try:
        with new_run(folder) as found:
            client.command(**start(tokens))
    finally:
        client.close()
    wait_end(found[0])
    return found[0]


@contextmanager
def _asking(server: Server, looks: list[float]) -> Iterator[None]:
    """A client that asks in a thread of its own, at the page's pace; the cost of an answer is added to ``looks``."""
    client, done = Client(server.link), threading.Event()

    def ask() -> None:
        began, asked = server.cpu_s, 0
        while not done.wait(PAUSE_S):
            client.look()
            asked += 1
        looks.append(1000 * (server.cpu_s - began) / max(1, asked))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    try:
        yield
    finally:
        done.set()
        asking.join()
        client.close()


@contextmanager
def _looking(open_tab: Callable[[], Tab]) -> Iterator[None]:
    """A tab that is open and drawn."""
    with open_tab() as tab:
        tab.ready()
        time.sleep(1)  # what a page does once, when it opens, is not what is measured
        yield
