"""The spans of one request: whose they are, and when they begin and end."""

from __future__ import annotations

from dataclasses import replace

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan

from toutates.infer.tracing.record import TracedRequest
from toutates.infer.tracing.spans import SpanMaker

ANSWERED = TracedRequest(10, 20, 30, 40, 50, 60, 70, "m", "1", 1, 8, 0, "", "r-1", "192.0.2.1:5")


def made(maker: SpanMaker, request: TracedRequest = ANSWERED) -> list[ReadableSpan]:
    return maker.spans(request)


def ids(spans: list[ReadableSpan]) -> tuple[set[int], set[int]]:
    """Of traces, and of spans."""
    contexts = [span.context for span in spans]
    assert all(context is not None for context in contexts)
    return {one.trace_id for one in contexts if one}, {one.span_id for one in contexts if one}


def test_each_request_has_a_trace_of_its_own_and_each_span_an_id() -> None:
    maker = SpanMaker(Resource.get_empty(), "1")
    first, second = made(maker), made(maker)
    traces, spans = ids([*first, *second])
    assert (len(traces), len(spans)) == (2, 10)
    own, *steps = first
    assert own.parent is None
    assert all(step.parent is own.context for step in steps)


def test_steps_begin_and_end_within_their_request() -> None:
    own, *steps = made(SpanMaker(Resource.get_empty(), "1"))
    assert own.start_time is not None
    times = [
        (span.name, (span.start_time or 0) - own.start_time, (span.end_time or 0) - own.start_time) for span in steps
    ]
    assert times == [("batch assembly", 10, 20), ("queue", 20, 30), ("execution", 40, 50), ("response", 50, 60)]
    assert (own.end_time or 0) - own.start_time == 60


def test_steps_that_a_request_did_not_reach_have_no_span() -> None:
    refused = replace(ANSWERED, copied_ns=0, taken_ns=0, started_ns=0, ended_ns=0, status=3, text="no", batch_rows=0)
    [own] = made(SpanMaker(Resource.get_empty(), "1"), refused)
    assert own.attributes is not None
    assert own.attributes["error.message"] == "no"
    assert "toutates.batch.rows" not in own.attributes
    assert (own.attributes["client.address"], own.attributes["client.port"]) == ("192.0.2.1", 5)


def test_a_request_over_rest_has_the_attributes_of_http() -> None:
    maker = SpanMaker(Resource.get_empty(), "1")
    for status, is_fault in ((200, False), (404, False), (500, True)):
        own = made(maker, replace(ANSWERED, status=status))[0]
        assert own.name == "POST /v2/models/{model}/infer"
        assert own.attributes is not None
        assert own.attributes["http.response.status_code"] == status
        assert "rpc.system" not in own.attributes
        assert own.status.is_ok is not is_fault
    own = made(maker, replace(ANSWERED, status=200, route="/v1/embeddings"))[0]
    assert own.name == "POST /v1/embeddings"
    assert own.attributes is not None
    assert own.attributes["http.route"] == "/v1/embeddings"
