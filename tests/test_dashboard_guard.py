"""The guard answers pages of its own and nobody else: Host, Origin, token and cookie, on every kind of route."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import dash
import pytest
from dash import Input, Output, dcc, html
from werkzeug.test import Client, TestResponse

from sotscope.errors import ConfigError
from sotscope_dashboards.guard import Guard, host_name
from sotscope_dashboards.serve import script_hashes

HERE = "127.0.0.1:8050"
ROUTES = [
    ("GET", "/"), ("GET", "/runs"), ("HEAD", "/"), ("GET", "/assets/page.js"), ("GET", "/_favicon.ico"),
    ("GET", "/_dash-component-suites/dash/deps/react.js"), ("GET", "/_dash-layout"), ("GET", "/_dash-dependencies"),
    ("POST", "/_dash-update-component"), ("POST", "/api/look"), ("POST", "/api/command"), ("GET", "/api/runs"),
    ("PUT", "/api/look"), ("DELETE", "/api/runs"), ("OPTIONS", "/api/look"), ("PATCH", "/"), ("TRACE", "/"),
]  # fmt: skip
STRANGE_HOSTS = [
    "", "evil.example", "evil.example:8050", "localhost.evil.example", "127.0.0.1.evil.example", "evil-localhost",
    "localhost@evil.example", "localhost, evil.example", "localhost:8050:1", "localhost:", "localhost.", "127.0.0.2",
    "0.0.0.0:8050", "[::2]", "::1", "localhost:8050/", "localhost\tx", "2130706433", "localhost:123456",
]  # fmt: skip
every_route = pytest.mark.parametrize(("method", "path"), ROUTES, ids=[" ".join(route) for route in ROUTES])


def echo(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Says what the app below the guard was asked."""
    said = f"{environ['REQUEST_METHOD']} {environ['SCRIPT_NAME']}|{environ['PATH_INFO']}?{environ['QUERY_STRING']}"
    start_response("200 OK", [("Content-Type", "text/html"), ("Cache-Control", "max-age=9"), ("X-Frame-Options", "x")])
    return [said.encode()]


