"""A failure where one connection is dealt with ends that connection: the worker and an honest neighbour go on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.h2grpc.frames import (
    ACK,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    INTERNAL_ERROR,
    PING,
    SETTINGS,
    STREAM_BLOCK,
    block,
    data,
    frame,
    headers,
    message,
    request,
    unary,
)
from tests.net.running import RawClient, Running, running
from tests.waiting import wait_until
from toutates.h2grpc import Call, Limits, Method, ServerConnection
from toutates.h2grpc.frame_loop import FrameLoop
from toutates.h2grpc.responder import Responder
from toutates.net.housekeeping import Housekeeper
from toutates.net.transport import Transport
from toutates.system.logs.limit import LineLimit

ERRORS: dict[str, type[Exception]] = {"bug": RuntimeError, "memory": MemoryError}
#: Visits are frequent, and silent peers are asked whether they are there.
LIMITS = Limits(stall_timeout_s=0.4, keepalive_time_s=0.4)
HOLD_BLOCK = block(request("/test.Echo/Hold", ("grpc-timeout", "50m")))

RAISE = headers(1, block(request("/test.Echo/Raise"))) + data(1, message(b""), END_STREAM)


@dataclass(frozen=True)
class Fault:
    """Something that raises, and what a client does to have it called."""

    owner: type
    name: str
    provoke: bytes = unary(1)
    #: whether the peer is told, or finds the connection closed
    is_told: bool = True


FAULTS = {
    "reading": Fault(ServerConnection, "receive_data"),
    "frames": Fault(FrameLoop, "walk"),
    "answering": Fault(Responder, "fail", RAISE),
    "flushing": Fault(Transport, "flush"),
    "taking output": Fault(ServerConnection, "take_output", is_told=False),
    "sending": Fault(Transport, "send_unsent", data(0), is_told=False),
    "deadlines": Fault(ServerConnection, "expire", headers(1, HOLD_BLOCK) + data(1, message(b""), END_STREAM)),
    "visits": Fault(ServerConnection, "awaits_request", b""),
    "pings": Fault(ServerConnection, "ping", b""),
    "closing gently": Fault(Transport, "close_gently", data(0), is_told=False),
    "the end of calls": Fault(ServerConnection, "abandon_calls", data(0), is_told=False),
}


def break_down(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, is_victim: Callable[[Any], bool], error: type[Exception]
) -> None:
    """Have a method or property raise, of some objects."""
    original: Any = owner.__dict__.get(name) or getattr(owner, name)

    def broken(self: Any, *arguments: Any) -> Any:
        if is_victim(self):
            raise error("a bug of ours")
        return original.__get__(self)(*arguments) if callable(original) else original.__get__(self)

    monkeypatch.setattr(owner, name, property(broken) if isinstance(original, property) else broken)


def only(server: Running) -> Transport:
    """The transport of the one connection there is."""
    server.until(lambda: [t.connection.established for t in server.worker.transports.open.values()] == [True])
    (transport,) = server.call(lambda: list(server.worker.transports.open.values()))
    return transport


def connection_of(transport: Transport) -> ServerConnection:
    connection = transport.connection
    assert isinstance(connection, ServerConnection)
    return connection


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("place", FAULTS)
def test_failure_ends_its_connection_and_no_other(
    place: str, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fault, error = FAULTS[place], ERRORS[kind]
    with running(LIMITS) as server, RawClient(server) as victim:
        transport = only(server)
        with server.client() as neighbour:
            assert neighbour.unary(b"before").messages == [b"before"]
            connection = connection_of(transport)
            parts = (transport, connection, connection.responder, connection.frame_loop)
            break_down(monkeypatch, fault.owner, fault.name, lambda it: it in parts, error)
            victim.send(fault.provoke)
            goaways = []
            for one in victim:
                if one.type == GOAWAY:
                    goaways.append(one)
                elif one.type == PING and fault.name == "ping":  # sent before the fault was there: only its answer
                    victim.send(frame(PING, ACK, 0, one.payload))  # lets another one come in time
            if fault.is_told:
                assert goaways[-1].code == (ENHANCE_YOUR_CALM if kind == "memory" else INTERNAL_ERROR)
            server.until(lambda: transport not in server.worker.transports.open.values())
            monkeypatch.undo()
            assert neighbour.unary(b"after").messages == [b"after"]
            with server.client() as another:
                assert another.unary(b"new").messages == [b"new"]
        if fault.is_told and kind == "memory":
            assert "out of memory: connection from 127.0.0.1" in caplog.text
            assert server.worker.limit_hits["memory"] == 1
        elif fault.is_told:
            assert "connection failed" in caplog.text
            assert "a bug of ours" in caplog.text


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("what", [ServerConnection, Transport])
def test_connection_that_cannot_be_taken_is_closed(
    what: type, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running() as server, server.client() as neighbour:
        neighbour.unary(b"")
        break_down(monkeypatch, what, "__init__", lambda it: True, ERRORS[kind])
        with RawClient(server) as refused, pytest.raises((ConnectionError, AssertionError)):
            refused.until(SETTINGS)
        monkeypatch.undo()
        assert neighbour.unary(b"x").messages == [b"x"]
        assert server.call(lambda: server.worker.connections) == 1
        assert "connection that was to be taken failed" in caplog.text


@pytest.mark.parametrize("kind", ERRORS)
def test_connection_that_fails_while_it_is_registered_is_closed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as server, server.client() as neighbour:
        neighbour.unary(b"")
        break_down(monkeypatch, Housekeeper, "add", lambda it: True, ERRORS[kind])
        with RawClient(server) as refused:
            assert [one.type for one in refused][-1] == GOAWAY
        monkeypatch.undo()
        assert neighbour.unary(b"x").messages == [b"x"]


@pytest.mark.parametrize("kind", ERRORS)
def test_drain_ends_although_saying_goodbye_fails(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as server, RawClient(server) as victim:
        transport = only(server)
        with RawClient(server) as neighbour:
            server.until(lambda: server.worker.connections == 2)
            for name in ("begin_shutdown", "finish_shutdown"):
                break_down(monkeypatch, ServerConnection, name, lambda it: it is transport.connection, ERRORS[kind])
            server.drain(5.0)
            assert [one.code for one in victim if one.type == GOAWAY] == [
                ENHANCE_YOUR_CALM if kind == "memory" else INTERNAL_ERROR
            ]
            neighbour.send(frame(PING, ACK, 0, neighbour.until(PING).payload))
            assert [one.code for one in neighbour if one.type == GOAWAY] == [0]
        server.join()


@pytest.mark.parametrize("kind", ERRORS)
def test_failing_log_of_a_failure_costs_the_line(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as server, RawClient(server) as victim:
        transport = only(server)
        with server.client() as neighbour:
            break_down(monkeypatch, LineLimit, "count", lambda it: True, ERRORS[kind])
            break_down(
                monkeypatch, ServerConnection, "receive_data", lambda it: it is transport.connection, ERRORS[kind]
            )
            victim.send(unary(1))
            assert [one.type for one in victim][-1] == GOAWAY
            assert neighbour.unary(b"x", "/test.Echo/Raise").status == 13
            assert neighbour.unary(b"x").messages == [b"x"]
            assert server.worker.log_lines_dropped >= 2


@pytest.mark.parametrize("kind", ERRORS)
def test_streaming_call_that_cannot_be_ended_ends_its_connection(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as server, RawClient(server) as victim:
        transport = only(server)
        with server.client() as neighbour:
            responder = connection_of(transport).responder
            for name in ("finish", "fail"):
                break_down(monkeypatch, Responder, name, lambda it: it is responder, ERRORS[kind])
            victim.send(headers(1, STREAM_BLOCK) + data(1, b"", END_STREAM))
            assert [one.type for one in victim][-1] == GOAWAY
            assert neighbour.unary(b"x").messages == [b"x"]
            assert neighbour.unary(b"x", "/test.Echo/Stream").messages == [b"x"]


def test_failures_of_rounds_are_survived_and_what_is_due_is_done(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running() as server, server.client() as client:
        client.unary(b"")
        left = [MemoryError(), RuntimeError("in the round")]
        original = server.worker.deadlines.tick

        def fail(now_ns: int) -> None:
            if left:
                raise left.pop()
            original(now_ns)

        monkeypatch.setattr(server.worker.deadlines, "tick", fail)
        assert client.unary(b"", "/test.Echo/Hold", ("grpc-timeout", "30m")).status == 4
        assert not left
        assert "round failed" in caplog.text


def test_worker_that_can_do_nothing_any_more_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Running(Limits(), 10, None, "")

    def fail() -> None:
        raise RuntimeError("no more rounds")

    def break_rounds() -> None:
        monkeypatch.setattr(server.worker, "work", fail)
        server.worker.schedule.plan(time.monotonic_ns() + 50_000_000)

    server.call(break_rounds)
    with pytest.raises(BaseExceptionGroup):
        server.join()


def test_failing_housekeeping_is_tried_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with running(LIMITS) as server, RawClient(server) as client:
        only(server)
        tried, again = threading.Event(), threading.Event()
        visit = server.worker.housekeeper.visit

        def fail(now_ns: int) -> Any:
            if tried.is_set():
                again.set()
                return visit(now_ns)
            tried.set()
            raise MemoryError

        monkeypatch.setattr(server.worker.housekeeper, "visit", fail)
        client.until(PING)
        wait_until(again.is_set)
        assert "housekeeping failed" in caplog.text


def test_handler_without_memory_refuses_its_call_alone() -> None:
    def handle(call: Call) -> None:
        raise MemoryError

    with running(None, Method("/test.Echo/Large", unary=handle)) as server, server.client() as client:
        assert client.unary(b"", "/test.Echo/Large").status == 8
        assert client.unary(b"x").messages == [b"x"]


@pytest.fixture(autouse=True)
def _info_is_logged(caplog: pytest.LogCaptureFixture) -> Any:
    with caplog.at_level(logging.INFO, "toutates.net"):
        yield
