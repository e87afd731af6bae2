"""From a batch's outputs to answers: what is written, what is counted by a clock that tests turn, what bugs cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.infer.calls import KnownCall, Turned
from tests.infer.ports import signature_of
from tests.infer.served import Served
from tests.infer.test_service import request
from tests.signatures import signature, spec
from toutates.engine.counters import size_bucket, time_bucket
from toutates.engine.result import BatchResult, Outputs, PendingRequest, Split, Timing
from toutates.infer import answers, plan
from toutates.infer.answers import is_wanted
from toutates.models.config.labels import Labels
from toutates.protocol.grpc_service_pb2 import ModelInferRequest
from toutates.protocol.strings import EncodedStrings
from toutates.system.errors import ExecutionFailed, InvalidRequest, TooLate

TIMING = Timing(20_000, 50_000, 140_000, 150_000)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Turned:
    clock = Turned(200_000)
    monkeypatch.setattr(answers, "time", clock)
    return clock


def ints(*rows: Sequence[int]) -> bytes:
    return np.array(rows, np.int32).tobytes()


def outputs_of(*data: Any, width: int = 4, fixed: bool = False) -> Outputs:
    return Outputs(data, (4 * width,) * len(data), ((width,),) * len(data), fixed)


def asked(served: Served, count: int, **fields: Any) -> list[KnownCall]:
    return [served.ask(request(*served_inputs(served), **fields)) for _ in range(count)]


def served_inputs(served: Served) -> list[str]:
    return [tensor.name for tensor in served.servable.signature.inputs]


# --- what is written


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("wanted", [(), ("out0",), ("out1",), ("out1", "out0")])
def test_each_request_gets_its_own_rows_of_the_outputs_it_wants(wanted: tuple[str, ...], fixed: bool) -> None:
    served = Served()
    for _ in range(3):
        calls = []
        for rows in (1, 3, 2):
            message = request(rows=rows, id=f"id-{rows}")
            for name in wanted:
                message.outputs.add(name=name)
            calls.append(served.ask(message))
        whole = [[[10 * at + row] * 4 for row in range(6)] for at in range(2)]
        served.port.finish(outputs_of(*[ints(*output) for output in whole], fixed=fixed))
        for call, first, rows in zip(calls, (0, 1, 4), (1, 3, 2), strict=True):
            response = call.response
            assert (response.model_name, response.model_version, response.id) == ("m", "1", f"id-{rows}")
            names = sorted(wanted or ("out0", "out1"))
            assert [(one.name, one.datatype, list(one.shape)) for one in response.outputs] == [
                (name, "INT32", [rows, 4]) for name in names
            ]
            raws = [ints(*whole[int(name[-1])][first : first + rows]) for name in names]
            assert list(response.raw_output_contents) == raws


def test_outputs_of_other_shapes_are_described_anew() -> None:
    served = Served(signature_of("A", shape=(-1,)))
    for width in (1, 3, 2, 2):
        [call] = asked(served, 1)
        served.port.finish(outputs_of(ints(range(width)), width=width))
        assert list(call.response.outputs[0].shape) == [1, width]
        assert call.values() == [list(range(width))]


def test_a_model_without_a_batch_dimension_answers_with_the_whole_output() -> None:
    served = Served(signature_of("A", shape=(2, -1), batched=False))
    [call] = asked(served, 1, rows=2, width=3)
    served.port.finish(Outputs((ints([1, 2], [3, 4]),), (16,), ((2, 2),)))
    assert (list(call.response.outputs[0].shape), call.values()) == ([2, 2], [[1, 2, 3, 4]])


TEXT = spec("text", "BYTES", [1])
NUMBERS = spec("numbers", "FP32", [3])


def with_outputs(*outputs: Any, batched: bool = True) -> Any:
    return signature(signature_of("A").inputs, outputs, batched=batched)


def classified(name: str, count: int, rows: int = 1) -> ModelInferRequest:
    message = request("A", rows=rows)
    message.outputs.add(name=name).parameters["classification"].int64_param = count
    return message


def test_classes_stand_in_place_of_numbers() -> None:
    served = Served(with_outputs(NUMBERS), labels={0: Labels(b"one\ntwo\nthree\n")})
    calls = [served.ask(classified("numbers", 2, rows)) for rows in (2, 1)]
    values = np.array([[1, 3, 2], [9, 8, 7], [0, 0, 5]], np.float32)
    served.port.finish(Outputs((values.tobytes(),), (12,), ((3,),)))
    found = [
        [
            [b"3.000000:1:two", b"2.000000:2:three"],
            [b"9.000000:0:one", b"8.000000:1:two"],
        ],
        [[b"5.000000:2:three", b"0.000000:0:one"]],
    ]
    for call, rows in zip(calls, found, strict=True):
        [output] = call.response.outputs
        assert (output.datatype, list(output.shape)) == ("BYTES", [len(rows), 2])
        flat = [element for row in rows for element in row]
        assert call.response.raw_output_contents[0] == EncodedStrings.of(flat, (len(flat),)).content


def test_classes_of_a_model_without_a_batch_are_one_row() -> None:
    served = Served(with_outputs(NUMBERS, batched=False))
    message = classified("numbers", 1)
    del message.inputs[0].shape[0]
    call = served.ask(message)
    served.port.finish(Outputs((np.array([1, 3, 2], np.float32).tobytes(),), (12,), ((3,),)))
    assert (list(call.response.outputs[0].shape), call.response.raw_output_contents[0][4:]) == ([1], b"3.000000:1")


def test_texts_are_cut_from_the_batch_and_joined() -> None:
    served = Served(with_outputs(TEXT))
    calls = asked(served, 2)
    served.port.finish(Outputs((EncodedStrings.of([b"a", b"bcd"], (2, 1)),), (0,), ((1,),)))
    assert [list(call.response.raw_output_contents) for call in calls] == [
        [b"\x01\x00\x00\x00a"],
        [b"\x03\x00\x00\x00bcd"],
    ]
    split = [(0, 1, Outputs((EncodedStrings.of([one], (1, 1)),), (0,), ((1,),))) for one in (b"x", b"yz")]
    call = split_parts(served, 2, *split)
    assert call.response.raw_output_contents[0] == b"\x01\x00\x00\x00x\x02\x00\x00\x00yz"


def test_texts_of_a_model_without_a_batch_are_sent_whole() -> None:
    served = Served(with_outputs(spec("text", "BYTES", [-1]), batched=False))
    message = request("A")
    del message.inputs[0].shape[0]
    call = served.ask(message)
    served.port.finish(Outputs((EncodedStrings.of([b"a", b"b"], (2,)),), (0,), ((2,),)))
    [output] = call.response.outputs
    assert (list(output.shape), len(call.response.raw_output_contents[0])) == ([2], 10)


def test_an_answer_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served()
    [call] = asked(served, 1)
    monkeypatch.setattr(plan, "MAX_TEMPLATED_BYTES", 31)
    whole = outputs_of(ints(range(4)), ints(range(4)))
    served.port.finish(whole)
    assert call.answer is not None
    size = len(call.answer)
    for most, answered in ((size, True), (size - 1, False)):
        monkeypatch.setattr(answers, "MAX_RESPONSE_BYTES", most)
        [call] = asked(served, 1)
        served.port.finish(whole)
        assert (call.answer is not None) is answered
    [(_, kind, text)] = served.transport.failed
    assert (kind, text) == (
        InvalidRequest,
        f"Response has byte size {size} which exceeds gRPC's byte size limit {size - 1}.",
    )


# --- what is counted


def test_answered_requests_are_counted_with_the_times_of_their_batch(clock: Turned) -> None:
    served = Served(signature_of("A"))
    for now_ns, rows in ((500, 1), (1_000, 1), (1_000, 1), (1_000, 4), (9_000, 4)):
        served.worker.now_ns = now_ns - 1
        served.ask(request("A", rows=rows))
    served.port.run(TIMING)
    counters = served.port.counters
    assert (counters.success, counters.rows, counters.fail, counters.cancel) == (5, 11, 0, 0)
    arrivals = 500 + 3 * 1_000 + 9_000
    assert counters.success_ns == 5 * 200_000 - arrivals
    assert counters.queue_ns == 5 * 20_000 - arrivals
    assert (counters.input_ns, counters.infer_ns, counters.output_ns) == (5 * 30_000, 5 * 90_000, 5 * 10_000)
    assert counters.last_ms == 7
    assert counters.durations[time_bucket(199_000)] == 5
    assert counters.queued[time_bucket(19_000)] == 4
    assert counters.queued[time_bucket(11_000)] == 1
    assert [counters.sizes[size_bucket(rows)] for rows in (1, 4)] == [3, 2]


def test_callers_who_have_left_are_counted_as_cancelled() -> None:
    served = Served(signature_of("A"))
    calls = asked(served, 3)
    calls[1].open = False
    served.port.run(TIMING)
    counters = served.port.counters
    assert (counters.success, counters.cancel, counters.fail) == (2, 1, 0)
    assert counters.fail_ns == 200_000 - 502
    [call] = asked(served, 1)
    call.open = False
    served.port.finish(None, ExecutionFailed("x"))
    assert (counters.cancel, counters.fail) == (2, 0)
    assert not served.transport.failed


@pytest.mark.parametrize(
    ("error", "counted"),
    [(TooLate("late"), (1, 0, 0)), (ExecutionFailed("it broke"), (0, 1, 0)), (InvalidRequest("wrong"), (0, 0, 1))],
)
def test_failed_requests_get_the_error_and_are_counted_by_its_kind(error: Any, counted: tuple[int, ...]) -> None:
    served = Served()
    calls = asked(served, 2)
    served.port.finish(None, error)
    assert served.transport.failed == [(call, type(error), str(error)) for call in calls]
    counters = served.port.counters
    assert (counters.rejected, counters.broken, counters.other) == tuple(2 * one for one in counted)
    assert (counters.fail, counters.success) == (2, 0)
    assert counters.fail_ns == 2 * 200_000 - 501 - 502
    assert served.service.observer.seen == 2


def test_a_caller_is_wanted_while_open_and_in_time() -> None:
    call = KnownCall(deadline_ns=1_000)
    assert is_wanted((call,), 999)
    assert not is_wanted((call,), 1_000)
    call.open = False
    assert not is_wanted((call,), 0)


# --- requests in several batches


def split_parts(served: Served, rows: int, *results: Any, stays: bool = True) -> KnownCall:
    """A request whose parts come back one after the other: outputs, or an error."""
    call = served.ask(request("A", rows=rows))
    call.open = stays
    [added] = served.port.added
    split = Split(len(results))
    for number, (first, count, result) in enumerate(results):
        served.port.added = []
        failed = isinstance(result, Exception)
        pending: list[PendingRequest] = [(added.context, first, count, (split, number))]
        served.port.consumer.finish_here(
            BatchResult(pending, None if failed else result, result if failed else None, TIMING)
        )
    return call


def test_the_parts_of_a_request_are_joined_in_order_and_count_once() -> None:
    served = Served(signature_of("A"))
    one = outputs_of(ints([0] * 4, [1] * 4, [2] * 4))
    two = outputs_of(ints([3] * 4, [4] * 4, [5] * 4))
    call = split_parts(served, 3, (1, 2, one), (0, 1, two))
    assert call.values() == [[1] * 4 + [2] * 4 + [3] * 4]
    counters = served.port.counters
    assert (counters.success, counters.rows, counters.sizes[size_bucket(3)]) == (1, 3, 1)


def test_parts_of_different_shapes_have_no_answer() -> None:
    served = Served(signature_of("A", shape=(-1,)))
    call = split_parts(served, 3, (0, 2, outputs_of(ints(range(8)))), (0, 1, outputs_of(ints(range(3)), width=3)))
    [(failed, kind, text)] = served.transport.failed
    assert (failed, kind) == (call, ExecutionFailed)
    assert "a request of 3 rows, which took 2 batches, has no one shape" in text
    assert (served.port.counters.fail, served.port.counters.success) == (1, 0)


def test_a_request_of_which_a_part_fails_fails_once() -> None:
    served = Served(signature_of("A"))
    whole = outputs_of(ints(range(4), range(4)))
    for results in (
        [(0, 1, whole), (0, 1, ExecutionFailed("x")), (0, 1, whole)],
        [(0, 1, ExecutionFailed("x")), (0, 1, whole), (0, 1, ExecutionFailed("y"))],
    ):
        call = split_parts(served, 3, *results)
        assert call.answer is None
    assert [text for _, _, text in served.transport.failed] == ["x", "x"]
    assert (served.port.counters.fail, served.port.counters.cancel, served.port.counters.success) == (2, 0, 0)


def test_a_split_request_whose_caller_leaves_is_cancelled_once() -> None:
    served = Served(signature_of("A"))
    whole = outputs_of(ints(range(4), range(4)))
    split_parts(served, 2, (0, 1, whole), (0, 1, whole), stays=False)
    assert (served.port.counters.cancel, served.port.counters.fail) == (1, 0)


# --- bugs


@pytest.mark.parametrize("error", [None, ExecutionFailed("x")])
def test_a_bug_costs_its_call_and_none_of_the_others(error: Any, caplog: pytest.LogCaptureFixture) -> None:
    served = Served(signature_of("A"))
    calls = asked(served, 4)
    calls[1].breaks = 1
    calls[2].breaks = 2
    served.port.finish(None if error else outputs_of(ints(*[[at] * 4 for at in range(4)])), error)
    if error is None:
        assert [call.answer is not None for call in calls] == [True, False, False, True]
        assert calls[3].values() == [[3] * 4]
        assert served.port.counters.success == 2
    assert (calls[1], ExecutionFailed, "internal error") in served.transport.failed
    assert served.transport.ended == [calls[2]]
    assert "answering a call failed" in caplog.text


class Broken:
    """Labels with a bug."""

    def __getattr__(self, name: str) -> Any:
        raise ValueError("a bug")


def test_a_bug_in_writing_an_answer_is_an_internal_error(caplog: pytest.LogCaptureFixture) -> None:
    served = Served(with_outputs(NUMBERS), labels={0: Broken()})
    calls = [served.ask(classified("numbers", 1)) for _ in range(2)]
    calls[0].buffer = b""
    served.port.finish(Outputs((np.zeros((2, 3), np.float32).tobytes(),), (12,), ((3,),)))
    assert served.transport.failed == [(call, ExecutionFailed, "internal error") for call in calls]
    assert "writing a response of model 'm' failed" in caplog.text
    assert served.port.counters.broken == 2
