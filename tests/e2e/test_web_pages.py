"""Pages that somebody opens in a browser on the server's machine or network: none of them changes the server."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from tests.certificates import SERVER_NAME, issue
from tests.e2e.control import EXPLICIT, client_of, index
from tests.e2e.http import Answer, get, peer_of, post
from tests.e2e.models import add_model, versioned_model
from tests.e2e.process import ServerProcess, running
from tests.e2e.support import triton
from tests.observe.status.chromium import browser, find_chromium

APP: Final = "https://app.example"
EVIL: Final = "http://evil.example"
FLAGS: Final = (
    *("--http-addr", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0", "--debug-endpoints"),
    *("--torchserve-api", "--torchserve-management-addr", "127.0.0.1:0", "--allow-client-shm"),
    *("--cors-origin", APP, "--allowed-hosts", "proxy.example"),
)
JSON: Final = "Content-Type: application/json"
#: What changes the server, and whether it would be done without a body of a form's type.
LOAD: Final = "/v2/repository/models/late/load"
CHANGES: Final = (
    LOAD,
    "/v2/repository/models/late/unload",
    "/v2/repository/traffic",
    "/v2/logging",
    "/v2/trace/setting",
    "/v2/models/first/trace/setting",
    "/v2/systemsharedmemory/region/r/register",
    "/v2/systemsharedmemory/unregister",
    "/v2/cudasharedmemory/region/r/register",
    "/v2/cudasharedmemory/unregister",
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    for name in ("first", "late"):
        add_model(models, name, versioned_model(1), 1)
    return models


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running(models, tmp_path_factory.mktemp("server"), [*FLAGS, *EXPLICIT, "--load-model", "first"]) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


def asked(port: int, path: str, host: str, *fields: str, body: str = "{}") -> Answer:
    with peer_of(port) as peer:
        return peer.ask(post(path, body, *fields).replace(b"Host: localhost", f"Host: {host}".encode()))


#: What browsers send for pages that may not, by the page.
FOREIGN: Final = {
    "a form of another site": (
        "localhost",
        f"Origin: {EVIL}",
        "Sec-Fetch-Site: cross-site",
        "Content-Type: text/plain",
    ),
    "a script of another site": ("localhost", f"Origin: {EVIL}", "Sec-Fetch-Site: cross-site", JSON),
    "a page in a sandbox": ("localhost", "Origin: null", "Sec-Fetch-Site: cross-site", JSON),
    "a page of another port": ("localhost:80", "Origin: http://localhost:3000", "Sec-Fetch-Site: same-site", JSON),
    "an old browser": ("localhost", f"Origin: {EVIL}", JSON),
    "a browser that hides the origin": ("localhost", "Sec-Fetch-Site: cross-site", JSON),
    "a name that points here": ("evil.example:80", f"Origin: {EVIL}", "Sec-Fetch-Site: same-origin", JSON),
    "a form of the server's own page": ("localhost", "Origin: http://localhost", "Content-Type: text/plain; a=b"),
    "a form of a page that may": ("localhost", f"Origin: {APP}", "Content-Type: multipart/form-data; boundary=x"),
    "a page that may, by a name that points here": ("evil.example", f"Origin: {APP}", JSON),
}


@pytest.mark.parametrize("page", FOREIGN)
def test_no_foreign_page_changes_the_server(server: ServerProcess, page: str) -> None:
    host, *fields = FOREIGN[page]
    for path in CHANGES:
        answer = asked(server.rest_port, path, host, *fields)
        assert (answer.status, "page" in answer.document["error"]) == (403, True), path
    headers = dict(field.split(": ", 1) for field in fields)
    with httpx.Client(http1=False, http2=True, timeout=120) as client:
        answers = [
            client.post(f"http://127.0.0.1:{server.port}{path}", content="{}", headers={**headers, "Host": host})
            for path in CHANGES
        ]
    assert {(one.http_version, one.status_code) for one in answers} == {("HTTP/2", 403)}
    for method, path in (("POST", "/models?url=x.mar"), ("PUT", "/models/first"), ("DELETE", "/models/first")):
        octets = (
            post(path, "", *fields).replace(b"POST", method.encode(), 1).replace(b": localhost", f": {host}".encode())
        )
        with peer_of(server.management_port) as peer:
            assert peer.ask(octets).status == 403
    with client_of(server) as client:
        assert [one[0] for one in index(client) if one[2] == "READY"] == ["first"]


def test_rpcs_are_not_for_pages_either(server: ServerProcess) -> None:
    pages = ({"origin": EVIL}, {"sec-fetch-site": "cross-site"})
    with client_of(server) as client:
        calls: tuple[Callable[[dict[str, str]], Any], ...] = (
            lambda headers: client.load_model("late", headers=headers),
            lambda headers: client.unload_model("first", headers=headers),
            lambda headers: client.update_log_settings({"log_info": False}, headers=headers),
            lambda headers: client.update_trace_settings(settings={}, headers=headers),
            lambda headers: client.register_system_shared_memory("r", "/r", 8, headers=headers),
            lambda headers: client.unregister_system_shared_memory(headers=headers),
            lambda headers: client.register_cuda_shared_memory("r", b"", 0, 8, headers=headers),
            lambda headers: client.unregister_cuda_shared_memory(headers=headers),
        )
        for headers in pages:
            for call in calls:
                with pytest.raises(triton.InferenceServerException, match="page") as refused:
                    call(headers)
                assert refused.value.status() == "StatusCode.PERMISSION_DENIED"
        client.update_log_settings({}, headers={"origin": APP})


def test_pages_that_may_and_clients_that_are_no_browsers_are_answered(server: ServerProcess) -> None:
    own, machine = f"127.0.0.1:{server.rest_port}", socket.gethostname()
    for host, *fields in (
        ("evil.example", JSON),
        ("evil.example", "Content-Type: text/plain"),
        (own, f"Origin: http://{own}", "Sec-Fetch-Site: same-origin", JSON),
        (f"{machine}:8000", f"Origin: http://{machine}:8000", JSON),
        ("proxy.example", "Origin: https://proxy.example", "Sec-Fetch-Site: same-origin", JSON),
        ("app.example", f"Origin: {APP}", "Sec-Fetch-Site: same-origin", JSON),
        ("[::1]:8000", f"Origin: {APP}", "Sec-Fetch-Site: cross-site", JSON),
    ):
        assert asked(server.rest_port, "/v2/logging", host, *fields).status == 200, (host, fields)
    # What changes nothing is for everybody, and so is inference.
    evil = ("evil.example", f"Origin: {EVIL}", "Sec-Fetch-Site: cross-site", "Content-Type: text/plain")
    assert asked(server.rest_port, "/v2/repository/index", *evil).status == 200
    given = {"inputs": [{"name": "INPUT", "datatype": "INT32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
    assert asked(server.rest_port, "/v2/models/first/infer", *evil, body=json.dumps(given)).status == 200
    with peer_of(server.rest_port) as peer:
        for path in ("/v2/health/ready", "/metrics", "/v2/logging", "/openapi.json"):
            assert peer.ask(get(path, f"Origin: {EVIL}")).status == 200


def test_callers_on_this_machine_see_pages_under_names_that_nobody_can_point_here(server: ServerProcess) -> None:
    guarded = [(server.http_port, path) for path in ("/", "/status.json", "/debug/tasks")]
    guarded.append((server.rest_port, "/docs"))
    for port, path in guarded:
        for host, is_answered in (
            ("evil.example", False),
            (f"evil.example:{port}", False),
            ("127.0.0.1.evil.example", False),
            ("localhost", True),
            (f"127.0.0.1:{port}", True),
            ("10.0.0.1", True),
            (f"proxy.example:{port}", True),
        ):
            with peer_of(port) as peer:
                answer = peer.ask(get(path).replace(b"Host: localhost", f"Host: {host}".encode()))
            assert (answer.status == 403) is not is_answered, (path, host)
            assert is_answered or b"--allowed-hosts" in answer.body
    for path in ("/metrics", "/health/ready"):
        with peer_of(server.http_port) as peer:
            assert peer.ask(get(path)).status == 200


def test_the_names_of_the_certificate_are_the_servers(models: Path, tmp_path: Path) -> None:
    flags = issue(tmp_path).server_flags()
    with running(models, tmp_path, flags) as server, httpx.Client(http2=True, verify=False, timeout=120) as client:
        statuses = [
            client.post(
                f"https://127.0.0.1:{server.port}/v2/logging",
                json={},
                headers={"Host": name, "Origin": f"https://{name}", "Sec-Fetch-Site": "same-origin"},
            ).status_code
            for name in (SERVER_NAME, "evil.example")
        ]
    assert statuses == [200, 403]


# --- a browser --------------------------------------------------------------------------------------------------------

_FORM: Final = """<title>page</title><form method=post enctype=text/plain action="URL">
<input name='{"parameters":{}, "x": "' value='"}'></form>"""
_SCRIPT: Final = """fetch("PATH", {method: "POST", body: "{}", headers: {"Content-Type": "application/json"}})
  .then(answer => answer.text()).catch(error => String(error))"""


@contextmanager
def page_with(html: str) -> Iterator[int]:
    """Serves a page on a port of its own."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *_: Any) -> None:
            pass

    page = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=page.serve_forever)
    thread.start()
    try:
        yield page.server_port
    finally:
        page.shutdown()
        thread.join()
        page.server_close()


