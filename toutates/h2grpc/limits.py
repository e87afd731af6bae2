"""Every limit of a connection, with the reason for its default."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from toutates.h2grpc.allowances import Allowance
from toutates.h2grpc.frames import DEFAULT_MAX_FRAME_SIZE, DEFAULT_WINDOW, LARGEST_MAX_FRAME_SIZE, MAX_WINDOW, PREFACE

__all__ = ["LIMIT_NAMES", "STALL_BYTES", "Limits"]

MIB = 1024 * 1024

#: Bytes that a peer has to send or read within ``stall_timeout_s``.
STALL_BYTES: Final = 65_536

#: Names of the limits that are counted when a peer meets them (``Shared.limit_hits``): fields of ``Limits`` without
#: "max_" and the unit, and limits that the driver enforces.
LIMIT_NAMES: Final = (
    "connections",
    "file_descriptors",
    "streams",
    "frame_size",
    "header_block_size",
    "header_list_size",
    "continuations",
    "message_size",
    "messages",
    "decompressed_size",
    "inflation",
    "connection_buffer",
    "server_buffer",
    "memory",
    "unread_responses",
    "resets",
    "pings",
    "settings",
    "empty_frames",
    "window_updates",
    "other_frames",
    "empty_tls_records",
    "handshake_timeout",
    "stall_timeout",
    "connection_idle",
    "connection_age",
    "connection_age_grace",
    "keepalive_timeout",
)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one connection.

    Attributes:
        max_concurrent_streams: streams a peer may have open at once (SETTINGS_MAX_CONCURRENT_STREAMS). High, because
            C-core clients queue calls silently beyond it; an idle stream takes about 2 KiB.
        max_frame_size: largest frame payload accepted, bytes (SETTINGS_MAX_FRAME_SIZE).
        stream_window: receive window of a stream, bytes: what C-core servers give, so that one large tensor is not
            throttled by a round trip per 64 KiB.
        connection_window: receive window of the whole connection, bytes. Several streams' worth, so that one slow
            upload does not stall the calls beside it.
        max_message_size: largest gRPC message accepted, bytes, as sent; Triton's default.
        max_messages: messages that one DATA frame may bring. Each takes some 4 us before its handler has it, so that
            a frame of empty ones would take 25 ms.
        max_decompressed_size: largest message that a compressed one may become, bytes. 1 KiB of gzip can become 1 MiB,
            and decompressing delays other connections, so the limit is lower than that of plain messages.
        max_header_list_size: largest decoded header list, bytes by RFC 9113 section 6.5.2; advertised. A larger list
            fails its call. One of more than twice the size ends the connection, because decoding it is the attack.
        max_header_block_size: largest encoded header block, HEADERS and its CONTINUATIONs together, bytes.
        max_continuations: CONTINUATION frames per header block (the CVE-2024-27316 family sends them without end).
        header_memory_entries: header blocks, and verdicts on requests, remembered per connection; most clients need one
            per method.
        closed_stream_memory: reset streams that are remembered, so that their late frames are answered by RFC 9113.
        max_preface_bytes: first bytes of a connection in which an HTTP/1 request line is looked for.
        max_queued_bytes: response bytes that may wait for the peer's windows before new streams are refused. Reading
            cannot pause for them, because the window updates they wait for have to be read.
        max_unsent_bytes: response bytes a peer may leave unread before the connection stops reading its requests.
        max_buffered_bytes: bytes of requests whose handlers do not have them yet: as much as the largest message, so
            that one connection cannot upload a hundred of them at once.
        max_settings: settings in one SETTINGS frame; the protocol has seven.
        resets: RST_STREAM of the peer, and those that its mistakes make the server send. A reset frees the stream at
            once, and so evades ``max_concurrent_streams``. Clients whose calls time out send up to one for two calls.
        pings: PING and its ACK. C-core and grpc-go measure the connection with one per response at worst.
        settings: SETTINGS and its ACK. Each may change the window of every stream that is open.
        empty_frames: DATA without data or END_STREAM.
        window_updates: WINDOW_UPDATE on streams whose responses wait for window; small ones make the server send DATA
            in pieces as small.
        inflation: KiB of decompressed messages that a worker makes on its own thread, of all its clients. A MiB takes
            3 ms, so this is 10 % of the worker's time. Unary requests beyond it, and large ones, are decompressed in
            another thread; messages of streams beyond it are refused.
        other_frames: PRIORITY, GOAWAY and frames of unknown types, which are read and ignored.
        handshake_timeout_s: seconds from accepting a connection to the peer's SETTINGS, TLS included.
        stall_timeout_s: seconds within which a peer has to send STALL_BYTES of an incomplete request, or the rest of
            it, and to read as much of its unread responses.
        max_idle_s: seconds without a call after which a connection is told to leave; inf for never.
        max_age_s: seconds after which a connection is told to leave, 10 % more or less, so that clients look for new
            servers now and then; inf for never.
        max_age_grace_s: seconds that its calls then have to end; inf for no limit.
        keepalive_time_s: seconds of silence after which the peer is sent a PING; inf for never.
        keepalive_timeout_s: seconds without an answer to it after which the peer is taken for dead.
    """

    max_concurrent_streams: int = 100_000
    max_frame_size: int = 1_048_576
    stream_window: int = 4 * MIB
    connection_window: int = 16 * MIB
    max_message_size: int = 2**31 - 1
    max_messages: int = 1_024
    max_decompressed_size: int = 64 * MIB
    max_header_list_size: int = 16_384
    max_header_block_size: int = 32_768
    max_continuations: int = 16
    header_memory_entries: int = 128
    closed_stream_memory: int = 1_024
    max_preface_bytes: int = 8_192
    max_queued_bytes: int = 512 * MIB
    max_unsent_bytes: int = 4 * MIB
    max_buffered_bytes: int = 2**31 - 1
    max_settings: int = 64
    resets: Allowance = Allowance(burst=1_000, per_second=200, per_call=0.5)
    pings: Allowance = Allowance(burst=1_000, per_second=200, per_call=1)
    settings: Allowance = Allowance(burst=100, per_second=10, per_call=0)
    empty_frames: Allowance = Allowance(burst=100, per_second=10, per_call=0)
    window_updates: Allowance = Allowance(burst=10_000, per_second=2_000, per_call=4)
    inflation: Allowance = Allowance(burst=4_096, per_second=32_768, per_call=0)
    other_frames: Allowance = Allowance(burst=1_000, per_second=100, per_call=1)
    handshake_timeout_s: float = 20.0
    stall_timeout_s: float = 60.0
    max_idle_s: float = math.inf
    max_age_s: float = math.inf
    max_age_grace_s: float = math.inf
    keepalive_time_s: float = 300.0
    keepalive_timeout_s: float = 20.0

    def __post_init__(self) -> None:
        bounds = {
            "max_concurrent_streams": (1, 2**31 - 1),
            "max_frame_size": (DEFAULT_MAX_FRAME_SIZE, LARGEST_MAX_FRAME_SIZE),
            "stream_window": (DEFAULT_WINDOW, MAX_WINDOW),
            "connection_window": (DEFAULT_WINDOW, MAX_WINDOW),
            "max_message_size": (1, 2**31 - 1),
            "max_messages": (1, 1_000_000),
            "max_header_list_size": (1, MIB),
            "max_header_block_size": (1, MIB),
            "max_decompressed_size": (1, 2**31 - 1),
            "max_continuations": (0, 1_000),
            "header_memory_entries": (1, 1_000_000),
            "closed_stream_memory": (1, 1_000_000),
            "max_preface_bytes": (len(PREFACE), MIB),
            "max_queued_bytes": (1, 2**63 - 1),
            "max_unsent_bytes": (0, 2**63 - 1),
            "max_buffered_bytes": (1, 2**63 - 1),
            "max_settings": (1, 10_000),
            "handshake_timeout_s": (0.001, math.inf),
            "stall_timeout_s": (0.001, math.inf),
            "max_idle_s": (0.001, math.inf),
            "max_age_s": (0.001, math.inf),
            "max_age_grace_s": (0.0, math.inf),
            "keepalive_time_s": (0.001, math.inf),
            "keepalive_timeout_s": (0.001, math.inf),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} is {value}, must lie in {low}..{high}")
