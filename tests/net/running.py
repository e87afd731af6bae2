"""A worker that runs in a thread of its own, and a blocking h2 client of it."""

from __future__ import annotations

import fcntl
import os
import socket
import ssl
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

import trio

from tests.certificates import SERVER_NAME
from tests.h2grpc.frames import (
    DATA,
    END_STREAM,
    OPENING,
    PREFACE,
    Frame,
    block,
    data,
    headers,
    message,
    parse,
    request,
    settings,
    window_update,
)
from tests.h2grpc.support import Client, Response
from tests.waiting import PATIENCE_S, wait_until
from toutates.h2grpc import Call, GrpcError, Limits, Method, Status, method_table
from toutates.net import GrpcService, Listening, ServerStream, Worker
from toutates.net.connection import Service

T = TypeVar("T")

HOUR_S = 3_600.0
HOUR_NS = 3_600_000_000_000

#: The opening of a client that sets no bounds to what it is sent.
WIDE = PREFACE + settings((4, 2**31 - 1), (5, 2**24 - 1)) + window_update(0, 2**31 - 1 - 65_535)
#: A request that nobody answers.
HOLD = headers(1, block(request("/test.Echo/Hold"))) + data(1, message(b""), END_STREAM)


class Running:
    """A worker in a thread, with the methods of ``/test.Echo``; ``stop`` drains it and checks that nothing is left.

    Attributes:
        service: what answers its gRPC connections.
        top: what answers the connections of its port.
        held: calls of ``/test.Echo/Hold``, which nobody answers; their messages are in ``context``.
        cut_off: what ``Worker.run`` returned, once stopped.
    """

    def __init__(
        self,
        limits: Limits,
        max_connections: int,
        buffer_bytes: int | None,
        response_encoding: str,
        *more: Method,
        tls: ssl.SSLContext | None = None,
        serve: Callable[[Worker, GrpcService], Service] = lambda _, grpc: grpc,
    ) -> None:
        self.worker = Worker("test", limits, max_connections=max_connections, buffer_bytes=buffer_bytes)
        self.worker.tls = tls
        self.held: list[Call] = []
        self.streams_ended: list[str] = []
        methods = method_table(
            [
                Method("/test.Echo/Unary", unary=lambda call: call.reply(call.message)),
                Method("/test.Echo/Compressible", unary=lambda call: call.reply(call.message), compressible=True),
                Method("/test.Echo/Hold", unary=self._hold),
                Method("/test.Echo/Raise", unary=_raise),
                Method("/test.Echo/RaiseGrpc", unary=_raise_grpc),
                Method("/test.Echo/Stream", stream=self._echo_stream),
                *more,
            ]
        )
        self.service = GrpcService(self.worker, methods, response_encoding)
        self.top = serve(self.worker, self.service)
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1_024)
        self.listener.setblocking(False)
        self.port: int = self.listener.getsockname()[1]
        self.cut_off = -1
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.cut_off = trio.run(self.worker.run, Listening(self.listener, self.top))
        except BaseException as error:
            self.error = error

    def _hold(self, call: Call) -> None:
        call.context = call.message
        self.held.append(call)

    async def _echo_stream(self, stream: ServerStream) -> None:
        try:
            async for body in stream:
                await stream.send(body)
        except trio.Cancelled:
            self.streams_ended.append("cancelled")
            raise
        self.streams_ended.append("finished")

    def call(self, function: Callable[[], T]) -> T:
        """What ``function`` returns on the worker's thread."""
        done = threading.Event()
        results: list[T] = []
        errors: list[Exception] = []

        def on_worker() -> None:
            try:
                results.append(function())
            except Exception as error:
                errors.append(error)
            done.set()

        self.worker.call_soon(on_worker)
        assert done.wait(PATIENCE_S), "the worker sleeps through a callback"
        if errors:
            raise errors[0]
        return results[0]

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for something to become true on the worker's thread."""
        ends = time.monotonic() + PATIENCE_S
        while not self.call(condition):
            assert time.monotonic() < ends, "waited in vain"
            time.sleep(0.001)

    @contextmanager
    def asleep(self) -> Iterator[None]:
        """For the block the worker does nothing: what clients send meanwhile comes together, however slow they are."""
        asleep, over = threading.Event(), threading.Event()

        def sleep() -> None:
            asleep.set()
            assert over.wait(PATIENCE_S)

        self.worker.call_soon(sleep)
        assert asleep.wait(PATIENCE_S)
        try:
            yield
        finally:
            over.set()

    def rounds(self) -> None:
        """Return when the worker has looked at its sockets, and let its tasks run, a few times more."""
        for _ in range(10):
            self.call(self.worker.task_woken)

    def expire(self) -> None:
        """Have the worker see the deadlines of calls as they will be in an hour; returns at once."""
        self.worker.call_soon(lambda: self.worker.deadlines.tick(time.monotonic_ns() + HOUR_NS))

    def keep_house(self, ahead_s: float = 0.0) -> None:
        """Have the worker look after its connections as it will in so many seconds."""
        self.call(lambda: self.worker.visits.visit(time.monotonic_ns() + int(ahead_s * 1e9)))

    def drain(self, grace_s: float) -> None:
        self.worker.call_soon(lambda: self.worker.drain(grace_s))

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the worker does not end"
        if self.error is not None:
            raise self.error

    def stop(self, grace_s: float = 0.0) -> None:
        self.drain(grace_s)
        self.join()
        worker = self.worker
        assert not worker.transports.open
        assert not worker.transports.closing
        assert not worker.transports.leaving
        assert not worker.transports.timed
        assert not self.service.streams
        assert self.listener.fileno() == -1

    def client(self, *, initial_window: int | None = None, receive_buffer: int | None = None) -> BlockingClient:
        return BlockingClient(self.port, initial_window=initial_window, receive_buffer=receive_buffer)


