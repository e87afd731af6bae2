"""Every bound a connection enforces, in one place, each with the reason for its number."""

from __future__ import annotations

from dataclasses import dataclass

from toutates.h2grpc.frames import DEFAULT_MAX_FRAME_SIZE, DEFAULT_WINDOW, LARGEST_MAX_FRAME_SIZE, MAX_WINDOW, PREFACE

__all__ = ["Limits"]

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one server connection.

    Attributes:
        max_concurrent_streams: streams a peer may have open at once (SETTINGS_MAX_CONCURRENT_STREAMS). High, because
            C-core clients queue calls silently beyond it; a stream at rest costs about 1 KiB.
        max_frame_size: largest frame payload accepted, bytes (SETTINGS_MAX_FRAME_SIZE).
        stream_window: receive window of a stream, bytes: what C-core servers give, so that one large tensor is not
            throttled by a round trip per 64 KiB.
        connection_window: receive window of the whole connection, bytes. Several streams' worth, so that one slow
            upload does not stall the calls beside it.
        max_message_size: largest gRPC message accepted, bytes, before and after decompression: a decompression bomb is
            stopped at this size.
        max_header_list_size: advertised bound of a decoded header list, bytes by RFC 9113 section 6.5.2. A list above
            it fails its call; one above twice that ends the connection, because decoding it further is the attack.
        max_header_block_size: largest encoded header block, HEADERS and its CONTINUATIONs together, bytes.
        max_continuations: CONTINUATION frames per header block (the CVE-2024-27316 family sends them without end).
        header_memory_entries: header blocks, and verdicts on requests, remembered per connection; a client in real use
            needs one per method.
        closed_stream_memory: streams reset lately whose late frames are still told apart from nonsense.
        max_preface_bytes: bytes looked at to tell HTTP/1.1 from garbage before giving up.
        max_queued_bytes: response bytes that may wait for the peer's windows before new streams are refused. Reading
            cannot pause for them, because the window updates they wait for have to be read.
        max_unsent_bytes: response bytes a peer may leave unread before the connection stops reading its requests.
    """

    max_concurrent_streams: int = 100_000
    max_frame_size: int = 32_768
    stream_window: int = 4 * MIB
    connection_window: int = 16 * MIB
    max_message_size: int = 2**31 - 1
    max_header_list_size: int = 16_384
    max_header_block_size: int = 32_768
    max_continuations: int = 16
    header_memory_entries: int = 128
    closed_stream_memory: int = 1_024
    max_preface_bytes: int = 8_192
    max_queued_bytes: int = 512 * MIB
    max_unsent_bytes: int = 4 * MIB

    def __post_init__(self) -> None:
        bounds = {
            "max_concurrent_streams": (1, 2**31 - 1),
            "max_frame_size": (DEFAULT_MAX_FRAME_SIZE, LARGEST_MAX_FRAME_SIZE),
            "stream_window": (DEFAULT_WINDOW, MAX_WINDOW),
            "connection_window": (DEFAULT_WINDOW, MAX_WINDOW),
            "max_message_size": (1, 2**31 - 1),
            "max_header_list_size": (1, MIB),
            "max_header_block_size": (1, MIB),
            "max_continuations": (0, 1_000),
            "header_memory_entries": (1, 1_000_000),
            "closed_stream_memory": (1, 1_000_000),
            "max_preface_bytes": (len(PREFACE), MIB),
            "max_queued_bytes": (1, 2**63 - 1),
            "max_unsent_bytes": (0, 2**63 - 1),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} is {value}, must lie in {low}..{high}")
