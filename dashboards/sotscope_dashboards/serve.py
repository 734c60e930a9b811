"""Serves the page on this machine, behind the guard, and says where it is and how to get there from elsewhere."""

from __future__ import annotations

import base64
import errno
import getpass
import hashlib
import ipaddress
import logging
import os
import re
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from html.parser import HTMLParser
from typing import Any

import dash
from threadpoolctl import threadpool_limits
from waitress import create_server

from sotscope.errors import ConfigError, LiveError
from sotscope_dashboards.guard import Guard, host_name

PORT = 8050
TRIED = 20
"""Ports that are tried, one after the other, where none was asked for."""
THREADS = 8
BODY_BYTES = 4 << 20
"""Largest request that is read."""


def serve(
    app: dash.Dash,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    base_path: str | None = None,
    allow_hosts: Iterable[str] = (),
    token: str | None = None,
    open_browser: bool = True,
    out: Callable[[str], None] = print,
) -> None:
    """Serve ``app`` until Ctrl-C; ``out`` is given the lines that say where.

    Raises ConfigError for a setting that cannot be served safely, LiveError where no port is free.
    """
    allow_hosts = list(allow_hosts)
    check(host, base_path, allow_hosts, token)
    with closing(_listen(host, port)) as listener:
        address, number = listener.getsockname()[:2]
        base = _base_path(base_path, number)
        # Dash takes the prefix when the app is made, before the port is known; it is read with every request
        dict.__setitem__(app.config, "requests_pathname_prefix", base)
        anywhere = ipaddress.ip_address(address).is_unspecified
        names = [*allow_hosts] if anywhere else [*allow_hosts, host]
        place = Place((names or ["127.0.0.1"])[0] if anywhere else address, number, base)
        guard = Guard(
            app.server, port=number, base_path=base, allow_hosts=names, token=token, scripts=script_hashes(app),
            renewed=lambda token: out(f"used; for another browser: {place.link(token)}"),
        )  # fmt: skip
        for line in place.lines(guard.token, once=token is None, environment=os.environ):
            out(line)
        if anywhere and not names:
            out("Other machines are let in by the names that you give with --allow-host; there is none yet.")
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # a request that waits a little is no news
        server: Any = create_server(
            guard, sockets=[listener], threads=THREADS, ident=None, max_request_body_size=BODY_BYTES
        )
        with closing(server), threadpool_limits(1):  # the other cores are the model's
            if open_browser and _has_screen(os.environ):
                threading.Thread(target=webbrowser.open, args=(place.link(guard.token),), daemon=True).start()
            server.run()  # returns on Ctrl-C


def check(host: str, base_path: str | None, allow_hosts: Iterable[str], token: str | None) -> None:
    """Raises ConfigError for a setting that cannot be served safely; quick: it comes before all else."""
    for name in allow_hosts:
        host_name(name)
    if base_path is not None and not re.fullmatch(r"/?[A-Za-z0-9._~@/-]*", base_path):
        raise ConfigError(f"--base-path {base_path!r} is no path; write it as the browser sees it: /user/me/sotscope/")
    if token is not None and not re.fullmatch(r"[A-Za-z0-9_-]{16,}", token):
        raise ConfigError("--token needs at least 16 characters out of letters, digits, - and _.")
    if token is None and not ipaddress.ip_address(_resolved(host)[1]).is_loopback:
        raise ConfigError(
            f"--host {host} lets other machines in, and the page shows prompts and drives the model: give a --token of "
            "your own, or leave it at 127.0.0.1 and use ssh -L."
        )


class Place:
    """Where the page is, in the words of whoever must find it."""

    def __init__(self, host: str, port: int, base: str) -> None:
        self._host = f"[{host}]" if ":" in host else host
        self._port = port
        self._base = base

    def link(self, token: str) -> str:
        return f"http://{self._host}:{self._port}{self._base}?token={token}"

    def lines(self, token: str, *, once: bool, environment: Mapping[str, str]) -> list[str]:
        """What is printed at the start."""
        link = self.link(token)
        if environment.get("JUPYTERHUB_SERVICE_PREFIX"):
            path = f"{self._base}?token={token}"
            found = [f"sotscope is behind JupyterHub (jupyter-server-proxy); after the hub's address, open: {path}"]
            found += ["Start it with --allow-host and the hub's name, which is refused otherwise."]
        elif environment.get("SSH_CONNECTION") and self._host in ("127.0.0.1", "[::1]"):
            found = [
                f"sotscope runs on a machine that you reach by SSH. On your own, type:  {self._tunnel(environment)}",
                f"and then open:  {link}",
            ]
        else:
            found = [f"sotscope is at {link}"]
        last = "The link works once, then this browser is known. " if once else ""
        return [*found, f"{last}Ctrl-C ends it."]

    def _tunnel(self, environment: Mapping[str, str]) -> str:
        """The ``ssh -L`` command for the address that this connection came in on."""
        parts = environment["SSH_CONNECTION"].split()
        host, door = (parts[2], parts[3]) if len(parts) == 4 else (socket.gethostname(), "22")
        option = "" if door == "22" else f"-p {door} "
        return f"ssh {option}-L {self._port}:{self._host}:{self._port} {_user()}@{host}"


def script_hashes(app: dash.Dash) -> list[str]:
    """CSP hashes of the scripts that stand in the index page itself: Dash's own, and clientside callbacks."""
    with app.server.test_client() as client:
        page = _Scripts()
        page.feed(client.get("/").get_data(as_text=True))
    digests = (hashlib.sha256(script.encode()).digest() for script in page.found)
    return [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]


class _Scripts(HTMLParser):
    """Collects inline scripts; blocks of JSON are data."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self._inside = tag == "script" and "src" not in given and "json" not in (given.get("type") or "")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.found.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = False


def _base_path(given: str | None, port: int) -> str:
    """Begins and ends with a slash. Under JupyterHub it is the path that jupyter-server-proxy gives to a port."""
    if given is None:
        prefix = os.environ.get("JUPYTERHUB_SERVICE_PREFIX", "")
        given = f"{prefix}/proxy/{port}" if prefix else ""
    return re.sub("/+", "/", f"/{given}/")


def _listen(host: str, port: int | None) -> socket.socket:
    """A listening socket, on the next free port where none was asked for."""
    family, address = _resolved(host)
    for number in range(PORT, PORT + TRIED) if port is None else [port]:
        listener = socket.socket(family, socket.SOCK_STREAM)
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, number))
            listener.listen()
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise LiveError(f"cannot listen on {host}, port {number}: {error.strerror}.") from error
        else:
            return listener
    if port is None:
        raise LiveError(f"ports {PORT} to {PORT + TRIED - 1} are all in use; choose one with --port.")
    raise LiveError(f"port {port} is in use; choose another --port, or leave it out and a free one is found.")


def _resolved(host: str) -> tuple[socket.AddressFamily, str]:
    """The address of a name. Raises ConfigError where there is none."""
    if host == "localhost":
        return socket.AF_INET, "127.0.0.1"
    try:
        found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"--host {host} is no address of this machine: {error.strerror}.") from error
    return found[0][0], str(found[0][4][0])


def _has_screen(environment: Mapping[str, str]) -> bool:
    """Whether a browser can be opened here for whoever started this."""
    if environment.get("SSH_CONNECTION") or environment.get("JUPYTERHUB_SERVICE_PREFIX"):
        return False
    return sys.platform in ("win32", "darwin") or bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return "USER"