def _raise(call: Call) -> None:
    raise RuntimeError("not for the caller's eyes")


def _raise_grpc(call: Call) -> None:
    raise GrpcError(Status.NOT_FOUND, "no such thing", [("x-why", "because")])


@contextmanager
def running(
    limits: Limits | None = None,
    *more: Method,
    max_connections: int = 100,
    buffer_bytes: int | None = None,
    response_encoding: str = "",
    count_descriptors: bool = True,
    tls: ssl.SSLContext | None = None,
    serve: Callable[[Worker, GrpcService], Service] = lambda _, grpc: grpc,
) -> Iterator[Running]:
    """A running worker; when the block ends well, it is stopped and every file descriptor has to be closed again.

    Args:
        limits: of the worker.
        more: methods beside those of ``/test.Echo``.
        max_connections, buffer_bytes, response_encoding, tls: of the worker and its service.
        count_descriptors: off where a client library opens and closes some as it likes.
        serve: gives what connections are for, where that is not gRPC alone.
    """
    before = len(os.listdir("/proc/self/fd"))
    server = Running(limits or Limits(), max_connections, buffer_bytes, response_encoding, *more, tls=tls, serve=serve)
    try:
        yield server
    except BaseException:
        server.drain(0.0)
        raise
    server.stop()
    if count_descriptors:  # free-threaded Python may close what nobody refers to a moment later
        wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before)


class BlockingClient:
    """An h2 client on a real socket, with TLS if it has a context for it."""

    def __init__(
        self,
        port: int,
        *,
        initial_window: int | None = None,
        receive_buffer: int | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.sock = socket.socket()
        if receive_buffer is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(("127.0.0.1", port))
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock, server_hostname=SERVER_NAME)
        self.client = Client(initial_window)
        self.flush()
        self.read()  # the server's SETTINGS

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def flush(self) -> None:
        self.sock.sendall(self.client.h2.data_to_send())

    def read(self) -> bool:
        """Take what the server sends next; False at its end."""
        octets = self.sock.recv(1_048_576)
        if octets:
            self.client.take(octets)
            self.flush()
        return bool(octets)

    def start(self, body: bytes, path: str = "/test.Echo/Unary", *fields: tuple[str, str]) -> Response:
        stream_id = self.client.unary(body, path, *fields)
        self.flush()
        return self.client.responses[stream_id]

    def wait(self, response: Response) -> Response:
        while not response.ended and response.reset is None:
            assert self.read(), "the server closed the connection"
        return response

    def unary(self, body: bytes, path: str = "/test.Echo/Unary", *fields: tuple[str, str]) -> Response:
        return self.wait(self.start(body, path, *fields))

    def read_to_end(self) -> None:
        while self.read():
            pass


class RawClient:
    """A client of whole frames, for what h2 does not do: going on after GOAWAY."""

    def __init__(
        self,
        server: Running,
        octets: bytes = OPENING,
        *,
        receive_buffer: int | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.sock = socket.socket()
        if receive_buffer is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(("127.0.0.1", server.port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock, server_hostname=SERVER_NAME)
        self.send(octets)
        self._held = bytearray()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.sock.close()

    def send(self, octets: bytes) -> None:
        self.sock.sendall(octets)

    def has_arrived(self) -> bool:
        """Whether the other side's system has all that was sent."""
        return not int.from_bytes(fcntl.ioctl(self.sock, termios.TIOCOUTQ, bytes(4)), sys.byteorder)

    def __iter__(self) -> Iterator[Frame]:
        """The server's frames until it ends the connection."""
        while True:
            while len(self._held) >= 9:
                size = 9 + int.from_bytes(self._held[:3], "big")
                if len(self._held) < size:
                    break
                (one,) = parse(bytes(self._held[:size]))
                del self._held[:size]
                yield one
            octets = self.sock.recv(262_144)
            if not octets:
                assert not self._held, "the server sent half a frame"
                return
            self._held += octets

    def until(self, frame_type: int) -> Frame:
        """The next frame of a type."""
        for one in self:
            if one.type == frame_type:
                return one
        raise AssertionError("the server closed the connection")

    def body(self) -> bytes:
        """The DATA that comes until the connection's end."""
        return b"".join([one.payload for one in self if one.type == DATA])
