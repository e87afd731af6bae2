"""The record of a traced request, from its answer until its spans are sent."""

from __future__ import annotations

from dataclasses import dataclass

from toutates.engine.result import StepTiming

__all__ = ["TracedRequest"]


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """The steps and the outcome of a traced request. Times are monotonic nanoseconds; 0 for a step it did not reach.

    It is a copy of the request's ``Observation``, which holds the model version: a version that is unloaded must not
    stay in memory until a collector has taken its traces.

    Attributes:
        arrived_ns: the round began in which it was read.
        planned_ns: its plan was found or made.
        copied_ns: its rows were in a batch.
        taken_ns: an executor took the batch.
        started_ns, ended_ns: ONNX Runtime ran.
        answered_ns: the answer was written.
        model, version: the model and version that it was for; "" where that is unknown.
        rows: rows of the request.
        batch_rows: rows of its batch.
        status: gRPC's status code, or HTTP's.
        text: the error's text; "" for none.
        request_id: the request's ``id``.
        peer: the caller's address, ``HOST:PORT``.
        traceparent, tracestate: these header fields; several of one name are joined with commas.
        steps: of a model that is made of others: what these have done for its batch.
        route: the path of a request over HTTP; "" for that of an infer request.
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
    steps: tuple[StepTiming, ...] = ()
    route: str = ""
