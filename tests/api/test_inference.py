"""What the path of an inference gets to know of gRPC's calls, and whose requests are traced."""

from __future__ import annotations

from typing import Any

import pytest

from toutates.api.grpc.inference import GrpcTransport, model_infer
from toutates.h2grpc import Limits, Status, make_field
from toutates.infer.service import InferService
from toutates.infer.tracing.settings import TraceSetting, TraceSettings, read_changes
from toutates.infer.tracing.tracer import WorkerTraces
from toutates.models.table import ModelTable
from toutates.net import Worker
from toutates.system.errors import Overloaded, UnknownModel

SAMPLED = f"00-{'a' * 32}-{'b' * 16}-01".encode()
PASSED_OVER = SAMPLED[:-1] + b"0"


class Asked:
    """A call with header fields and an empty request, and how it ended."""

    def __init__(self, *fields: tuple[bytes, bytes]) -> None:
        self.head: Any = self
        self.fields = [make_field(name, value) for name, value in fields]
        self.buffer, self.start, self.end = b"", 0, 0
        self.context: Any = None
        self.link = None
        self.ended: Any = None

    def fail(self, status: Status, text: str) -> None:
        self.ended = status, text


def service() -> tuple[Worker, InferService]:
    worker = Worker("test", Limits())
    table = ModelTable({})
    return worker, InferService(worker, GrpcTransport(worker), lambda: table)


def test_errors_end_a_call_with_their_status_and_text() -> None:
    transport = GrpcTransport(Worker("test", Limits()))
    call: Any = Asked()
    transport.fail(call, Overloaded("too much"))
    assert call.ended == (Status.RESOURCE_EXHAUSTED, "too much")
    assert (transport.status_of(None), transport.status_of(UnknownModel)) == (Status.OK, Status.NOT_FOUND)
    assert transport.peer(call) == ""


def test_fields_of_one_name_are_joined() -> None:
    transport = GrpcTransport(Worker("test", Limits()))
    call: Any = Asked(
        (b"tracestate", b"x=1"), (b"traceparent", b"00-a"), (b"user-agent", b"u"), (b"tracestate", b"y=2")
    )
    assert transport.trace_context(call) == ("00-a", "x=1,y=2")
    nothing: Any = Asked()
    assert transport.trace_context(nothing) == ("", "")


@pytest.mark.parametrize(
    ("fields", "varies"),
    [
        ([(b"traceparent", SAMPLED)], True),
        ([(b"traceparent", PASSED_OVER)], False),
        ([(b"traceparent", b"wrong")], False),
        ([(b"traceparent", SAMPLED)] * 2, False),
        ([(b"tracestate", SAMPLED)], False),
        ([], False),
    ],
)
def test_headers_that_record_the_trace_have_a_handler_of_their_own(fields: Any, varies: bool) -> None:
    worker, infer = service()
    method = model_infer(
        infer, WorkerTraces(worker, infer.observer, TraceSettings(TraceSetting()), lambda record: None)
    )
    assert method.variant is not None
    variant = method.variant([make_field(*field) for field in fields])
    assert (variant is not None) is varies


def test_without_a_collector_no_headers_are_read() -> None:
    worker, infer = service()
    assert model_infer(infer, WorkerTraces(worker, infer.observer, TraceSettings(TraceSetting()), None)).variant is None


def test_a_caller_that_records_the_trace_is_observed_while_traces_are_on() -> None:
    worker, infer = service()
    settings = TraceSettings(TraceSetting())
    records: list[object] = []
    traces = WorkerTraces(worker, infer.observer, settings, records.append)
    method = model_infer(infer, traces)
    assert method.variant is not None
    variant = method.variant([make_field(b"traceparent", SAMPLED)])
    assert variant is not None
    assert variant.unary is not None
    for levels in (["OFF"], ["TIMESTAMPS"]):
        settings.update("", read_changes({"trace_level": levels}))
        with pytest.raises(UnknownModel):
            variant.unary(Asked((b"traceparent", SAMPLED)))
    assert len(records) == 1
