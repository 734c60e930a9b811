"""The server as a process: ports, links, SSH, JupyterHub, Ctrl-C; and the page of a real app in a real browser."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_helpers import call, mistake, popen, spawn
from store_helpers import wait_until

from sotscope.testing.runs import write_run
from sotscope_dashboards.library import Library
from sotscope_dashboards.serve import PORT

APP = """
import os, sys, types
import dash, dash_ag_grid
from dash import Input, Output, dcc, html
def make_app(library, engine, initial_run):
    app = dash.Dash("stub", enable_mcp=False)
    figure = {"data": [{"type": "heatmap", "z": [[1, 2], [3, 4]]}, {"y": [5, 7], "type": "scatter"}]}
    grid = dash_ag_grid.AgGrid(rowData=[{"a": "cell"}], columnDefs=[{"field": "a"}])
    app.layout = lambda: html.Div([
        html.P(library.open(initial_run).path.name if initial_run else "no run", id="run"),
        html.P("engine" if engine else "no engine"), dcc.Input(id="in", value="x"), html.P(id="out"),
        dcc.Graph(id="graph", figure=figure, config={"displaylogo": False}), grid])
    app.clientside_callback("function (text) { return text + '!'; }", Output("out", "children"), Input("in", "value"))
    return app
sys.modules["sotscope_dashboards.app"] = types.SimpleNamespace(make_app=make_app)
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else find(name, *rest)
"""
"""Another page in place of the real one, where torch is not installed."""
PLAIN = {
    "SSH_CONNECTION": "",
    "JUPYTERHUB_SERVICE_PREFIX": "",
    "DISPLAY": "",
    "WAYLAND_DISPLAY": "",
    "SOTSCOPE_TOKEN": "",
}
PICTURE = """url => new Promise(done => {
    const picture = new Image();
    picture.onload = () => done('out');
    picture.onerror = () => done('kept');
    picture.src = url;
})"""
SCRIPT = """() => {
    const script = document.createElement('script');
    script.textContent = 'window.ran = true';
    document.head.append(script);
    return window.ran ? 'out' : 'kept';
}"""
"""Ways out of a page, and into it."""
WATCH = "addEventListener('securitypolicyviolation', event => (window.broken ??= []).push(event.blockedURI))"
PLOT = "document.querySelector('#graph .js-plotly-plot')"
SECRET = "my-own-token-0123456789"


@dataclass
class Server:
    """A process, and what it printed so far."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)

    def line(self) -> str:
        assert self.process.stdout is not None
        self.lines.append(self.process.stdout.readline().rstrip("\n"))
        return self.lines[-1]

    def link(self) -> str:
        """The next printed link."""
        while not (found := re.search(r"http://\S+", self.line())):
            assert self.process.poll() is None or self.lines[-1], self.process.communicate()
        return found[0]

    def end(self) -> tuple[int, str]:
        """Ctrl-C; the exit code and what stands on stderr."""
        self.process.send_signal(signal.SIGINT)
        _, err = self.process.communicate(timeout=30)
        return self.process.returncode, err


@contextmanager
def serving(*arguments: object, **environment: str) -> Iterator[Server]:
    process = popen(*arguments, before=APP, env={**PLAIN, **environment})
    try:
        yield Server(process)
    finally:
        process.kill()
        process.communicate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def get(link: str, **headers: str) -> tuple[int, dict[str, str], str]:
    place, path = re.fullmatch(r"http://([^/]+)(/.*)", link).groups()  # type: ignore[union-attr]
    connection = http.client.HTTPConnection(place, timeout=30)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read().decode()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_run(tmp_path / "sky.sot", {"resid": np.ones((4, 2, 3), np.float32)})
    return tmp_path / "sky.sot"


def test_a_link_opens_the_page_once_and_ctrl_c_ends_it(run: Path) -> None:
    with serving("dashboard", run, "--port", 0, "--no-browser") as server:
        link = server.link()
        base = link.partition("?")[0]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", link)
        assert get(base)[0] == 403
        status, headers, _ = get(link)
        assert (status, headers["Location"]) == (302, "/")
        cookie = headers["Set-Cookie"].split(";")[0]
        assert cookie.startswith(f"sotscope-{base.rstrip('/').rpartition(':')[2]}=")
        assert get(base, Cookie=cookie)[0] == 200
        assert '"children":"sky.sot"' in get(f"{base}_dash-layout", Cookie=cookie)[2]
        assert '"children":"no engine"' in get(f"{base}_dash-layout", Cookie=cookie)[2]
        assert get(f"{base}_dash-layout", Cookie=cookie, Host="evil.example")[0] == 403
        assert get(link)[0] == 403
        assert "Server" not in get(base, Cookie=cookie)[1]
        following = server.link()
        assert "for another browser" in server.lines[-1]
        assert following != link
        assert get(following)[0] == 302
        assert server.end() == (130, "")