def test_a_browser_is_refused_what_foreign_pages_have_it_send(server: ServerProcess, tmp_path: Path) -> None:
    find_chromium()
    url = f"127.0.0.1:{server.rest_port}"
    with (
        page_with(_FORM.replace("URL", f"http://{url}{LOAD}")) as page,
        browser(tmp_path, "--host-resolver-rules=MAP evil.example 127.0.0.1") as tab,
    ):
        for host in ("localhost", "127.0.0.1", "evil.example"):
            tab.open()
            tab.go(f"http://{host}:{page}/")
            tab.wait_for(lambda: tab.evaluate("document.title") == "page")
            tab.evaluate("document.forms[0].submit()")
            tab.wait_for(lambda: "another origin" in tab.text("body"))
        # The name points here now, so its pages are of the server's own origin.
        tab.open()
        tab.go(f"http://evil.example:{server.rest_port}/v2/health/ready")
        tab.wait_for(lambda: tab.evaluate("document.contentType") == "application/json")
        assert "--allowed-hosts" in tab.evaluate(_SCRIPT.replace("PATH", LOAD))
        for port, path in ((server.rest_port, "/docs"), (server.http_port, "/"), (server.http_port, "/debug/tasks")):
            tab.go(f"http://evil.example:{port}{path}")
            tab.wait_for(lambda: "--allowed-hosts" in tab.text("body"))
        tab.go(f"http://{url}/docs")
        tab.wait_for(lambda: tab.evaluate("location.host") == url)
        assert json.loads(tab.evaluate(_SCRIPT.replace("PATH", "/v2/logging")))["log_info"] is True
    with client_of(server) as client:
        assert [one[0] for one in index(client) if one[2] == "READY"] == ["first"]
