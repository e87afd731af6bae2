"""Frames packed by hand, a server connection without a socket, and an h2 client opposite it.

Nothing here uses the package's own packing or HPACK: a misreading of the RFC must not cancel itself out.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast
from unittest.mock import patch

import h2.config
import h2.connection
import h2.events
import h2.settings

from tests.h2grpc.frames import ACK, PING, PREFACE, STREAM, UNARY, Frame, frame, message, parse, request, settings
from toutates.h2grpc import (
    Call,
    CallCancelled,
    ConnectionTerminated,
    Event,
    GrpcError,
    HeaderField,
    Limits,
    MessageReceived,
    Method,
    PlainCall,
    RequestEnded,
    ServerConnection,
    StreamOpened,
    direct_receive,
    foresight,
    messages,
    method_table,
)
from toutates.h2grpc.events import InflationDue, LargeRequest
from toutates.h2grpc.message_memory import MessageMemory
from toutates.h2grpc.shared import Shared

COMPRESSIBLE = "/test.Echo/Compressible"
MESSAGES = "/test.Echo/Messages"
FLOW = "/test.Echo/Flow"


# --- the server ------------------------------------------------------------------------------------------------------


def _never(call: Call) -> None:
    raise AssertionError("a connection calls no handler")


async def _never_stream(stream: object) -> None:
    raise AssertionError("a connection calls no handler")


def _never_message(received: MessageReceived) -> None:
    raise AssertionError("a connection calls no handler")


METHODS = method_table(
    [
        Method(UNARY, unary=_never),
        Method(COMPRESSIBLE, unary=_never, compressible=True),
        Method(STREAM, stream=_never_stream),
        Method(MESSAGES, message=_never_message, max_message_size=100),
        Method(FLOW, message=_never_message, half_close=_never),
    ]
)


def _inflate(due: InflationDue) -> bytes | GrpcError:
    try:
        return messages.decompress(due.message, due.encoding, due.max_size)
    except GrpcError as error:
        return error


@contextmanager
def small_is_large() -> Iterator[None]:
    """Messages of 1 KiB are large, so that short sessions have many of them."""
    with (
        patch.multiple(direct_receive, LARGE_MESSAGE_BYTES=1_024, LEAST_MISSING=100, LEAST_FRAME=64, LONG_FRAME=2_000),
        patch.object(messages, "LARGE_MESSAGE_BYTES", 1_024),
        patch.object(foresight, "LEAST_FRAME", 64),
    ):
        yield


def elements(vector: Any) -> list[tuple[int, int]]:
    """Address and size of each element of an array of ``struct iovec``."""
    return list(struct.iter_unpack("NN", ctypes.string_at(vector.address, 16 * vector.count)))


@dataclass
class Verdict:
    """A ``PlainHead``."""

    max_body_size: int = 1_000
    refusal: Any = None
    expects_continue: bool = False
    in_memory: bool = False
    aligned_at: int = 0


@dataclass
class Judge:
    """Judges by the path, and notes how often."""

    asked: list[bytes] = field(default_factory=list)

    def __call__(self, fields: Sequence[HeaderField], size: int) -> tuple[Verdict, int]:
        path = next(one[1] for one in fields if one[0] == b":path")
        self.asked.append(path)
        verdict = Verdict(
            max_body_size=10_000_000 if path in (b"/large", b"/memory") else 1_000,
            refusal="no" if path in (b"/refused", b"/dear") else None,
            expects_continue=path == b"/continue",
            in_memory=path == b"/memory",
            aligned_at=100,
        )
        return verdict, 100 if path == b"/dear" else 0


@dataclass
class Server:
    """A ServerConnection and its driver: keeps the events and calls."""

    limits: Limits = field(default_factory=Limits)
    response_encoding: str = ""
    now_ns: int = 0
    #: whether bytes of large messages are put into the connection's views, rather than handed in
    directly: bool = True
    #: what its connection has in common with others; by default with none
    shared: Shared | None = None
    #: whether the memory of large messages is given back at once, as by handlers that answer at once
    gives_back: bool = False
    #: judges requests that are no gRPC
    admit: Any = None
    #: its methods
    methods: Any = None

    def __post_init__(self) -> None:
        self.dirty: list[object] = []
        shared = self.shared or Shared(inflation=self.limits.inflation)
        self.budget = shared.budget
        self.limit_hits = shared.limit_hits
        self.pool = shared.pool
        self.connection = ServerConnection(
            self.methods or METHODS,
            self.limits,
            self.dirty,
            response_encoding=self.response_encoding,
            shared=shared,
            admit=self.admit,
        )
        self.events: list[Event] = []
        #: how often what came was put where a vector says
        self.vectors = 0

    @classmethod
    def opened(
        cls,
        limits: Limits | None = None,
        *settings_of_peer: tuple[int, int],
        encoding: str = "",
        shared: Shared | None = None,
        admit: Any = None,
        methods: Any = None,
    ) -> Server:
        """A server whose connection is established; what it sent so far is dropped."""
        server = cls(limits or Limits(), encoding, shared=shared, admit=admit, methods=methods)
        server.receive(PREFACE + settings(*settings_of_peer))
        server.sent()
        return server

    def receive(self, octets: bytes) -> list[Event]:
        connection = self.connection
        events = (
            self._put_into_views(memoryview(octets)) if self.directly else connection.receive_data(octets, self.now_ns)
        )
        while connection.behind:
            events += connection.go_on(self.now_ns)
        for at, event in enumerate(events):
            if isinstance(event, InflationDue):
                events[at : at + 1] = self.connection.inflated(event.call, _inflate(event))
            elif isinstance(event, LargeRequest):
                events[at] = call = event.call
                if self.gives_back:
                    memory = cast(MessageMemory, call.buffer)
                    call.buffer, call.start, call.end = call.message, 0, call.end - call.start
                    self.pool.give_back(memory)
        self.events += events
        return events

    def _put_into_views(self, octets: memoryview) -> list[Event]:
        """What a driver does for sockets without TLS."""
        connection = self.connection
        events: list[Event] = []
        while octets and connection.direct:
            count = 0
            vector = connection.vector()
            if vector is not None:
                self.vectors += 1
                for address, size in elements(vector):
                    size = min(size, len(octets) - count)
                    ctypes.memmove(address, bytes(octets[count : count + size]), size)
                    count += size
            views = [] if vector else connection.views()
            if not (vector or views):
                break
            while views:
                part = octets[count : count + len(views[0])]
                views.pop(0)[: len(part)] = part
                count += len(part)
            octets = octets[count:]
            events += connection.take_direct(count, self.now_ns)
        return events + connection.receive_data(bytes(octets), self.now_ns) if octets else events

    def sent(self) -> bytes:
        """What the driver would send now."""
        assert bool(self.dirty) == self.connection.has_output, "output without a sign to the driver, or the reverse"
        self.dirty.clear()
        return b"".join(self.connection.take_output())

    def frames(self) -> list[Frame]:
        return parse(self.sent())

    def call(self, octets: bytes) -> Call:
        """The one unary call, or one stream's call, that ``octets`` bring."""
        (event,) = self.receive(octets)
        if isinstance(event, Call):
            return event
        assert isinstance(event, StreamOpened)
        return event.call

    @property
    def alive(self) -> bool:
        """Whether the connection still answers a PING."""
        self.sent()
        self.receive(frame(PING, 0, 0, b"are-you?"))
        return Frame(PING, ACK, 0, b"are-you?") in self.frames()


