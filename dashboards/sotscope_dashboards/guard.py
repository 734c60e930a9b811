"""The door of the page: which requests are answered at all. It wraps the whole app, so that no route is left out.

Without it any website could talk to the server through the reader's own browser (DNS rebinding, cross-site requests),
and so could every user of the machine. As Jupyter does it: a token in the printed link is exchanged for a cookie.
"""

from __future__ import annotations

import base64
import hmac
import re
import secrets
import threading
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from werkzeug.http import dump_cookie, parse_cookie

from sotscope.errors import ConfigError

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
CACHED = ("/assets/", "/_dash-component-suites/")
"""What a browser may keep: code and style, never data."""
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?)(?::([0-9]{1,5}))?")
_POLICY = (
    "default-src 'self'; script-src 'self'{scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'none'"
)
"""plotly and AG Grid write style elements; scripts are files of ours, or inline ones that are known by their hash."""
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>sotscope</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 34em; margin: 20vh auto; padding: 0 1em }}</style>
<main><h1>Not open to this browser</h1><p>{why}</p></main></html>
"""
NO_COOKIE = "Open the newest link that sotscope printed in the terminal; every link opens the page once."
BAD_TOKEN = (
    "The token in this link is wrong, or was used before. Open the newest link that sotscope printed in the terminal, "
    "or start sotscope again with --token and a token of your own, which stays valid."
)


class Guard:
    """WSGI middleware around ``app``, which listens on ``port`` and is seen by the browser below ``base_path``.

    ``token``: one that the user chose, valid as long as the server lives. Without it there is always one token that
    works once; ``renewed`` is told of the next one. ``scripts`` are the CSP hashes of the app's inline scripts.
    """

    def __init__(
        self,
        app: WSGIApplication,
        *,
        port: int,
        base_path: str = "/",
        allow_hosts: Iterable[str] = (),
        token: str | None = None,
        scripts: Iterable[str] = (),
        renewed: Callable[[str], None] = lambda token: None,
    ) -> None:
        self._app = app
        self._port = port
        self._base = base_path
        self._added = frozenset(host_name(host) for host in allow_hosts)
        self._chosen = token is not None
        self.token = token or secrets.token_urlsafe(24)
        self._renewed = renewed
        self._secret = _cookie_of(token) if token is not None else secrets.token_urlsafe(32)
        self._lock = threading.Lock()
        self._headers = {
            "Content-Security-Policy": _POLICY.format(scripts="".join(f" {one}" for one in scripts)),
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
        }

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        environ = self._below_base(environ)
        start = self._secured(environ["PATH_INFO"], start_response)
        why = self._stranger(environ)
        if why:
            return _refuse(start, why)
        query = parse_qsl(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        given = [value for key, value in query if key == "token"]
        if given and environ["REQUEST_METHOD"] == "GET":
            if self._known(environ) or self._spend(given[0]):
                return self._let_in(environ, [pair for pair in query if pair[0] != "token"], start)
            return _refuse(start, BAD_TOKEN, page=_wants_page(environ))
        if not self._known(environ):
            return _refuse(start, NO_COOKIE, page=_wants_page(environ))
        return self._app(environ, start)

    def _below_base(self, environ: WSGIEnvironment) -> WSGIEnvironment:
        """The base path moved from the path to SCRIPT_NAME; some proxies strip it themselves."""
        path, root = environ.get("PATH_INFO") or "/", self._base.rstrip("/")
        if root and (path == root or path.startswith(f"{root}/")):
            path = path[len(root) :] or "/"
        return {**environ, "SCRIPT_NAME": root, "PATH_INFO": path}

    # -- who asks ----------------------------------------------------------------------------------------------

    def _stranger(self, environ: WSGIEnvironment) -> str:
        """Why a request does not come from a page of ours; empty where it does."""
        host = environ.get("HTTP_HOST", "").lower()
        match = _HOST.fullmatch(host)
        if not match or not (match[1] in LOOPBACK or match[1] in self._added):
            return "This name is not one that sotscope answers to; if it is yours, start it with --allow-host NAME."
        site = environ.get("HTTP_SEC_FETCH_SITE", "none").lower()
        followed = environ.get("HTTP_SEC_FETCH_MODE") == "navigate"
        if site not in ("none", "same-origin") and not (site == "same-site" and followed):
            return "This was asked for by another site; copy the link into the address bar."
        origin = environ.get("HTTP_ORIGIN", "").lower()
        # our Referrer-Policy lets browsers hide the origin of some of our own requests; Sec-Fetch-Site vouches for them
        ours = origin == "null" and site == "same-origin" and "HTTP_SEC_FETCH_SITE" in environ
        if origin and not ours and not self._is_origin(origin, host):
            return "This was sent by a page of another origin."
        return ""

    def _is_origin(self, origin: str, host: str) -> bool:
        """Whether a page at ``origin`` is ours: same name and port (other servers here are not), or an added name."""
        scheme, _, place = origin.partition("://")
        match = _HOST.fullmatch(place)
        return scheme in ("http", "https") and match is not None and (place == host or match[1] in self._added)

    def _cookie(self, environ: WSGIEnvironment) -> str:
        """The cookie's name. Browsers keep cookies apart by host but not by port, so the port they see is in it."""
        match = _HOST.fullmatch(environ["HTTP_HOST"].lower())
        return f"sotscope-{(match and match[2]) or self._port}"

    def _known(self, environ: WSGIEnvironment) -> bool:
        return any(_same(value, self._secret) for value in parse_cookie(environ).getlist(self._cookie(environ)))

    # -- token for cookie --------------------------------------------------------------------------------------

    def _spend(self, given: str) -> bool:
        """Whether ``given`` is the token; if so, and nobody chose it, it was for this once."""
        with self._lock:
            if not _same(given, self.token):
                return False
            if not self._chosen:
                self.token = secrets.token_urlsafe(24)
                self._renewed(self.token)
        return True

    def _let_in(self, environ: WSGIEnvironment, query: list[tuple[str, str]], start: StartResponse) -> Iterable[bytes]:
        """To the same address without the token, with the cookie."""
        path = environ["PATH_INFO"].lstrip("/\\")  # "//elsewhere" would be another host
        to = self._base + quote(path.encode("latin-1")) + (f"?{urlencode(query)}" if query else "")
        cookie = dump_cookie(self._cookie(environ), self._secret, path=self._base, httponly=True, samesite="Strict")
        start("302 Found", [("Location", to), ("Set-Cookie", cookie), ("Content-Length", "0")])
        return []

    # -- what goes out -----------------------------------------------------------------------------------------

    def _secured(self, path: str, start_response: StartResponse) -> Any:
        """``start_response`` with our headers in place of the app's."""
        ours = dict(self._headers)
        if not path.startswith(CACHED):
            ours["Cache-Control"] = "no-store"
        names = {name.lower() for name in ours}

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            kept = [(name, value) for name, value in headers if name.lower() not in names]
            return start_response(status, [*kept, *ours.items()], exc_info)

        return start