class Browser:
    """Sends requests to a guard; keeps cookies by name, as a browser does whatever the port."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.cookies: dict[str, str] = {}

    def ask(self, path: str, method: str = "GET", host: str = HERE, **headers: str) -> TestResponse:
        given = {f"HTTP_{name.upper()}": value for name, value in headers.items()}
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        path, _, query = path.partition("?")
        answer = Client(self.guard, use_cookies=False).open(
            path="/", method=method, query_string=query,
            environ_overrides={"HTTP_HOST": host, "HTTP_COOKIE": cookie, "PATH_INFO": path, **given},
        )  # fmt: skip
        for name, value in re.findall(r"^(sotscope-\d+)=([^;]+)", answer.headers.get("Set-Cookie", "")):
            self.cookies[name] = value
        return answer

    def enter(self, host: str = HERE) -> TestResponse:
        answer = self.ask(f"/?token={self.guard.token}", host=host)
        assert answer.status_code == 302
        return answer


def browser(**settings: Any) -> Browser:
    return Browser(Guard(echo, **{"port": 8050, **settings}))


def inside(**settings: Any) -> Browser:
    """One that has the cookie."""
    made = browser(**settings)
    made.enter()
    return made


# -- token and cookie ----------------------------------------------------------------------------------------------


@every_route
def test_without_the_cookie_nothing_is_answered(method: str, path: str) -> None:
    assert browser().ask(path, method).status_code == 403
    assert browser().ask(f"{path}?token=wrong", method).status_code == 403


@every_route
def test_with_the_cookie_everything_is(method: str, path: str) -> None:
    answer = inside().ask(path, method)
    assert answer.status_code == 200
    assert method == "HEAD" or answer.text == f"{method} |{path}?"


def test_the_link_becomes_a_cookie_and_the_same_address_without_the_token() -> None:
    made = browser()
    answer = made.ask(f"/run?run=ab%20c&token={made.guard.token}&seq=")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/run?run=ab+c&seq=")
    name, *attributes = answer.headers["Set-Cookie"].split("; ")
    assert re.fullmatch(r"sotscope-8050=[\w-]{43}", name)
    assert {one.lower() for one in attributes} == {"httponly", "path=/", "samesite=strict"}
    assert made.ask("/run").status_code == 200


def test_a_token_works_once_and_the_next_one_is_told() -> None:
    told: list[str] = []
    made = browser(renewed=told.append)
    first = made.guard.token
    made.enter()
    stranger = Browser(made.guard)
    answer = stranger.ask(f"/?token={first}", accept="text/html,*/*")
    assert answer.status_code == 403
    assert answer.mimetype == "text/html"
    assert "newest link that sotscope printed in the terminal" in answer.text
    assert "--token" in answer.text
    assert stranger.cookies == {}
    assert told == [made.guard.token] != [first]
    assert stranger.ask(f"/?token={told[0]}").status_code == 302
    assert stranger.cookies == made.cookies


def test_a_browser_that_is_known_may_follow_its_old_link_and_uses_no_token_up() -> None:
    made = inside()
    fresh = made.guard.token
    assert made.ask("/?token=old").headers["Location"] == "/"
    assert made.guard.token == fresh


def test_only_a_visit_uses_the_token_up() -> None:
    made = browser()
    for method in ("HEAD", "POST", "OPTIONS"):
        assert made.ask(f"/?token={made.guard.token}", method).status_code == 403
    for refused in ({"host": "evil.example"}, {"origin": "http://evil.example"}, {"sec_fetch_site": "cross-site"}):
        assert made.ask(f"/?token={made.guard.token}", **refused).status_code == 403
    made.enter()


def test_a_token_of_ones_own_stays_valid() -> None:
    guard = Guard(echo, port=8050, token="my-own-token-0123456789")
    for _ in range(2):
        assert Browser(guard).ask("/?token=my-own-token-0123456789").status_code == 302
    assert Browser(guard).ask("/?token=my-own-token-012345678").status_code == 403


def test_with_a_token_of_ones_own_an_open_page_outlives_a_restart() -> None:
    made = browser(token="my-own-token-0123456789")
    made.enter()
    made.guard = Guard(echo, port=8050, token="my-own-token-0123456789")
    assert made.ask("/").status_code == 200
    made.guard = Guard(echo, port=8050, token="another-token-0123456789")
    assert made.ask("/").status_code == 403
    (cookie,) = made.cookies.values()
    assert "my-own-token" not in cookie


@pytest.mark.parametrize("cookie", ["", "x", "é", "%00", "my-own-token-0123456789"])
def test_a_wrong_cookie_is_none(cookie: str) -> None:
    made = browser(token="my-own-token-0123456789")
    made.cookies["sotscope-8050"] = cookie.encode().decode("latin-1")
    assert made.ask("/").status_code == 403


def test_the_cookie_of_another_server_is_none_and_of_another_port_does_no_harm() -> None:
    one, other = inside(), browser(port=8051)
    other.enter(host="localhost:8051")
    secret = one.cookies["sotscope-8050"]
    assert Browser(other.guard).ask("/", cookie=f"sotscope-8050={secret}").status_code == 403
    both = {**one.cookies, **other.cookies, "unrelated": 'a"b'}
    one.cookies, other.cookies = both, both
    assert one.ask("/").status_code == 200
    assert other.ask("/", host="localhost:8051").status_code == 200
    assert other.ask("/").status_code == 403, "8050 is the other server's"


def test_through_a_tunnel_the_cookie_has_the_port_that_the_browser_sees() -> None:
    made = browser()
    made.enter(host="localhost:9999")
    assert list(made.cookies) == ["sotscope-9999"]
    assert made.ask("/", host="localhost:9999").status_code == 200


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example", "/\r\nSet-Cookie: a=b", "///evil.example"])
def test_the_redirect_leads_nowhere_else(path: str) -> None:
    made = browser()
    to = made.ask(f"{path}?token={made.guard.token}").headers["Location"]
    assert re.fullmatch(r"/(?![/\\])[\w./%-]*", to)


# -- who asks ------------------------------------------------------------------------------------------------------


@every_route
def test_dns_rebinding_a_name_that_is_not_ours_gets_nothing(method: str, path: str) -> None:
    made = inside()
    for host in STRANGE_HOSTS:
        answer = made.ask(path, method, host=host)
        assert answer.status_code == 403, host
        assert method == "HEAD" or (answer.mimetype == "text/plain" and answer.text.count("\n") == 1)


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:65535", "[::1]:8050", "LocalHost:8050"])
def test_this_machine_by_any_of_its_names_and_ports(host: str) -> None:
    made = browser()
    made.enter(host=host)
    assert made.ask("/", host=host, origin=f"http://{host}").status_code == 200


def test_an_added_name_is_answered() -> None:
    made = browser(allow_hosts=["Hub.Example.org:443", "2001:db8::1"])
    for host in ("hub.example.org", "hub.example.org:8000", "[2001:db8::1]:8050"):
        made.enter(host=host)
        assert made.ask("/api/look", "POST", host=host, origin=f"https://{host}").status_code == 200
    assert made.ask("/", host="sub.hub.example.org").status_code == 403


@pytest.mark.parametrize("text", ["*", "", "a b", "http://hub", "hub/", "hub:port", "[::1"])
def test_what_is_no_name_is_not_added(text: str) -> None:
    with pytest.raises(ConfigError, match="no host name"):
        host_name(text)


@every_route
@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://127.0.0.1:3000", "http://localhost:8050", "http://127.0.0.1", "file://",
     "http://127.0.0.1:8050.evil.example", "http://evil.example/127.0.0.1:8050", "chrome-extension://127.0.0.1:8050"],
)  # fmt: skip
def test_a_page_of_another_origin_gets_nothing(method: str, path: str, origin: str) -> None:
    assert inside().ask(path, method, origin=origin).status_code == 403


@every_route
def test_another_site_gets_nothing_even_without_an_origin(method: str, path: str) -> None:
    made = inside()
    assert made.ask(path, method, sec_fetch_site="cross-site").status_code == 403
    assert made.ask(path, method, sec_fetch_site="cross-site", sec_fetch_mode="navigate").status_code == 403
    assert made.ask(path, method, sec_fetch_site="same-site").status_code == 403, "another port of this machine"


def test_our_own_page_may_ask() -> None:
    made = inside()
    assert made.ask("/api/look", "POST", origin=f"http://{HERE}", sec_fetch_site="same-origin").status_code == 200
    assert made.ask("/api/look", "POST", origin="null", sec_fetch_site="same-origin").status_code == 200
    assert made.ask("/", sec_fetch_site="none", sec_fetch_mode="navigate").status_code == 200
    assert made.ask("/", sec_fetch_site="same-site", sec_fetch_mode="navigate").status_code == 200, "JupyterLab's link"


# -- base path and headers -----------------------------------------------------------------------------------------


def test_the_base_path_is_stripped_whether_or_not_the_proxy_did_it() -> None:
    made = browser(base_path="/user/me/proxy/8050/")
    answer = made.ask(f"/user/me/proxy/8050/runs?token={made.guard.token}")
    assert answer.headers["Location"] == "/user/me/proxy/8050/runs"
    assert "Path=/user/me/proxy/8050/" in answer.headers["Set-Cookie"]
    for path in ("/user/me/proxy/8050/api/look", "/api/look"):
        assert made.ask(path).text == "GET /user/me/proxy/8050|/api/look?"
    assert made.ask("/user/me/proxy/8050").text == "GET /user/me/proxy/8050|/?"
    assert made.ask("/user/me/proxy/80501").text == "GET /user/me/proxy/8050|/user/me/proxy/80501?"


@every_route
def test_every_answer_has_the_headers_that_keep_it_in(method: str, path: str) -> None:
    made = browser()
    refused, let_in, strange = made.ask(path, method), made.enter(), made.ask(path, method, host="evil.example")
    answered = made.ask(path, method)
    for answer in (refused, let_in, strange, answered):
        policy = dict(part.split(" ", 1) for part in answer.headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == policy["connect-src"] == policy["script-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["object-src"] == "'none'"
        assert answer.headers.getlist("X-Frame-Options") == ["DENY"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
    kept = path.startswith(("/assets/", "/_dash-component-suites/"))
    assert answered.headers.getlist("Cache-Control") == ["max-age=9" if kept else "no-store"]


def test_a_real_dash_app_behind_the_guard() -> None:
    app = dash.Dash(__name__, enable_mcp=False)
    app.layout = html.Div([dcc.Input(id="in"), html.P(id="out")])
    app.clientside_callback(
        "function (text) { return text + '</p>'; }", Output("out", "children"), Input("in", "value")
    )
    hashes = script_hashes(app)
    assert sorted(hashes) == sorted(app.csp_hashes()), "Dash's own reckoning"
    made = Browser(Guard(app.server, port=8050, scripts=hashes))
    routes = ["/", "/any/page", "/_dash-layout", "/_dash-dependencies", "/_favicon.ico"]
    assert [made.ask(path).status_code for path in routes] == [403] * 5
    made.enter()
    assert [made.ask(path).status_code for path in routes] == [200] * 5
    index = made.ask("/")
    assert all(one in index.headers["Content-Security-Policy"] for one in hashes)
    scripts = re.findall(r'<script src="([^"]+)"', index.text)
    assert scripts
    for script in scripts:
        assert script.startswith("/"), "nothing from elsewhere (C60)"
        assert made.ask(script).status_code == 200
        assert Browser(made.guard).ask(script).status_code == 403
