"""The HTTP side over real sockets: what it answers, and what it bears."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from typing import Final

import pytest

from tests.observe.status.support import get, http_side, view_of
from tests.waiting import PATIENCE_S, wait_until
from toutates.access.pages import WebPages
from toutates.h2grpc import Limits
from toutates.models.table import ModelEntry, ModelState, ModelTable, VersionEntry
from toutates.net import Worker
from toutates.observe.debug.profiler import THREAD_NAME as PROFILER
from toutates.observe.http.connections import ConnectionLimits, ConnectionTable, HttpConnection
from toutates.observe.metrics.exposition import Exposition, Format
from toutates.observe.status.status import MAX_VERSIONS

PAGES: Final = ("/", "/status.json", "/health/live", "/health/ready", "/debug/tasks", "/metrics")


class CountingMetrics(Exposition):
    """A text of ``pieces`` pieces, and how often it was made."""

    def __init__(self, pieces: int = 3, piece: bytes = b"up 1\n", pause_s: float = 0.0) -> None:
        self.made = 0
        self._pieces, self._piece, self._pause_s = pieces, piece, pause_s

    async def run(self) -> None:
        pass  # there is nothing to keep fresh

    def render(self, form: Format) -> Iterator[bytes]:
        self.made += 1
        for _ in range(self._pieces):
            time.sleep(self._pause_s)
            yield self._piece


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker of ``view_of`` never runs: a dump waits for it in vain, and need not do so for long."""
    monkeypatch.setattr("toutates.observe.debug.debug_dump.ANSWER_S", 0.3)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with http_side(metrics=CountingMetrics()) as port:
        yield port


def raw(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=120)


def profiling() -> bool:
    """Whether a profile is being taken."""
    return any(thread.name == PROFILER for thread in threading.enumerate())


def all_of(peer: socket.socket) -> bytes:
    """What comes until the end; a reset is one too."""
    data = b""
    with suppress(ConnectionResetError):
        while more := peer.recv(65_536):
            data += more
    return data


# --- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES)
def test_what_there_is_may_be_asked_for_by_get_and_head_alone(port: int, path: str) -> None:
    answer = get(port, path)
    assert answer.status == 200
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert int(answer.headers["content-length"]) == len(answer.body) > 0
    head = get(port, path, "HEAD")
    assert (head.status, head.body) == (200, b"")
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "BREW"):
        refused = get(port, path, method, body="x" * 100)
        assert refused.status == 405
        assert {word.strip() for word in refused.headers["allow"].split(",")} == {"GET", "HEAD"}


@pytest.mark.parametrize("path", ["/nothing", "/metrics/", "//", "/../etc/passwd", "/%00", "/debug", "/status.json/x"])
def test_what_there_is_not_is_not_found(port: int, path: str) -> None:
    answer = get(port, path)
    assert answer.status == 404
    assert "/metrics" in answer.text
    assert answer.headers["content-type"].startswith("text/plain")


def test_metrics_come_in_the_format_that_is_asked_for(port: int) -> None:
    assert get(port, "/metrics").headers["content-type"] == Format.TEXT.value
    answer = get(port, "/metrics", accept="application/openmetrics-text;version=1.0.0")
    assert answer.headers["content-type"] == Format.OPENMETRICS.value
    assert answer.text == 3 * "up 1\n"


def test_probes_hear_how_the_server_is() -> None:
    live, reason = [True], ["no model is served"]
    view = view_of(is_live=lambda: live[0], unready_reason=lambda: reason[0])
    with http_side(view) as port:
        assert [get(port, f"/health/{word}").status for word in ("live", "ready")] == [200, 503]
        assert get(port, "/health/ready").text == "not ready: no model is served\n"
        reason[0] = "/etc/models/m cannot be read"
        assert get(port, "/health/ready").text == "not ready: m cannot be read\n"
        reason[0] = ""
        assert [get(port, f"/health/{word}").text for word in ("live", "ready")] == ["live\n", "ready\n"]
        live[0], reason[0] = False, "the server is shutting down"
        assert [get(port, f"/health/{word}").status for word in ("live", "ready")] == [503, 503]


def test_the_status_tells_of_models_and_of_warnings() -> None:
    versions = {1: VersionEntry(1, ModelState.UNAVAILABLE, "<b>no</b>"), 2: VersionEntry(2, ModelState.LOADING)}
    with http_side(view_of(ModelTable({"m\"<'": ModelEntry("m\"<'", versions)}))) as port:
        status = json.loads(get(port, "/status.json").text)
    assert [(one["model"], one["version"], one["state"], one["reason"]) for one in status["versions"]] == [
        ("m\"<'", "1", "UNAVAILABLE", "<b>no</b>"),
        ("m\"<'", "2", "LOADING", ""),
    ]
    assert status["server"]["name"] == "triton"
    assert status["now"]["requests_per_s"] == 0