def host_name(text: str) -> str:
    """``Hub.example.org:443``, ``::1`` as a Host header has them, without the port. Raises ConfigError."""
    name = text.strip().lower()
    match = _HOST.fullmatch(f"[{name}]" if name.count(":") > 1 and not name.startswith("[") else name)
    if not match:
        raise ConfigError(f"{text!r} is no host name; write it as in the browser's address bar: hub.example.org")
    return match[1]


def _cookie_of(token: str) -> str:
    """The cookie for a token that was chosen: the same after a restart, so that open pages come back by themselves."""
    return base64.urlsafe_b64encode(hmac.digest(token.encode(), b"sotscope cookie", "sha256")).decode().rstrip("=")


def _wants_page(environ: WSGIEnvironment) -> bool:
    return "text/html" in environ.get("HTTP_ACCEPT", "")


def _refuse(start: StartResponse, why: str, *, page: bool = False) -> Iterable[bytes]:
    """403 with one line, or with a page for a person."""
    body = (_PAGE.format(why=why) if page else f"{why}\n").encode()
    kind = "html" if page else "plain"
    start("403 Forbidden", [("Content-Type", f"text/{kind}; charset=utf-8"), ("Content-Length", str(len(body)))])
    return [body]


def _same(given: str, secret: str) -> bool:
    """Whether two secrets are equal; takes as long for a wrong one as for a right one."""
    return hmac.compare_digest(given.encode(errors="replace"), secret.encode())
