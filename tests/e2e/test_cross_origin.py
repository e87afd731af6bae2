"""Pages of other origins: which of them may read answers (CORS), by raw requests and in a real browser."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from tests.e2e.http import Answer, get, peer_of, post
from tests.e2e.models import CONFIG, add_model, negating_model
from tests.e2e.process import ServerProcess, running
from tests.observe.status.chromium import browser, find_chromium

HTTP: Final = ("--http-addr", "127.0.0.1:0", "--torchserve-api", "--torchserve-management-addr", "127.0.0.1:0")
APP: Final = "https://app.example"
BODY: Final = json.dumps({"inputs": [{"name": "INPUT", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]})


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    add_model(models, "neg", negating_model(4), config=CONFIG.format(4, 8))
    return models


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    flags = [*HTTP, "--cors-origin", f"{APP},http://localhost:3000", "--http-restricted-api", "trace:key=hush"]
    with running(models, tmp_path_factory.mktemp("server"), flags) as process:
        yield process
        assert process.stop() == 0
        assert "Traceback" not in process.log


def asked(path: str, *fields: str, method: str = "POST", origin: str = APP) -> bytes:
    """A browser's question whether a page may send something."""
    words = (
        f"OPTIONS {path} HTTP/1.1\r\nHost: localhost\r\nOrigin: {origin}\r\nAccess-Control-Request-Method: {method}\r\n"
    )
    return (words + "".join(f"{field}\r\n" for field in fields) + "\r\n").encode()


def allowed(answer: Answer) -> str | None:
    return answer.fields.get("access-control-allow-origin")


INFER: Final = "/v2/models/neg/infer"
REQUESTS: Final = {
    "an inference": (post(INFER, BODY), 200),
    "one that is refused": (post(INFER.replace("neg", "none"), BODY), 404),
    "a generation": (post("/v2/models/neg/generate", '{"INPUT": [1, 2, 3, 4]}'), 200),
    "a stream of events": (post("/v2/models/neg/generate_stream", '{"INPUT": [1, 2, 3, 4]}'), 200),
    "health": (get("/v2/health/ready"), 200),
    "what grows": (get("/v2/models/stats"), 200),
    "a document": (get("/openapi.json"), 200),
    "metrics": (get("/metrics"), 200),
    "nothing there": (get("/v2/nowhere"), 404),
    "a method that is not there": (post("/v2/health/live", ""), 405),
    "what is restricted": (get("/v2/trace/setting"), 403),
    "an API for text": (post("/v1/embeddings", "{}", "Content-Type: application/json"), 400),
    "TorchServe": (get("/ping"), 200),
    "a body that is too long": (
        post("/v2/repository/index", b"", "X-Is: long").replace(b"Length: 0", b"Length: 99999999"),
        413,
    ),
}


@pytest.mark.parametrize("what", REQUESTS)
def test_every_answer_says_whose_page_may_read_it(server: ServerProcess, what: str) -> None:
    octets, status = REQUESTS[what]
    for port in (server.rest_port, server.port):
        for origin in (APP, "http://localhost:3000"):
            with peer_of(port) as peer:
                answer = peer.ask(
                    octets.replace(b"Host: localhost\r\n", f"Host: localhost\r\nOrigin: {origin}\r\n".encode())
                )
            assert (answer.status, allowed(answer)) == (status, origin)
            assert "Inference-Header-Content-Length" in answer.fields["access-control-expose-headers"]
            assert "access-control-allow-credentials" not in answer.fields
            assert "origin" in answer.fields["vary"]
        for field in ("Origin: https://app.example.evil", "Origin: null", "X-Not: a page"):
            with peer_of(port) as peer:
                answer = peer.ask(octets.replace(b"Host: localhost\r\n", f"Host: localhost\r\n{field}\r\n".encode()))
            assert answer.status == status
            assert not [name for name in answer.fields if name.startswith("access-control")]
            assert "origin" in answer.fields["vary"]


def test_a_browser_that_asks_first_is_told_without_a_key(server: ServerProcess) -> None:
    with peer_of(server.rest_port) as peer:
        for path, method in ((INFER, "POST"), ("/v2/trace/setting", "GET"), ("/predictions/neg", "PUT")):
            answer = peer.ask(asked(path, "Access-Control-Request-Headers: authorization, key", method=method))
            assert (answer.status, answer.body, allowed(answer)) == (204, b"", APP)
            assert answer.fields["access-control-allow-methods"] == method
            assert answer.fields["access-control-allow-headers"] == "authorization, key"
            assert answer.fields["access-control-max-age"] == "7200"
            assert answer.fields["vary"] == "origin"
        refused = peer.ask(asked(INFER, origin="https://evil.example"))
        assert (refused.status, allowed(refused), refused.fields["allow"]) == (405, None, "POST")
        odd = peer.ask(asked(INFER, "Access-Control-Request-Headers: a\xe9b"))
        assert odd.status == 204
        assert "access-control-allow-headers" not in odd.fields