def test_the_status_of_many_models_is_bounded_and_has_those_that_fail() -> None:
    models = {f"m{n:04}": ModelEntry(f"m{n:04}", {1: VersionEntry(1, ModelState.READY)}) for n in range(1_000)}
    models["zz"] = ModelEntry("zz", problem="nothing here can be read")
    with http_side(view_of(ModelTable(models))) as port:
        status = json.loads(get(port, "/status.json").text)
    assert len(status["versions"]) == MAX_VERSIONS
    assert status["versions_left_out"] == 1_001 - MAX_VERSIONS
    assert status["versions"][0]["reason"] == "nothing here can be read"


def test_a_page_gets_all_history_or_the_last_of_it(port: int) -> None:
    everything, recent = (json.loads(get(port, f"/status.json{query}").text) for query in ("", "?history=recent"))
    assert len(everything["history"]["p99"]) == everything["history_size"]
    assert 1 < len(recent["history"]["p99"]) < 20
    answer = get(port, "/status.json?history=none")
    assert (answer.status, "history" in answer.text) == (400, True)


# --- /debug ----------------------------------------------------------------------------------------------------------

#: What makes a request one that is not from a user of this machine, whatever address it comes from.
FOREIGN: Final[list[dict[str, str]]] = [
    {"host": "evil.example"},
    {"host": "evil.example:9090"},
    {"host": "127.0.0.1.evil.example"},
    {"host": "localhost.evil.example"},
    {"host": "10.0.0.1"},
    {"host": "[::2]:80"},
    {"host": "[::1"},
    {"host": ""},
    {"x_forwarded_for": "127.0.0.1"},
    {"forwarded": "for=10.0.0.1"},
    {"via": "1.1 proxy"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_debugging_is_for_users_of_this_machine(port: int, headers: dict[str, str]) -> None:
    for path in ("/debug/tasks", "/debug/profile?seconds=0.1"):
        answer = get(port, path, "GET", body=None, **headers)
        assert answer.status == 403
        assert "--debug-endpoints" in answer.text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9090", "127.0.0.1:1", "127.1.2.3", "[::1]", "[::1]:9090"])
def test_this_machine_has_several_names(port: int, host: str) -> None:
    assert get(port, "/debug/tasks", host=host).status == 200


def test_a_flag_opens_debugging_but_not_to_pages_of_others() -> None:
    with http_side(debug_for_all=True, pages=WebPages(hosts=["server.example"])) as port:
        assert get(port, "/debug/tasks", host="server.example", x_forwarded_for="10.0.0.1").status == 200
        for site in ("cross-site", "same-site"):
            assert get(port, "/debug/tasks", sec_fetch_site=site).status == 403
        assert get(port, "/debug/tasks", sec_fetch_site="same-origin").status == 200


def test_other_origins_may_not_read_anything(port: int) -> None:
    for path in PAGES:
        answer = get(port, path, origin="http://evil.example")
        assert answer.headers["access-control-allow-origin"] is None
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("seconds=0", "seconds"),
        ("seconds=-1", "seconds"),
        ("seconds=61", "seconds"),
        ("seconds=nan", "seconds"),
        ("seconds=", "seconds"),
        ("seconds=1;rm", "seconds"),
        ("hz=100000", "hz"),
        ("weight=heavy", "weight"),
        ("format=pdf", "format"),
    ],
)
def test_a_profile_that_cannot_be_says_why(port: int, query: str, word: str) -> None:
    answer = get(port, f"/debug/profile?{query}")
    assert answer.status == 400
    assert answer.text.startswith(word + ": ")


def test_a_profile_shows_what_runs(port: int) -> None:
    stop = threading.Event()

    def spin_for_the_profile() -> None:
        while not stop.is_set():
            sum(range(1_000))

    thread = threading.Thread(target=spin_for_the_profile, name="busy <thread>")
    thread.start()
    try:
        answer = get(port, "/debug/profile?seconds=1.5&format=collapsed")
        page = get(port, "/debug/profile?seconds=0.5&weight=wall&hz=50")
    finally:
        stop.set()
        thread.join()
    lines = [line for line in answer.text.splitlines() if line.startswith("busy <thread>;")]
    assert any("spin_for_the_profile" in line for line in lines)
    total = sum(int(line.rpartition(" ")[2]) for line in lines)
    assert 30_000 < total < 4_000_000  # microseconds of CPU, on a machine that is busy otherwise
    assert page.headers["content-type"].startswith("text/html")
    assert b"busy \\u003cthread>" in page.body