def describe(events: Iterable[Event]) -> list[tuple[object, ...]]:
    """Events as values that compare."""
    out: list[tuple[object, ...]] = []
    for event in events:
        if isinstance(event, PlainCall):
            start = getattr(event.buffer, "start", 0)
            body = bytes(memoryview(event.buffer)[start : start + len(event.buffer)])
            out.append(("plain", event.stream_id, body, event.problem and event.problem.limit))
        elif isinstance(event, Call):
            out.append(("unary", event.stream_id, event.message))
        elif isinstance(event, MessageReceived):
            out.append(("message", event.call.stream_id, event.message))
        elif isinstance(event, ConnectionTerminated):
            out.append(("terminated", event.code, event.text))
        else:
            assert isinstance(event, StreamOpened | RequestEnded | CallCancelled)
            out.append((type(event).__name__, event.call.stream_id))
    return out


# --- the client ------------------------------------------------------------------------------------------------------


@dataclass
class Response:
    """What an h2 client saw of one call."""

    headers: dict[bytes, bytes] = field(default_factory=dict)
    trailers: dict[bytes, bytes] = field(default_factory=dict)
    data: bytearray = field(default_factory=bytearray)
    ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> int:
        return int((self.trailers or self.headers)[b"grpc-status"])

    @property
    def text(self) -> str:
        from urllib.parse import unquote

        return unquote((self.trailers or self.headers).get(b"grpc-message", b"").decode())

    @property
    def messages(self) -> list[bytes]:
        return [body for _, body in split_messages(bytes(self.data))]


