"""What is kept of a request that is traced, from its answer until its spans are sent."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TracedRequest"]


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """See the module. Times are monotonic nanoseconds, 0 for what the request never came to.

    Attributes:
        arrived_ns: it was read from the socket, whole.
        planned_ns: it was understood: its plan was found.
        copied_ns: its rows were in a batch.
        taken_ns: an executor took the batch.
        started_ns, ended_ns: ONNX Runtime's run.
        answered_ns: the answer was written.
        model, version: what it was for; "" where that is unknown.
        rows, batch_rows: its own, and those of its batch.
        status: gRPC's code.
        text: what an error said.
        request_id: the caller's name for it.
        peer: the caller, ``HOST:PORT``.
        traceparent, tracestate: these fields of its header list, several joined with commas.
    """

    arrived_ns: int
    planned_ns: int
    copied_ns: int
    taken_ns: int
    started_ns: int
    ended_ns: int
    answered_ns: int
    model: str
    version: str
    rows: int
    batch_rows: int
    status: int
    text: str = ""
    request_id: str = ""
    peer: str = ""
    traceparent: str = ""
    tracestate: str = ""