def test_a_profile_is_taken_by_one_at_a_time_and_ends_with_the_client_that_asked_for_it(port: int) -> None:
    with closing(raw(port)) as peer:
        peer.sendall(b"GET /debug/profile?seconds=50 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        wait_until(profiling)
        assert get(port, "/debug/profile?seconds=0.1").status == 409
    wait_until(lambda: get(port, "/debug/profile?seconds=0.1").status != 409)


def test_a_thread_that_does_not_answer_is_shown_by_its_stack() -> None:
    stop = threading.Event()

    def is_stuck_here() -> None:
        stop.wait()

    thread = threading.Thread(target=is_stuck_here, name="worker-7")
    thread.start()
    try:
        with http_side(view_of(workers=[Worker("worker-7", Limits())])) as port:
            text = get(port, "/debug/tasks").text
    finally:
        stop.set()
        thread.join()
    assert "== thread http ==" in text
    _, _, stuck = text.partition("== thread worker-7 ==")
    assert "no answer within 0.3 s" in stuck
    assert "is_stuck_here" in stuck


# --- what it bears ---------------------------------------------------------------------------------------------------


def test_many_scrapes_cost_one_text() -> None:
    metrics = CountingMetrics(pieces=4, pause_s=0.02)
    with http_side(metrics=metrics) as port:
        began = time.monotonic()
        for _ in range(50):
            assert get(port, "/metrics").status == 200
        took = time.monotonic() - began
    # A text takes 80 ms and more to make, and is kept for 50 times that.
    assert metrics.made <= 1 + took / 4


def test_a_scraper_that_never_reads_is_cut_off_and_holds_up_nobody() -> None:
    deaf: list[HttpConnection] = []
    cut_off = threading.Event()

    class Seen(ConnectionTable):
        def add(self, connection: HttpConnection) -> None:
            if not deaf:
                deaf.append(connection)  # the first one
            super().add(connection)

        def remove(self, connection: HttpConnection) -> None:
            super().remove(connection)
            if connection is deaf[0]:
                cut_off.set()

    table = Seen(ConnectionLimits(send_s=1.0))
    with http_side(table=table, metrics=CountingMetrics(pieces=300, piece=b"x" * 100_000)) as port:
        with closing(raw(port)) as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            peer.sendall(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n")
            ends = time.monotonic() + PATIENCE_S
            while not cut_off.wait(0.1):
                assert get(port, "/health/live").status == 200
                assert time.monotonic() < ends
            assert len(all_of(peer)) < 20_000_000
        assert len(get(port, "/metrics").body) == 30_000_000


def test_the_end_waits_for_nobody_who_does_not_read() -> None:
    table = ConnectionTable(ConnectionLimits(send_s=3_600.0))  # which nobody waits for
    peers = []
    with http_side(table=table, metrics=CountingMetrics(pieces=300, piece=b"x" * 100_000)) as port:
        for request in (b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n", b"GET / HT", b""):
            peers.append(raw(port))
            peers[-1].sendall(request)
        peers[0].recv(1)
    for peer in peers:
        peer.close()


def test_more_connections_than_there_may_be_take_the_place_of_the_oldest() -> None:
    peers = []
    with http_side() as port:
        try:
            peers += [raw(port) for _ in range(3 * ConnectionLimits().most)]
            assert get(port, "/health/live").status == 200
            assert all_of(peers[0]) == b""
            peers[-1].sendall(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            assert all_of(peers[-1]).endswith(b"live\n")
        finally:
            for peer in peers:
                peer.close()


def test_newcomers_that_ask_for_nothing_cut_off_nobody_who_has_asked() -> None:
    limits = ConnectionLimits(most=20)
    asks = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with http_side(table=ConnectionTable(limits)) as port, ExitStack() as stack:

        def opened(octets: bytes) -> socket.socket:
            peer = stack.enter_context(closing(raw(port)))
            peer.sendall(octets)
            return peer

        def answered(peer: socket.socket) -> bool:
            peer.sendall(asks)
            return b"live\n" in peer.recv(65_536)

        scrapers = [opened(b"") for _ in range(limits.most)]
        assert all(answered(scraper) for scraper in scrapers)
        # Some begin a request, and no newcomer ends it.
        newcomers = [opened(begun) for begun in (b"", b"GET / HTTP/1.1\r\n") for _ in range(100)]
        assert all_of(newcomers[0]) == b""
        assert all(answered(scraper) for scraper in scrapers)
        # A client that comes then is answered, and takes the place of who asked longest ago.
        assert answered(opened(b""))
        assert all_of(scrapers[0]) == b""
        assert all(answered(scraper) for scraper in scrapers[1:])


def test_connections_that_are_closed_are_forgotten() -> None:
    table = ConnectionTable(ConnectionLimits(last_answer_s=0.1))
    with http_side(table=table) as port:
        for _ in range(30):
            assert get(port, "/health/live").status == 200
        wait_until(lambda: not len(table))


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 40_000 + b"\r\n\r\n", b" 431 "),
        (b"GET /" + b"x" * 5_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n", b" 414 "),
        (b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n", b" 431 "),
        (b"GET / HTTP/1.1\r\n\r\n", b" 400 "),
        (b"nonsense\r\n\r\n", b" 400 "),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b""),
        (b"GET /\xff\xfe HTTP/1.1\r\nhost: localhost\r\n\r\n", b""),
        (b"GET /%ff%fe HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", b" 404 "),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n", b""),
    ],
    ids=["header", "path", "longer path", "no host", "nonsense", "TLS", "no ASCII", "no UTF-8", "websocket"],
)
def test_what_is_no_request_ends_its_connection_and_no_other(port: int, request_: bytes, status: bytes) -> None:
    with closing(raw(port)) as peer, closing(raw(port)) as other:
        with suppress(OSError):  # it may have been closed already
            peer.sendall(request_)
            peer.shutdown(socket.SHUT_WR)
        assert status in all_of(peer)[:40]
        other.sendall(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        assert all_of(other).endswith(b"live\n")


def test_a_body_that_nobody_wants_is_not_kept(port: int) -> None:
    with closing(raw(port)) as peer:
        peer.sendall(b"POST /metrics HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n" + 100_000 * b"x")
        assert b" 405 " in all_of(peer)[:40]
    with closing(raw(port)) as peer:
        peer.sendall(b"POST /metrics HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000\r\n\r\n")
        with pytest.raises(ConnectionError):
            peer.sendall(b"x" * 100_000_000)
    assert get(port, "/health/live").status == 200


def test_a_request_that_does_not_come_to_its_end_is_answered_and_ended() -> None:
    with http_side(table=ConnectionTable(ConnectionLimits(keep_alive_s=0.5))) as port, closing(raw(port)) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\nhost: local")
        assert all_of(peer).startswith(b"HTTP/1.1 408 ")


def test_a_connection_that_asks_for_nothing_ends() -> None:
    table = ConnectionTable(ConnectionLimits(keep_alive_s=0.3, silence_s=0.5, sweep_s=0.1))
    with http_side(table=table) as port, closing(raw(port)) as silent, closing(raw(port)) as peer:
        peer.sendall(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert all_of(peer).endswith(b"live\n")
        assert all_of(silent) == b""


def test_a_connection_that_is_to_end_says_so_in_its_last_answer() -> None:
    table = ConnectionTable(ConnectionLimits(keep_alive_s=0.0, sweep_s=0.05))
    with http_side(table=table) as port, closing(raw(port)) as peer, peer.makefile("rb") as answers:
        fields = b""
        while b"connection: close\r\n" not in fields:
            assert b"connection: " not in fields
            time.sleep(0.01)
            peer.sendall(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
            fields = b"".join(iter(answers.readline, b"\r\n"))
            assert fields.startswith(b"HTTP/1.1 200 ")
            assert (b"keep-alive: timeout=75\r\n" in fields) is (b"connection: close\r\n" not in fields)
            assert answers.read(5) == b"live\n"
        assert answers.read() == b""


#: However slow the machine is.
PATIENT: Final = ConnectionLimits(last_answer_s=60.0)


def test_requests_that_come_at_once_are_answered_in_their_order() -> None:
    paths = ("/health/live", "/nothing", "/metrics", "/health/ready", "/status.json?history=x")
    with http_side(table=ConnectionTable(PATIENT), metrics=CountingMetrics()) as port, closing(raw(port)) as peer:
        peer.sendall(b"".join(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode() for path in paths))
        peer.shutdown(socket.SHUT_WR)
        answers = all_of(peer)
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [b"200", b"404", b"200", b"200", b"400"]
    assert answers.count(b"\r\ndate: ") == 5
    assert answers.index(b"\r\n\r\nlive") < answers.index(b"up 1") < answers.index(b"\r\n\r\nready")


def test_what_an_endpoint_raises_is_logged_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(CountingMetrics):
        def render(self, form: Format) -> Iterator[bytes]:
            raise ZeroDivisionError("no metrics today")

    with http_side(table=ConnectionTable(PATIENT), metrics=Broken()) as port, closing(raw(port)) as peer:
        for _ in range(3):
            assert get(port, "/metrics").status == 500
        peer.sendall(
            b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\nGET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
        )
        peer.shutdown(socket.SHUT_WR)
        answers = all_of(peer)
    assert b" 500 " in answers
    assert answers.endswith(b"live\n")
    assert caplog.text.count("ZeroDivisionError: no metrics today") == 1
