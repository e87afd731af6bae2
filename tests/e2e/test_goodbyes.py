"""Connections that end: what their clients have sent is answered, and no request is lost on the way."""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import json
import random
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import pytest
import requests

from tests.e2e.process import ServerProcess, running
from tests.e2e.support import INFER, Tensor, channel_to, outputs_of, pb, request
from tests.ports import free_port
from tests.waiting import wait_until

PATH: Final = "/v2/models/versions/infer"
BODY: Final = json.dumps(
    {"inputs": [{"name": "INPUT", "shape": [1, 4], "datatype": "INT32", "data": [1, 2, 3, 4]}]}
).encode()
ON: Final = ("--load-models", "versions", "--http-addr", "127.0.0.1:0")
SERVED: Final = (
    *ON,
    "--metrics-addr",
    "127.0.0.1:0",
    "--torchserve-api",
    "--torchserve-management-addr",
    "127.0.0.1:0",
)

#: What makes a request after the other until it is told to stop. It raises what the client does where one is lost.
Client = Callable[[str, threading.Event], None]


def with_http_client(address: str, stop: threading.Event) -> None:
    with closing(http.client.HTTPConnection(address, timeout=120)) as client:
        while not stop.is_set():
            client.request("POST", PATH, BODY)
            answer = client.getresponse()
            answer.read()
            assert answer.status == 200


def with_requests(address: str, stop: threading.Event) -> None:
    with requests.Session() as session:
        while not stop.is_set():
            assert session.post(f"http://{address}{PATH}", BODY, timeout=120).status_code == 200


def with_httpx(address: str, stop: threading.Event) -> None:
    import httpx

    with httpx.Client(timeout=120) as client:
        while not stop.is_set():
            assert client.post(f"http://{address}{PATH}", content=BODY).status_code == 200


def with_aiohttp(address: str, stop: threading.Event) -> None:
    import aiohttp

    async def run() -> None:
        async with aiohttp.ClientSession() as session:
            while not stop.is_set():
                async with session.post(f"http://{address}{PATH}", data=BODY) as answer:
                    assert answer.status == 200
                    await answer.read()

    asyncio.run(run())


def with_http2(address: str, stop: threading.Event) -> None:
    import httpx

    with httpx.Client(timeout=120, http1=False, http2=True) as client:
        while not stop.is_set():
            answer = client.post(f"http://{address}{PATH}", content=BODY)
            assert (answer.status_code, answer.http_version) == (200, "HTTP/2")


def those_installed(clients: Mapping[str, Sequence[Client]]) -> Sequence[Client]:
    return [one for package, ones in clients.items() if importlib.util.find_spec(package) for one in ones]


CLIENTS: Final = (with_http_client, with_requests, *those_installed({"httpx": [with_http2]}))
#: Those that make tests long, too.
ALL_CLIENTS: Final = (*CLIENTS, *those_installed({"httpx": [with_httpx], "aiohttp": [with_aiohttp]}))


def over_new_channels(address: str, stop: threading.Event) -> None:
    """Each call over a connection of its own."""
    message = request("versions", Tensor.of("INPUT", "INT32", [[1, 2, 3, 4]])).SerializeToString()
    while not stop.is_set():
        with channel_to(address) as channel:
            answer = pb.ModelInferResponse.FromString(channel.unary_unary(INFER)(message, timeout=120))
        assert outputs_of(answer)["OUTPUT"].shape == (1, 4)


def limit_hits(server: ServerProcess, limit: str) -> int:
    """How often a limit was met."""
    text = requests.get(f"http://127.0.0.1:{server.http_port}/metrics", timeout=120).text
    match = re.search(rf'^toutates_limit_hits_total{{limit="{limit}"}} (\d+)', text, re.MULTILINE)
    return 0 if match is None else int(match[1])


class Paced(threading.Event):
    """Asked whether to stop, it lets a client wait between its requests, for so long or half as long."""

    def __init__(self, stop: threading.Event, pause_s: float) -> None:
        super().__init__()
        self._stop, self._pause_s = stop, pause_s
        self._random = random.Random(0)
        self.asked = 0

    def is_set(self) -> bool:
        self.asked += 1
        return self._stop.wait(self._random.uniform(self._pause_s / 2, self._pause_s))