def test_a_port_in_use_is_one_line_where_it_was_asked_for_and_the_next_one_else(run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        answer = spawn("dashboard", run.parent, "--port", number, before=APP, env=PLAIN)
        assert (answer.code, answer.out) == (2, "")
        assert (
            answer.line == f"port {number} is in use; choose another --port, or leave it out and a free one is found."
        )
    with (
        serving("dashboard", run.parent, "--no-browser") as one,
        serving("dashboard", run.parent, "--no-browser") as other,
    ):
        ports = [int(server.link().split(":")[2].split("/")[0]) for server in (one, other)]
    assert ports[0] != ports[1]
    assert all(PORT <= port < PORT + 20 for port in ports)


def test_over_ssh_the_tunnel_is_printed_and_no_browser_opened(run: Path, tmp_path: Path) -> None:
    number, ssh = free_port(), "10.0.0.9 50000 192.0.2.7 22"
    browser = tmp_path / "browser"
    browser.write_text(f"#!/bin/sh\ntouch {tmp_path}/opened\n")
    browser.chmod(0o755)
    screen = {"DISPLAY": ":0", "BROWSER": f"{browser} %s", "USER": "ada", "LOGNAME": "ada"}
    with serving("dashboard", run.parent, "--port", number, SSH_CONNECTION=ssh, **screen) as server:
        assert server.line().endswith(f"type:  ssh -L {number}:127.0.0.1:{number} ada@192.0.2.7")
        assert server.link().startswith(f"http://127.0.0.1:{number}/?token=")
        assert server.end()[0] == 130
    assert not (tmp_path / "opened").exists()
    with serving("dashboard", run.parent, "--port", number, SSH_CONNECTION=ssh[:-2] + "2222", **screen) as server:
        assert f"ssh -p 2222 -L {number}:127.0.0.1:{number} ada@192.0.2.7" in server.line()


def test_where_there_is_a_screen_a_browser_is_opened(run: Path, tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text(f"#!/bin/sh\necho $1 > {tmp_path}/part && mv {tmp_path}/part {tmp_path}/opened\n")
    browser.chmod(0o755)
    screen = {"DISPLAY": ":0", "BROWSER": f"{browser} %s"}
    with serving("dashboard", run.parent, "--port", 0, **screen) as server:
        link = server.link()
        wait_until((tmp_path / "opened").exists)
        assert (tmp_path / "opened").read_text().strip() == link


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::"])
def test_another_address_is_refused_without_a_token(run: Path, host: str) -> None:
    line = mistake("dashboard", run.parent, "--host", host)
    assert line.startswith(f"--host {host} lets other machines in")
    assert "--token" in line
    assert "ssh -L" in line


def test_with_a_token_of_ones_own_it_listens_there_and_answers_to_added_names(run: Path) -> None:
    command = ["dashboard", run.parent, "--host", "0.0.0.0", "--port", 0, "--token", SECRET, "--no-browser"]
    with serving(*command, "--allow-host", "box.lan") as server:
        link = server.link()
        assert re.fullmatch(rf"http://box\.lan:\d+/\?token={SECRET}", link)
        here = link.replace("box.lan", "127.0.0.1")
        for _ in range(2):
            assert get(here, Host="box.lan")[0] == 302
        assert get(here, Host="other.lan")[0] == 403
    with serving(*command) as server:
        assert server.link().startswith("http://127.0.0.1:")
        assert [server.line(), server.line()][1].endswith("--allow-host; there is none yet.")


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [("--token", "short", "at least 16"), ("--token", "with space 0123456789", "letters"),
     ("--allow-host", "*", "no host name"), ("--base-path", "http://hub/x", "no path"),
     ("--host", "no-such-host.invalid", "no address"), ("--port", "70000", "65535"), ("--host", "0.0.0.0", "--token")],
)  # fmt: skip
def test_wrong_settings_are_one_line(run: Path, option: str, value: str, says: str) -> None:
    assert says in mistake("dashboard", run.parent, option, value)


@pytest.mark.parametrize(
    ("option", "prefix", "base"),
    [(["--base-path", "/lab/scope"], "", "/lab/scope/"), ([], "/user/ada/", "/user/ada/proxy/{port}/"),
     (["--base-path", "/elsewhere"], "/user/ada/", "/elsewhere/")],
)  # fmt: skip
def test_base_path_and_jupyterhub(run: Path, option: list[str], prefix: str, base: str) -> None:
    number = free_port()
    base = base.format(port=number)
    command = ["dashboard", run, "--port", number, "--no-browser", "--allow-host", "hub.example.org", *option]
    with serving(*command, JUPYTERHUB_SERVICE_PREFIX=prefix) as server:
        said = server.line()
        path = re.search(r"(/[^:/ ]\S*)\?token=[\w-]+$", said.replace(f"http://127.0.0.1:{number}", ""))
        assert path is not None
        assert path[1] == base
        if prefix:
            assert "JupyterHub" in said
            assert "--allow-host" in server.line()
        here, token = f"http://127.0.0.1:{number}", said.rpartition("token=")[2]
        status, headers, _ = get(f"{here}{base}?token={token}", Host="hub.example.org")
        assert (status, headers["Location"]) == (302, base)
        cookie = headers["Set-Cookie"].split(";")[0]
        for place in (base, "/"):  # proxies that strip the path, and those that do not
            status, _, page = get(f"{here}{place}", Host="hub.example.org", Cookie=cookie)
            assert status == 200
            config = re.search(r'<script id="_dash-config"[^>]*>(.*?)</script>', page)
            assert config is not None
            assert json.loads(config[1])["requests_pathname_prefix"] == base
            script = re.search(r'<script src="([^"]+)"', page)
            assert script is not None
            assert script[1].startswith(base)
            assert get(f"{here}{script[1]}", Host="hub.example.org", Cookie=cookie)[0] == 200


def test_without_the_extra_it_says_what_to_install(run: Path) -> None:
    for command in (["dashboard", run.parent], ["demo"]):
        answer = spawn(*command, before="import sys; sys.modules['dash'] = None")
        assert (answer.code, answer.out) == (2, "")
        assert answer.line == f"{command[0]} needs a few more packages: pip install 'sotscope[dashboard]'"


def test_what_is_no_place(tmp_path: Path) -> None:
    assert "does not exist" in mistake("dashboard", tmp_path / "none")
    (tmp_path / "file").write_text("")
    assert "does not exist" in mistake("dashboard", tmp_path / "file")


@pytest.mark.parametrize(("given", "shown"), [(".", "no run"), ("sky.sot", "sky.sot"), ("links/sky", "sky.sot")])
def test_a_folder_or_a_run_is_served(run: Path, tmp_path: Path, given: str, shown: str) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links/sky").symlink_to(run)
    with serving("dashboard", tmp_path / given, "--port", 0) as server:
        base, _, token = server.link().partition("?")
        _, headers, _ = get(f"{base}?{token}")
        cookie = headers["Set-Cookie"].split(";")[0]
        assert f'"children":"{shown}"' in get(f"{base}_dash-layout", Cookie=cookie)[2]


def test_the_demo_serves_copies_and_leaves_nothing_behind(run: Path, tmp_path: Path) -> None:
    (tmp_path / "demo_runs").mkdir()
    shutil.move(run, tmp_path / "demo_runs/sky.sot")
    (tmp_path / "temp").mkdir()
    there = f"import sotscope_dashboards\nsotscope_dashboards.__path__.insert(0, {str(tmp_path)!r})\n"
    process = popen("demo", "--port", 0, before=there + APP, env={**PLAIN, "TMPDIR": str(tmp_path / "temp")})
    server = Server(process)
    link = server.link()
    assert "sotscope fetch" in server.lines[0]
    _, headers, _ = get(link)
    cookie = headers["Set-Cookie"].split(";")[0]
    assert '"children":"sky.sot"' in get(link.partition("?")[0] + "_dash-layout", Cookie=cookie)[2]
    (folder,) = (tmp_path / "temp").glob("sotscope-demo-*")
    assert [entry["name"] for entry in Library(folder).entries()] == ["sky.sot"]
    assert server.end() == (130, "")
    assert list((tmp_path / "temp").iterdir()) == []


def test_the_help_shows_an_example() -> None:
    for command in ("dashboard", "demo"):
        assert f"sotscope {command}" in call(command, "--help").out.split("Example")[-1]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium")
def test_in_a_browser_the_policy_lets_dash_work_and_nothing_out(run: Path) -> None:
    """C60: figures, AG Grid and clientside callbacks work; no request leaves this machine."""
    from playwright.sync_api import sync_playwright

    with (
        socket.create_server(("127.0.0.1", 0)) as outside,
        serving("dashboard", run, "--port", 0, "--no-browser") as server,
        sync_playwright() as playwright,
    ):
        outside.setblocking(False)
        link, broken = server.link(), []
        asked: list[str] = []
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = chromium.new_page()
        page.add_init_script(WATCH)
        page.on("console", lambda message: broken.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(link)
        page.wait_for_selector("text=x!")
        page.wait_for_selector(".ag-cell >> text=cell")
        # wait_for_function polls with eval() inside the page, which the policy forbids from the second look on
        wait_until(lambda: page.evaluate(f"{PLOT}?._fullData?.length == 2"))
        values = page.evaluate(f"Array.from({PLOT}._fullData[1].y)")
        picture: Any = page.evaluate(f"Plotly.toImage({PLOT}, {{format: 'png'}})")
        assert values == [5, 7]
        assert picture.startswith("data:image/png;base64,")
        assert page.url == link.partition("?")[0]
        assert page.evaluate("document.cookie") == "", "HttpOnly"
        assert broken == []
        assert page.evaluate("window.broken") is None
        assert {url.partition("?")[0].split("/")[2] for url in asked if not url.startswith(("data:", "blob:"))} == {
            link.split("/")[2]
        }
        there = f"http://127.0.0.1:{outside.getsockname()[1]}/i.png"
        assert page.evaluate(f"fetch('{there}').then(() => 'out', () => 'kept')") == "kept"
        assert page.evaluate(PICTURE, there) == "kept"
        assert page.evaluate(SCRIPT) == "kept"
        with pytest.raises(BlockingIOError):
            outside.accept()
        chromium.close()