def split_messages(octets: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(octets):
        flag, length = struct.unpack_from(">BI", octets, at)
        assert len(octets) >= at + 5 + length, "cut-off message"
        yield flag, octets[at + 5 : at + 5 + length]
        at += 5 + length


class Client:
    """An h2 client, without a socket; ``exchange`` carries bytes between it and a ``Server``."""

    def __init__(self, initial_window: int | None = None, *, credit: bool = True) -> None:
        config = h2.config.H2Configuration(client_side=True, header_encoding=None)
        self.h2 = h2.connection.H2Connection(config)
        if initial_window is not None:
            self.h2.local_settings = h2.settings.Settings(
                client=True, initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: initial_window}
            )
        self.h2.initiate_connection()
        #: whether received DATA is credited at once
        self.credit = credit
        self.responses: dict[int, Response] = {}
        self.events: list[h2.events.Event] = []

    def open(self, path: str = UNARY, *extra: tuple[str, str], end_stream: bool = False) -> int:
        stream_id = self.h2.get_next_available_stream_id()
        self.responses[stream_id] = Response()
        self.h2.send_headers(stream_id, [(str(n), str(v)) for n, v in request(path, *extra)], end_stream)
        return stream_id

    def unary(self, body: bytes, path: str = UNARY, *extra: tuple[str, str]) -> int:
        stream_id = self.open(path, *extra)
        octets = message(body)
        size = self.h2.max_outbound_frame_size
        for at in range(0, len(octets), size):
            self.h2.send_data(stream_id, octets[at : at + size], end_stream=at + size >= len(octets))
        return stream_id

    def take(self, octets: bytes) -> None:
        for event in self.h2.receive_data(octets):
            self.events.append(event)
            if isinstance(event, h2.events.DataReceived):
                assert event.stream_id is not None
                assert event.data is not None
                self.responses[event.stream_id].data += event.data
                if self.credit and event.flow_controlled_length:
                    self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.ResponseReceived):
                assert event.stream_id is not None
                self.responses[event.stream_id].headers = dict(event.headers or [])
            elif isinstance(event, h2.events.TrailersReceived):
                assert event.stream_id is not None
                self.responses[event.stream_id].trailers = dict(event.headers or [])
            elif isinstance(event, h2.events.StreamEnded):
                assert event.stream_id is not None
                self.responses[event.stream_id].ended = True
            elif isinstance(event, h2.events.StreamReset) and event.stream_id in self.responses:
                self.responses[event.stream_id].reset = int(event.error_code or 0)


def exchange(client: Client, server: Server, *, answer: bool = True) -> None:
    """Carry bytes both ways until neither side has more to say; ``answer`` echoes every unary call that completes."""
    while True:
        up = client.h2.data_to_send()
        if up:
            for event in server.receive(up):
                if answer and isinstance(event, Call):
                    event.reply(event.message)
        down = server.sent()
        if down:
            client.take(down)
        if not up and not down:
            return


def connected(
    limits: Limits | None = None, initial_window: int | None = None, *, encoding: str = ""
) -> tuple[Client, Server]:
    """A client and a server that have shaken hands."""
    client = Client(initial_window)
    server = Server(limits or Limits(), encoding)
    exchange(client, server)
    return client, server
