"""Makes the spans of a request from its record, after it has been answered.

    inference.GRPCInferenceService/ModelInfer     from its arrival to its answer; SERVER
    ├── batch assembly                            its rows are copied into a batch
    ├── queue                                     the batch waits for an executor
    ├── execution                                 ONNX Runtime runs it
    └── response                                  the answer is written

In place of "execution", an ensemble has a span for each step, with the queue and the execution of its member:

    ├── step MODEL                                from when the member got the rows until its outputs were there
    │   ├── queue
    │   └── execution                             or, of a member that is an ensemble, the spans of its steps

Names and attributes follow OpenTelemetry's conventions for RPC, and for HTTP. Where these have no name, it is Triton's
(``triton.``) or ours (``toutates.``).
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from toutates.engine.result import StepTiming
from toutates.infer.tracing.context import RANDOM, SAMPLED, parse_traceparent, parse_tracestate
from toutates.infer.tracing.record import TracedRequest

__all__ = ["SpanMaker"]

SERVICE: Final = "inference.GRPCInferenceService"
METHOD: Final = "ModelInfer"
HTTP_ROUTE: Final = "/v2/models/{model}/infer"

#: gRPC's codes that OpenTelemetry's conventions call the server's fault: UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED,
#: INTERNAL, UNAVAILABLE, DATA_LOSS. A span with any other code has no error status.
_SERVER_FAULTS: Final = frozenset((2, 4, 12, 13, 14, 15))
_NO_STATUS: Final = Status(StatusCode.UNSET)
#: The child spans: the name, and the fields of the record that say when it begins and ends.
_STEPS: Final = (
    ("batch assembly", "planned_ns", "copied_ns"),
    ("queue", "copied_ns", "taken_ns"),
    ("execution", "started_ns", "ended_ns"),
    ("response", "ended_ns", "answered_ns"),
)


class SpanMaker:
    """Makes spans. Used by one thread.

    Args:
        resource: the process that makes the spans.
        version: the version of this server.
    """

    def __init__(self, resource: Resource, version: str) -> None:
        self._resource = resource
        self._scope = InstrumentationScope("toutates", version)
        self._random = random.Random()  # seeded by the system

    def spans(self, request: TracedRequest) -> list[ReadableSpan]:
        """The spans of a request: the span of the whole request, then those of its steps."""
        # NTP corrects one of the clocks, so their distance is measured anew for every request. All spans of a request
        # use the same distance, so they fit together to the nanosecond.
        offset_ns = time.time_ns() - time.monotonic_ns()
        parent = self._parent(request)
        if parent is None:
            trace_id = self._random.getrandbits(128) or 1
            flags, state = TraceFlags(SAMPLED | RANDOM), None
        else:
            trace_id, flags, state = parent.trace_id, parent.trace_flags, parent.trace_state

        def context() -> SpanContext:
            return SpanContext(trace_id, self._random.getrandbits(64) or 1, False, flags, state)

        own = context()

        def child(name: str, parent: SpanContext, start_ns: int, end_ns: int, step: StepTiming | None = None) -> None:
            attributes = None
            if step is not None:
                attributes = {"triton.model_name": step.model, "triton.model_version": str(step.version)}
            made = ReadableSpan(
                name,
                context(),
                parent,
                self._resource,
                attributes,
                start_time=start_ns + offset_ns,
                end_time=end_ns + offset_ns,
                instrumentation_scope=self._scope,
            )
            spans.append(made)

        def children(steps: Iterable[StepTiming], parent: SpanContext) -> None:
            for step in steps:
                timing = step.timing
                child(f"step {step.model}", parent, step.begun_ns, timing.done_ns, step)
                of_step = spans[-1].context
                assert of_step is not None
                child("queue", of_step, step.begun_ns, timing.taken_ns)
                if timing.steps:
                    children(timing.steps, of_step)
                else:
                    child("execution", of_step, timing.started_ns, timing.ended_ns)

        spans = [
            ReadableSpan(
                f"POST {request.route or HTTP_ROUTE}" if _is_http(request) else f"{SERVICE}/{METHOD}",
                own,
                parent,
                self._resource,
                _attributes(request),
                kind=SpanKind.SERVER,
                status=Status(StatusCode.ERROR, request.text) if _is_fault(request) else _NO_STATUS,
                start_time=request.arrived_ns + offset_ns,
                end_time=request.answered_ns + offset_ns,
                instrumentation_scope=self._scope,
            )
        ]
        for name, start, end in _STEPS:
            start_ns: int = getattr(request, start)
            end_ns: int = getattr(request, end)
            if request.steps and name == "execution":
                children(request.steps, own)
                continue
            if request.steps and name == "response":
                # Its own computing time is the sum over the steps, which is longer where these ran side by side.
                start_ns = max(step.timing.done_ns for step in request.steps)
            if start_ns and end_ns:
                child(name, own, start_ns, end_ns)
        return spans

    def _parent(self, request: TracedRequest) -> SpanContext | None:
        """The caller's span; None if the request has no valid ``traceparent``."""
        context = parse_traceparent(request.traceparent)
        if context is None:
            return None
        state = TraceState(parse_tracestate(request.tracestate))
        return SpanContext(context.trace_id, context.span_id, True, TraceFlags(context.flags), state)


def _is_http(request: TracedRequest) -> bool:
    """Whether a request came over REST: statuses of HTTP have three digits, and gRPC's at most two."""
    return request.status >= 100


def _is_fault(request: TracedRequest) -> bool:
    """Whether the status says that the server is at fault."""
    return request.status >= 500 if _is_http(request) else request.status in _SERVER_FAULTS


def _attributes(request: TracedRequest) -> dict[str, str | int]:
    attributes: dict[str, str | int]
    if _is_http(request):
        attributes = {
            "http.request.method": "POST",
            "http.route": request.route or HTTP_ROUTE,
            "http.response.status_code": request.status,
        }
    else:
        attributes = {
            "rpc.system": "grpc",
            "rpc.service": SERVICE,
            "rpc.method": METHOD,
            "rpc.grpc.status_code": request.status,
        }
    if request.model:
        attributes["triton.model_name"] = request.model
        attributes["triton.model_version"] = request.version
    if request.rows:
        attributes["toutates.request.rows"] = request.rows
    if request.batch_rows:
        attributes["toutates.batch.rows"] = request.batch_rows
    if request.request_id:
        attributes["triton.request_id"] = request.request_id
    if request.text:
        attributes["error.message"] = request.text
    host, colon, port = request.peer.rpartition(":")
    if colon:
        attributes["client.address"] = host
        attributes["client.port"] = int(port)
    return attributes