def test_over_http2_it_is_the_same(server: ServerProcess) -> None:
    httpx = pytest.importorskip("httpx")
    pytest.importorskip("h2")
    question = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "key"}
    for port in (server.rest_port, server.port):
        with httpx.Client(http1=False, http2=True, base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
            for _ in range(2):
                answer = client.post(INFER, content=BODY, headers={"Origin": f" {APP} "})
                assert (answer.http_version, answer.status_code) == ("HTTP/2", 200)
                assert answer.headers["access-control-allow-origin"] == APP
                other = client.post(INFER, content=BODY, headers={"Origin": "https://evil.example"})
                assert "access-control-allow-origin" not in other.headers
                assert other.headers["vary"] == "origin"
            asked_first = client.options(INFER, headers={"Origin": APP, **question})
            assert (asked_first.status_code, asked_first.headers["access-control-allow-headers"]) == (204, "key")
            whole, head = client.get("/openapi.json"), client.head("/openapi.json")
            assert (head.content, head.headers["content-length"]) == (b"", whole.headers["content-length"])
            refused = client.put("/v2/health/live")
            assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")


def test_the_management_api_stays_closed_to_pages(server: ServerProcess) -> None:
    with peer_of(server.management_port) as peer:
        for octets in (asked("/models"), get("/models", f"Origin: {APP}")):
            answer = peer.ask(octets)
            assert (answer.status, allowed(answer)) == (403, None)


def test_all_origins_may_where_that_is_wanted_and_none_by_default(models: Path, tmp_path: Path) -> None:
    with running(models, tmp_path, [*HTTP, "--cors-origin", "*"]) as server, peer_of(server.rest_port) as peer:
        for fields in ([], ["Origin: https://any.example"]):
            answer = peer.ask(post(INFER, BODY, *fields))
            assert (allowed(answer), answer.fields.get("vary")) == ("*", None)
        assert peer.ask(asked(INFER)).status == 204
        answer = peer.ask(post("/v2/logging", "{}", "Origin: https://any.example", "Content-Type: application/json"))
        assert (answer.status, allowed(answer)) == (403, "*")  # they may read, and change nothing
    with running(models, tmp_path, HTTP) as server, peer_of(server.rest_port) as peer:
        answer = peer.ask(post(INFER, BODY, f"Origin: {APP}"))
        assert (allowed(answer), answer.fields.get("vary")) == (None, None)
        assert peer.ask(asked(INFER)).status == 405


# --- a browser --------------------------------------------------------------------------------------------------------


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>page</title>")

    def log_message(self, *_: Any) -> None:
        pass


_INFER_SCRIPT: Final = """(async () => {
  const numbers = new Uint8Array(new Float32Array([1, 2, 3, 4]).buffer);
  const json = new TextEncoder().encode(JSON.stringify({
    inputs: [{name: "INPUT", shape: [1, 4], datatype: "FP32", parameters: {binary_data_size: 16}}],
    outputs: [{name: "OUTPUT", parameters: {binary_data: true}}]}));
  const answer = await fetch("URL/v2/models/neg/infer", {
    method: "POST", body: new Blob([json, numbers]),
    headers: {"Inference-Header-Content-Length": String(json.length), "Authorization": "Bearer none"}});
  const body = new Uint8Array(await answer.arrayBuffer());
  const events = await fetch("URL/v2/models/neg/generate_stream", {
    method: "POST", body: JSON.stringify({INPUT: [1, 2, 3, 4]}), headers: {"Content-Type": "application/json"}});
  return [Number(answer.headers.get("Inference-Header-Content-Length")), [...body], await events.text(),
    (await fetch("URL/v2/nowhere")).status];
})().catch(error => String(error))"""


def test_a_browser_lets_pages_of_the_listed_origins_read_answers_and_no_others(models: Path, tmp_path: Path) -> None:
    find_chromium()
    page = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    thread = threading.Thread(target=page.serve_forever)
    thread.start()
    (tmp_path / "browser").mkdir()
    listed, other = (f"http://{host}:{page.server_port}" for host in ("127.0.0.1", "localhost"))
    try:
        with (
            running(models, tmp_path, [*HTTP, "--cors-origin", listed]) as server,
            browser(tmp_path / "browser") as tab,
        ):
            script = _INFER_SCRIPT.replace("URL", f"http://127.0.0.1:{server.rest_port}")
            answers = []
            for origin in (listed, other):
                tab.open()
                tab.go(origin)
                tab.wait_for(lambda: tab.evaluate("document.title") == "page")
                answers.append(tab.evaluate(script))
    finally:
        page.shutdown()
        thread.join()
        page.server_close()
    length, body, events, missing = answers[0]
    assert struct.unpack("<4f", bytes(body[length:])) == (-1, -2, -3, -4)
    assert json.loads(bytes(body[:length]))["model_name"] == "neg"
    assert events.startswith("data: {")
    assert missing == 404
    assert answers[1] == "TypeError: Failed to fetch"
