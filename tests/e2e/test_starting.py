"""What clients see of a server while it starts: 503 over HTTP until it serves, and no gRPC."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.certificates import issue
from tests.e2e.http import Peer, get, peer_of, post
from tests.e2e.starting import is_open, starting
from tests.e2e.wire import Client
from tests.waiting import wait_until

pytestmark = pytest.mark.long

INFER: Final = "/v2/models/m/infer"
BODY: Final = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]})
LIVE_RPC: Final = "/inference.GRPCInferenceService/ServerLive"


def assert_starting(peer: Peer, request: bytes) -> bytes:
    """Send a request, and see that it is to come again; returns the body."""
    answer = peer.ask(request)
    assert answer.status == 503
    assert 1 <= int(answer.fields["retry-after"]) <= 10
    assert b"the server is starting" in answer.body
    return answer.body


@pytest.mark.parametrize(
    "more",
    [pytest.param((), marks=pytest.mark.quick, id="one process"), pytest.param(("--processes=2",), id="two processes")],
)
def test_rest_is_answered_with_503_until_the_server_serves_and_connections_go_on(
    tmp_path: Path, more: Sequence[str]
) -> None:
    asked = [
        get("/v2/health/live"),
        get("/v2/health/ready"),
        post(INFER, BODY),
        post("/v1/embeddings", "{}"),
        post("/rerank", "{}"),
        get("/ping"),
        post("/predictions/m", BODY),
        get("/nothing"),
    ]
    page = "https://app.example"
    with starting(tmp_path, f"--cors-origin={page}", *more) as server, ExitStack() as opened:
        peers = [opened.enter_context(peer_of(server.rest)) for _ in asked]
        bodies = [json.loads(assert_starting(peer, request)) for peer, request in zip(peers, asked, strict=True)]
        assert bodies[2] == {"error": "the server is starting"}
        assert bodies[3]["error"]["type"] == "server_error"
        assert bodies[4]["error_type"] == "Unhealthy"
        assert bodies[6]["type"] == "ServiceUnavailableException"
        manager = opened.enter_context(peer_of(server.management))
        assert json.loads(assert_starting(manager, get("/models")))["code"] == 503
        with peer_of(server.rest) as long:
            assert_starting(long, post(INFER, b"x" * 100_000))
            assert long.ended()  # nobody reads so much in vain
        browser = opened.enter_context(peer_of(server.rest))
        preflight = get("/v2", f"origin: {page}", "access-control-request-method: GET").replace(b"GET", b"OPTIONS", 1)
        assert browser.ask(preflight).status == 204
        assert browser.ask(get("/v2", f"origin: {page}")).fields["access-control-allow-origin"] == page
        half = opened.enter_context(peer_of(server.rest))
        half.sock.sendall(post(INFER, BODY)[:-10])
        assert not is_open(server.grpc)

        served = server.let_it_load()
        # Of several processes, each hears a moment later that all of them are ready.
        wait_until(lambda: peers[1].ask(asked[1]).status == 200)
        statuses = [peer.ask(request).status for peer, request in zip(peers, asked, strict=True)]
        assert 503 not in statuses
        assert statuses[:3] == [200] * 3
        assert browser.ask(get("/v2", f"origin: {page}")).fields["access-control-allow-origin"] == page
        assert manager.ask(get("/models")).document["models"][0]["modelName"] == "m"
        assert half.ask(post(INFER, BODY)[-10:]).status == 503  # it was let in by the start
        assert half.ask(post(INFER, BODY)).document["outputs"][0]["data"] == [2, 4, 6, 8]
        assert peers[0].ask(post(INFER, BODY + " " * 100_000)).status == 200  # so large a body is read now
        assert is_open(server.grpc)
        assert served.stop() == 0


@pytest.mark.parametrize("more", [(), ("--processes=2",)], ids=["one process", "two processes"])
def test_nothing_listens_beside_others_that_may_serve_on_the_ports(tmp_path: Path, more: Sequence[str]) -> None:
    with starting(tmp_path, "--reuse-port=true", *more, early=False) as server:
        assert not any(map(is_open, (server.grpc, server.rest, server.management)))
        served = server.let_it_load()
        with peer_of(server.rest) as peer:
            assert peer.ask(get("/v2/health/live")).status == 200
        assert served.stop() == 0


def test_a_process_that_is_started_again_answers_nothing_before_it_serves(tmp_path: Path) -> None:
    with starting(tmp_path, "--processes=2", "--processing-cores=2") as server:
        served = server.let_it_load()
        before = children(server.process.pid)
        (tmp_path / "models").rename(tmp_path / "away")
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: any("worker-0" in threads(pid) for pid in {*children(server.process.pid)} - {*before}))
        for _ in range(40):  # half of which it would get
            with peer_of(server.rest) as peer:
                assert peer.ask(get("/v2/health/live")).status == 200
        (tmp_path / "away").rename(tmp_path / "models")
        assert served.stop() == 0


def children(pid: int) -> list[int]:
    """The processes that a server has started."""
    return [int(one) for path in Path(f"/proc/{pid}/task").glob("*/children") for one in path.read_text().split()]


def threads(pid: int) -> set[str]:
    try:
        return {path.read_text().rstrip() for path in Path(f"/proc/{pid}/task").glob("*/comm")}
    except FileNotFoundError:  # one has ended meanwhile
        return set()


@pytest.mark.parametrize("tls", [True, False], ids=["TLS", "in clear"])
def test_connections_of_http_2_are_answered_and_go_on(tmp_path: Path, tls: bool) -> None:
    files = issue(tmp_path)
    flags = files.server_flags() if tls else ()
    verify = ssl.create_default_context(cafile=str(files.ca))
    with (
        starting(tmp_path / "server", *flags) as server,
        httpx.Client(http1=False, http2=True, verify=verify, timeout=120) as client,
        connected(server.rest, verify if tls else None) as called,
        connected(server.rest, verify if tls else None) as silent,  # it has not said what it speaks
    ):
        rest, manager = (f"http{'s' if tls else ''}://localhost:{port}" for port in (server.rest, server.management))
        for url, content in ((rest + INFER, BODY), (rest + INFER, "x" * 100_000), (manager + "/models", "")):
            answer = client.post(url, content=content)
            assert (answer.status_code, answer.http_version) == (503, "HTTP/2")
            assert "the server is starting" in answer.text
            assert int(answer.headers["retry-after"]) >= 1
        caller = Client(called)
        assert caller.call(LIVE_RPC, b"").status == ("14", "the server is starting")

        served = server.let_it_load()
        assert client.post(rest + INFER, content=BODY).json()["outputs"][0]["data"] == [2, 4, 6, 8]
        assert client.get(manager + "/models").status_code == 200
        for one in (caller, Client(silent)):
            assert one.call(LIVE_RPC, b"").status == ("0", "")
        assert served.stop() == 0


@contextmanager
def connected(port: int, context: ssl.SSLContext | None) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), 120) as plain:
        if context is None:
            yield plain
            return
        context.set_alpn_protocols(["h2"])
        with context.wrap_socket(plain, server_hostname="localhost") as sock:
            yield sock


def test_a_start_that_is_stopped_answers_what_has_come_and_ends_well(tmp_path: Path) -> None:
    with starting(tmp_path) as server, ExitStack() as opened:
        idle, half, silent = (opened.enter_context(peer_of(server.rest)) for _ in range(3))
        assert_starting(idle, get("/v2/health/live"))
        half.sock.sendall(b"POST / HT")
        assert server.stop() == 0
        for peer in (idle, half, silent):
            assert is_over(peer)


def is_over(peer: Peer) -> bool:
    try:
        while peer.sock.recv(65_536):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.quick
def test_a_start_that_fails_ends_with_2_whoever_is_connected(tmp_path: Path) -> None:
    with starting(tmp_path, "--load-models=nothing") as server, peer_of(server.rest) as peer:
        assert_starting(peer, get("/v2/health/live"))
        (tmp_path / "models").mkdir()
        assert server.process.wait(120) == 2
        assert is_over(peer)


def test_floods_during_the_start_are_bounded_and_cost_no_neighbour(tmp_path: Path) -> None:
    with starting(tmp_path, "--limit", "connections=4", "--processing-cores=1") as server, ExitStack() as opened:
        reader, flood, unread = (opened.enter_context(peer_of(server.rest)) for _ in range(3))
        assert_starting(reader, get("/v2/health/live"))
        flood.sock.sendall(get("/v2/health/live") * 2_000)
        unread.sock.settimeout(0.3)
        with suppress(TimeoutError):  # who does not read is not read any more
            for _ in range(10_000):
                unread.sock.sendall(get("/v2/health/live") * 1_000)
            pytest.fail("the server reads without end from a peer that reads no answers")
        fourth = opened.enter_context(peer_of(server.rest))
        assert_starting(fourth, get("/v2/health/live"))
        with peer_of(server.rest) as fifth:
            assert fifth.ask(get("/v2/health/live")).document == {"error": "too many connections"}
        assert_starting(reader, get("/v2/health/live"))
        for _ in range(2_000):
            assert flood.read().status == 503
        served = server.let_it_load()
        assert reader.ask(get("/v2/health/live")).status == 200
        assert flood.ask(get("/v2/health/live")).status == 200
        unread.sock.close()
        assert served.stop() == 0