class Clients:
    """Clients that make requests until the block ends; ``check`` raises what one of them has raised."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(32)
        self._running: list[tuple[Paced, Future[None]]] = []

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()

    def start(self, client: Client, address: str, pause_s: float) -> None:
        paced = Paced(self._stop, pause_s)
        self._running.append((paced, self._pool.submit(client, address, paced)))

    @property
    def lost(self) -> bool:
        """Whether one of them has ended."""
        return any(future.done() for _, future in self._running)

    def wait_answered(self, count: int) -> None:
        """Wait until each has had so many more answers."""
        awaited = [(paced, paced.asked + count) for paced, _ in self._running]
        wait_until(lambda: self.lost or all(paced.asked > asked for paced, asked in awaited))
        self.check()

    def check(self) -> None:
        """Raise what one of them has raised."""
        for _, future in self._running:
            if future.done():
                future.result()


def lose_nothing_on_old_and_idle_connections(
    repository: Path,
    folder: Path,
    limits: Mapping[str, float],
    clients: Sequence[Client],
    pauses_s: Sequence[float],
    hits: int,
) -> None:
    flags = [word for name, value in limits.items() for word in ("--limit", f"{name}={value}")]
    with running(repository, folder, [*SERVED, *flags]) as server:
        with Clients() as all_clients:
            for client in clients:
                for pause_s in pauses_s:
                    all_clients.start(client, f"127.0.0.1:{server.rest_port}", pause_s)
            wait_until(lambda: all_clients.lost or all(limit_hits(server, name) >= hits for name in limits), 0.1)
            all_clients.wait_answered(1)
        all_clients.check()  # those that were under way when the block ended, too


def test_connections_that_are_old_or_idle_end_without_a_lost_request(repository: Path, tmp_path: Path) -> None:
    limits = {"connection_age": 0.2, "connection_idle": 0.05}
    lose_nothing_on_old_and_idle_connections(repository, tmp_path, limits, CLIENTS, (0.001, 0.1), 8)


@pytest.mark.long
@pytest.mark.parametrize("limits", [{"connection_age": 1.0}, {"connection_idle": 0.3}], ids=["age", "idle"])
def test_no_client_loses_a_request_on_old_and_idle_connections(
    repository: Path, tmp_path: Path, limits: Mapping[str, float]
) -> None:
    pauses_s = (0.001, 0.01, 0.1, 0.5, 1.5, 4.8)
    lose_nothing_on_old_and_idle_connections(repository, tmp_path, limits, ALL_CLIENTS, pauses_s, 150)


def lose_nothing_where_ports_are_handed_over(
    repository: Path, folder: Path, delay_s: float, clients: Sequence[Client], pauses_s: Sequence[float], times: int
) -> None:
    flags = ["--load-models", "versions", "--reuse-port", "true", "--shutdown-delay", f"{delay_s:g}"]
    flags += ["--http-addr", f"127.0.0.1:{free_port()}"]
    with ExitStack() as stack:

        def start(number: int, port: int) -> ServerProcess:
            (folder / str(number)).mkdir()
            return stack.enter_context(running(repository, folder / str(number), flags, port=port))

        old = start(0, 0)
        all_clients = stack.enter_context(Clients())
        rest, grpc = f"127.0.0.1:{old.rest_port}", old.address
        for number in range(times):
            new = start(number + 1, old.port)
            if not number:
                for client in clients:
                    for pause_s in pauses_s:
                        all_clients.start(client, rest, pause_s)
                for pause_s in (0.002, 0.01):
                    all_clients.start(over_new_channels, grpc, pause_s)
            all_clients.wait_answered(2)
            assert old.stop() == 0
            old = new
        all_clients.wait_answered(2)
        assert old.process.poll() is None


def test_a_server_hands_its_ports_to_another_without_a_lost_request(repository: Path, tmp_path: Path) -> None:
    lose_nothing_where_ports_are_handed_over(repository, tmp_path, 0.6, CLIENTS, (0.01, 0.3), 1)


@pytest.mark.long
def test_no_client_loses_a_request_where_ports_are_handed_over(repository: Path, tmp_path: Path) -> None:
    lose_nothing_where_ports_are_handed_over(repository, tmp_path, 6.0, ALL_CLIENTS, (0.001, 0.1, 1.0, 4.8), 1)


def exchange(peer: socket.socket, answers: Any, head: bytes) -> tuple[bytes, bool]:
    """The fields of the answer to a request, and whether the connection has ended with it."""
    peer.sendall(head)
    fields = b"".join(iter(answers.readline, b"\r\n"))
    length = re.search(rb"content-length: (\d+)", fields)
    assert length is not None, fields
    answers.read(int(length[1]))
    ends = b"connection: close\r\n" in fields
    return fields, ends and answers.read() == b""


@pytest.fixture(scope="module")
def heads() -> Sequence[tuple[str, bytes]]:
    """Of every port that speaks HTTP/1.1: its name, and a request for it."""
    infer = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(BODY)}\r\n\r\n".encode() + BODY
    probe = b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
    return (
        ("rest_port", infer),
        ("port", infer),
        ("rest_port", probe),
        ("management_port", b"GET /models HTTP/1.1\r\nhost: localhost\r\n\r\n"),
        ("http_port", b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"),
    )


@pytest.fixture
def stopping(repository: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that goes on for an hour once it has been told to stop."""
    with running(repository, tmp_path, [*SERVED, "--shutdown-delay", "3600"]) as server:
        yield server
        server.process.terminate()
        assert server.process.wait(120) in (0, 1)


def test_before_a_stop_all_answers_say_close_on_every_port(
    stopping: ServerProcess, heads: Sequence[tuple[str, bytes]]
) -> None:
    with ExitStack() as stack:
        peers = []
        for port, head in heads:
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", getattr(stopping, port)), timeout=120))
            answers = stack.enter_context(peer.makefile("rb"))
            peers.append((peer, answers, head))
            fields, ended = exchange(peer, answers, head)
            assert not ended
            assert re.search(rb"keep-alive: timeout=(?:325|75)\r\n", fields), fields
        stopping.process.terminate()
        wait_until(lambda: "SIGTERM: " in stopping.log)
        ready = f"http://127.0.0.1:{stopping.rest_port}/v2/health/ready"
        wait_until(lambda: requests.get(ready, timeout=120).status_code != 200)
        for peer, answers, head in peers:
            fields, ended = exchange(peer, answers, head)
            assert ended, fields
            assert b"keep-alive" not in fields
        for port, head in heads:
            with (
                socket.create_connection(("127.0.0.1", getattr(stopping, port)), timeout=120) as new,
                new.makefile("rb") as answers,
            ):
                assert exchange(new, answers, head)[1], port
