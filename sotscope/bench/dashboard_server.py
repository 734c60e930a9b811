"""A dashboard in a process of its own, and a plain client that asks it what its page asks."""

from __future__ import annotations

import json
import re
import secrets
import signal
import subprocess
import sys
import time
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from sotscope.errors import LiveError

PROMPT = "Tell me a long story about a lighthouse keeper and the sea."
SITES = ("resid", "head_out", "final")
"""What the page's own Start records."""
LEAVE_S, LOADING_S = 20.0, 300.0
WANTS = ("candidates", "states", "words")
"""The panels of the full view as it opens."""
MB = float(1 << 20)


class Server:
    """``sotscope dashboard PLACE``; use as a context manager."""

    def __init__(self, place: Path, model: str) -> None:
        token = secrets.token_urlsafe(24)
        command = [sys.executable, "-m", "sotscope.cli.main", "dashboard", str(place), "--model", model]
        self._process = subprocess.Popen(
            [*command, "--no-browser", "--port", "0", "--token", token], stdout=subprocess.PIPE, text=True
        )
        self.link = self._first_link()
        self._settle()

    def _first_link(self) -> str:
        """Where the page is, with the token that lets in."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = re.search(r"http://\S+", line)
            if found:
                return found[0]
        raise LiveError("the dashboard did not start; what it said is above.")

    def _settle(self) -> None:
        """Wait until the model is loaded: that takes a core for seconds."""
        client, end = Client(self.link), time.monotonic() + LOADING_S
        while ((client.look()["engine"] or {}).get("state")) == "starting":
            if time.monotonic() > end:
                raise LiveError(f"the model was not loaded within {LOADING_S:.0f} s.")
            time.sleep(LOADING_S / 600)
        client.close()

    def page(self, **query: object) -> str:
        """The link to a view of the page: ``query`` is what stands in its address."""
        more = "&".join(f"{name}={value}" for name, value in query.items())
        return self.link + (f"&{more}" if more else "")

    @property
    def memory_mb(self) -> float:
        """Megabytes (2^20) that the server holds; its engine is another process."""
        return float(psutil.Process(self._process.pid).memory_info().rss / MB)

    @property
    def cpu_s(self) -> float:
        """Processor seconds that the server has used; its engine is another process."""
        spent = psutil.Process(self._process.pid).cpu_times()
        return float(spent.user + spent.system)

    def close(self) -> None:
        """As Ctrl-C does; a shell's background job hears no Ctrl-C, so there is more."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            self._process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(LEAVE_S)
                return

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Client:
    """One tab without a browser: it keeps its connection and its cookie, and knows what it was told last."""

    def __init__(self, link: str) -> None:
        parts = urlsplit(link)
        self._tab = secrets.token_hex(8)
        self._connection = HTTPConnection(parts.hostname or "", parts.port, timeout=120)
        self._connection.request("GET", f"{parts.path}?{parts.query}")
        answer = self._connection.getresponse()
        answer.read()
        self._headers = {
            "Cookie": (answer.getheader("Set-Cookie") or "").partition(";")[0], "Content-Type": "application/json",
            "Origin": f"http://{parts.netloc}",
        }  # fmt: skip
        self._seen: dict[str, Any] = {"run": "", "seq": 0, "from_token": 0, "to_token": 0}
        self._have: dict[str, str] = {}

    def look(self) -> dict[str, Any]:
        """What the page asks in the full view, with what it has."""
        answer = self._post("look", {"look": {}, **self._seen, "have": self._have, "wants": list(WANTS)})
        self._have |= {name: panel["key"] for name, panel in answer.get("panels", {}).items()}
        if "frame" in answer:
            frame = answer["frame"]
            self._seen = {"run": answer["run"], "seq": answer["seq"], "from_token": frame["first"],
                          "to_token": frame["stop"]}  # fmt: skip
        return answer

    def command(self, **command: Any) -> None:
        """Tell the engine; this tab takes over first. Raises LiveError for what it refuses."""
        for one in ({"kind": "take"}, command):
            refusal = self._post("command", {"command": one})["error"]
            if refusal:
                raise LiveError(f"{one['kind']}: {refusal}")

    def _post(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        self._connection.request("POST", f"/api/{name}", json.dumps({"tab": self._tab, **body}), self._headers)
        answer = self._connection.getresponse()
        found: dict[str, Any] = json.loads(answer.read())
        return found

    def close(self) -> None:
        self._connection.close()


def start(tokens: int, *, mode: str = "ar", delay_ms: float = 0) -> dict[str, Any]:
    """The page's own Start: exactly ``tokens`` tokens, always the same ones."""
    decode = {"mode": mode, "max_new_tokens": tokens, "eos_token_id": [], "do_sample": False}
    settings = {"input": {"prompt": PROMPT}, "decode": decode, "capture": {"sites": list(SITES)}}
    return {"kind": "start", "delay_ms": delay_ms, "settings": settings}
