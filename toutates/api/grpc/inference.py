"""ModelInfer over gRPC: the method, and what the path of an inference needs of gRPC's calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from toutates.api.grpc.forwarding import Forward, forward_nothing
from toutates.api.grpc.statuses import STATUSES
from toutates.h2grpc import Call, HeaderField, MessageReceived, Method, Status, texts_of
from toutates.infer.reading import request_id
from toutates.infer.service import InferService
from toutates.infer.tracing.context import parse_traceparent
from toutates.infer.tracing.tracer import WorkerTraces
from toutates.net import Worker
from toutates.system.errors import RequestError

__all__ = ["GrpcTransport", "model_infer"]

_PATH: Final = "/inference.GRPCInferenceService/ModelInfer"


class GrpcTransport:
    """The ``toutates.infer.call.Transport`` of gRPC calls.

    Args:
        worker: whose calls these are.
    """

    def __init__(self, worker: Worker) -> None:
        self.end_connection = worker.connection_failed
        self.peer = worker.peer

    def fail(self, call: Call, error: RequestError) -> None:
        """End a call with the status and the text of an error."""
        call.fail(STATUSES[type(error)], str(error))

    def hold(self, call: Any, size: int) -> None:
        """Count bytes that are kept for a call, or for a message of a stream."""
        stream = call.responder if isinstance(call, MessageReceived) else None
        if stream is not None:
            stream.hold(size)
        elif call.link is not None:
            call.link.connection.hold(call, max(call.held_bytes + size, 0))

    def status_of(self, error: type[RequestError] | None) -> Status:
        """The status of a kind of error; OK for None."""
        return Status.OK if error is None else STATUSES[error]

    def request_id(self, id_field: bytes) -> str:
        """The id of a request, from its field with tag and length."""
        return request_id(id_field)

    def trace_context(self, call: Call) -> tuple[str, str]:
        """``traceparent`` and ``tracestate``; several fields of one name are joined (RFC 9110 section 5.3)."""
        fields = call.head.fields
        return _joined(fields, b"traceparent"), _joined(fields, b"tracestate")


def model_infer(infer: InferService, traces: WorkerTraces, forward: Forward = forward_nothing) -> Method:
    """The method of ModelInfer.

    Args:
        infer: the worker's.
        traces: the worker's. A caller whose ``traceparent`` says that it records the trace has its requests traced.
        forward: has metadata forwarded to models.
    """
    handler = forward(infer.handler)
    plain = Method(_PATH, unary=handler, compressible=True)
    if not traces.possible:
        return plain
    observing = forward(infer.observing_handler(traces.sampling))
    settings = traces.settings

    def handle(call: Call) -> None:
        # The verdict on a header block is remembered with the block; whether anything is traced can change.
        (observing if settings.rules.on else handler)(call)

    observed = replace(plain, unary=handle)

    def variant(fields: Sequence[HeaderField]) -> Method | None:
        values = texts_of(fields, b"traceparent")
        context = parse_traceparent(values[0].decode("latin-1")) if len(values) == 1 else None
        return observed if context is not None and context.sampled else None

    return replace(plain, variant=variant)


def _joined(fields: Sequence[HeaderField], name: bytes) -> str:
    return ",".join([text.decode("latin-1") for text in texts_of(fields, name)])
