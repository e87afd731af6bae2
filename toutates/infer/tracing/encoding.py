"""Encodes spans as OTLP, without making protobuf messages.

OpenTelemetry's encoder makes a protobuf message of every span and attribute. That takes three times as long, and thirty
times with the pure-Python protobuf of free-threaded Python. The tests compare the two encodings.

Source: opentelemetry/proto/trace/v1/trace.proto and its imports, and protobuf's encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan

from toutates.protocol.wire_format import field_head
from toutates.system.text import writable

__all__ = ["SpanEncoder"]

#: SpanFlags: the parent is in this process; the parent is in another process.
_LOCAL_PARENT: Final = 0x100
_REMOTE_PARENT: Final = 0x300

# Fields of fixed size, each after its tag.
_IDS: Final = struct.Struct("<2s16s2s8s")
_KIND_AND_TIMES: Final = struct.Struct("<BBBQBQ")
_FLAGS: Final = struct.Struct("<2sI")


def _field(tag: int, content: bytes) -> bytes:
    """A field with bytes, a text or a message, and a tag of one octet."""
    return field_head(tag, len(content)) + content


@lru_cache(maxsize=512)
def _attribute(key: str, value: str | int) -> bytes:
    """A KeyValue, as field 9 of a Span."""
    # A number stands where a text has its length.
    content = field_head(0x18, value) if isinstance(value, int) else _field(0x0A, writable(value).encode())
    return _field(0x4A, _field(0x0A, key.encode()) + _field(0x12, content))


class SpanEncoder:
    """Encodes spans of one resource and scope.

    Args:
        example: a span of that resource and scope.
    """

    def __init__(self, example: ReadableSpan) -> None:
        [resource_spans] = encode_spans([example]).resource_spans
        [scope_spans] = resource_spans.scope_spans
        self._resource = _field(0x0A, resource_spans.resource.SerializeToString())
        self._scope = _field(0x0A, scope_spans.scope.SerializeToString())

    def request(self, spans: Sequence[bytes]) -> bytes:
        """An ExportTraceServiceRequest of encoded spans."""
        return _field(0x0A, self._resource + _field(0x12, self._scope + b"".join(spans)))

    def span(self, span: ReadableSpan) -> bytes:
        """Encode a span as a field of ScopeSpans. Its attributes are texts and numbers from 0 up; it has no events."""
        context, parent, status = span.context, span.parent, span.status
        assert context is not None
        pieces = [_IDS.pack(b"\x0a\x10", context.trace_id.to_bytes(16), b"\x12\x08", context.span_id.to_bytes(8))]
        if context.trace_state:
            pieces.append(_field(0x1A, context.trace_state.to_header().encode()))
        if parent is not None:
            pieces.append(b"\x22\x08" + parent.span_id.to_bytes(8))
        pieces.append(_field(0x2A, writable(span.name).encode()))
        # OTLP counts kinds from 1.
        pieces.append(
            _KIND_AND_TIMES.pack(0x30, span.kind.value + 1, 0x39, span.start_time or 0, 0x41, span.end_time or 0)
        )
        for key, value in (span.attributes or {}).items():
            assert isinstance(value, str | int)
            pieces.append(_attribute(key, value))
        text = _field(0x12, writable(status.description).encode()) if status.description else b""
        code = bytes((0x18, status.status_code.value)) if status.status_code.value else b""
        pieces.append(_field(0x7A, text + code))
        remote = parent is not None and parent.is_remote
        pieces.append(_FLAGS.pack(b"\x85\x01", _REMOTE_PARENT if remote else _LOCAL_PARENT))
        return _field(0x12, b"".join(pieces))
