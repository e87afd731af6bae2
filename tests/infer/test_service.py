"""From a request's bytes to rows in a batch, and what is refused on the way, without sockets or executors."""

from __future__ import annotations

import time
from mmap import mmap
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.infer.calls import PEER, KnownCall, Turned
from tests.infer.ports import TWO, KnownServable, signature_of
from tests.infer.served import Served
from tests.protobuf_fields import field_of
from toutates.engine.result import BatchResult, Timing
from toutates.infer import observing, service
from toutates.infer.inflight import Inflight
from toutates.infer.observing import Observation, Sampling
from toutates.infer.reading import MAX_ID_BYTES
from toutates.protocol.grpc_service_pb2 import ModelInferRequest
from toutates.protocol.typed_contents import LARGE_MESSAGE_BYTES
from toutates.system.errors import (
    ExecutionFailed,
    InvalidRequest,
    MalformedMessage,
    ModelNotReady,
    Overloaded,
    QueueFull,
    TooLate,
    UnknownModel,
)

ONE = signature_of("A")
#: A field that no version of the message has: such a request is not scanned.
UNKNOWN = b"\xfa\x01\x01x"


def request(*inputs: str, rows: int = 1, first: int = 0, width: int = 4, **fields: Any) -> ModelInferRequest:
    """A request whose inputs are counted through."""
    message = ModelInferRequest(model_name="m", **fields)
    for name in inputs or ("A", "B"):
        message.inputs.add(name=name, datatype="INT32", shape=[rows, width])
        values = np.arange(first, first + rows * width, dtype=np.int32)
        message.raw_input_contents.append(values.tobytes())
        first += rows * width
    return message


def typed(*values: int, rows: int = 1, size: int = 4, **fields: Any) -> ModelInferRequest:
    message = ModelInferRequest(model_name="m", **fields)
    tensor = message.inputs.add(name="A", datatype="INT32", shape=[rows, size])
    tensor.contents.int_contents.extend(values)
    return message


# --- recognising


@pytest.mark.parametrize("ids", [("", "", "", ""), ("a", "b", "c", "d"), ("é", "é", "a", "long" * 99)])
@pytest.mark.parametrize("inputs", [("A",), ("A", "B"), ("B", "A")])
def test_a_kind_of_request_is_parsed_once_and_each_has_its_own_rows_and_id(
    ids: tuple[str, ...], inputs: tuple[str, ...]
) -> None:
    served = Served(signature_of(*sorted(inputs)))
    calls = [served.ask(request(*inputs, first=10 * at, id=one)) for at, one in enumerate(ids)]
    served.port.run()
    for at, (call, one) in enumerate(zip(calls, ids, strict=True)):
        assert call.response.id == one
        wanted = {
            name: [-number for number in range(10 * at + 4 * n, 10 * at + 4 * n + 4)] for n, name in enumerate(inputs)
        }
        assert call.values() == [wanted[name] for name in sorted(inputs)]
    assert served.service.counters.parsed == 1


SAYS: list[tuple[int | str, bool, bool]] = [
    (1, True, False), (1, False, False), (77, False, False), (300, False, True), (2**40 + 1, False, False),
    (2**64 - 1, False, False), ("one", True, False), ("two", False, False), ("t" * 128, False, True),
    ("", False, False),
]  # fmt: skip


def of_sequence(said: tuple[int | str, bool, bool], *inputs: str, first: int = 0, **fields: Any) -> ModelInferRequest:
    """A request as ``tritonclient`` writes it."""
    message = request(*inputs, first=first, **fields)
    identifier, message.parameters["sequence_start"].bool_param, message.parameters["sequence_end"].bool_param = said
    if isinstance(identifier, str):
        message.parameters["sequence_id"].string_param = identifier
    else:
        message.parameters["sequence_id"].int64_param = identifier - (2**64 if identifier >= 2**63 else 0)
    return message


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("inputs", [("A",), ("A", "B"), ("B", "A")])
def test_requests_of_all_sequences_are_of_one_kind_and_each_is_its_own(inputs: tuple[str, ...], packed: bool) -> None:
    served = Served(signature_of(*sorted(inputs)), packed=packed)
    for at, (said, identifier) in enumerate((said, one) for said in SAYS for one in ("", "a", "bb", "é")):
        message = of_sequence(said, *inputs, first=10 * at, id=identifier)
        message.parameters["timeout"].int64_param = 7
        served.ask(message)
        added = served.port.added[-1]
        about = served.port.consumer.about(added.context)
        assert about.identifier == identifier
        named = dict(zip(("sequence_id", "sequence_start", "sequence_end"), said, strict=True))
        assert about.parameters == {"timeout": 7, **named}
        assert served.port.consumer.sequence is not None
        assert served.port.consumer.sequence(added.context) == (*said, 7)
        given = [bytes(one) for one in added.inputs]
        rows = {name: np.arange(10 * at + 4 * n, 10 * at + 4 * n + 4, dtype=np.int32) for n, name in enumerate(inputs)}
        assert given == [rows[name].tobytes() for name in sorted(inputs)]
    # Ids that are not plainly ASCII are read by protobuf.
    assert served.service.counters.parsed == 1 + len(SAYS)


def test_a_request_without_a_sequence_is_of_another_kind() -> None:
    served = Served()
    for _ in range(3):
        served.ask(of_sequence((5, False, True)))
        assert served.port.consumer.about(served.port.added[-1].context).parameters["sequence_id"] == 5
        served.ask(request())
        assert served.port.consumer.about(served.port.added[-1].context).parameters == {}
    assert served.service.counters.parsed == 2


def test_parameters_with_names_alike_are_of_their_kind() -> None:
    served = Served()
    for _ in range(2):
        message = request()
        message.parameters["my_sequence_idea"].int64_param = 1
        served.ask(message)
    assert served.service.counters.parsed == 1 + 1  # the name holds one of the three, so it is read each time
    message = request()
    message.parameters["my_sequence_length"].int64_param = 1
    for _ in range(2):
        served.ask(message)
    assert served.service.counters.parsed == 1 + 1 + 1


def test_parameters_of_a_sequence_that_are_given_twice_or_oddly_are_read_by_protobuf() -> None:
    served = Served()
    entry = field_of(1, b"sequence_id"), field_of(2, b"\x10\x05")
    odd = [
        field_of(4, *entry) + field_of(4, entry[0], field_of(2, b"\x10\x06")),  # the last one counts
        field_of(4, entry[0], field_of(2, b"\x10\x09"), entry[0], field_of(2, b"\x10\x06")),
        field_of(4, field_of(2, b"\x10\x06"), entry[0]),
        field_of(4, entry[0], field_of(2, b"\x10\x05\x10\x06")),
        field_of(4, b"\x0a\x8b\x00sequence_id", field_of(2, b"\x10\x06")),
    ]
    served.ask(of_sequence((5, False, False)))
    for at, parameters in enumerate(odd):
        served.ask(request().SerializeToString() + parameters)
        assert served.port.consumer.about(served.port.added[-1].context).parameters["sequence_id"] == 6
        assert served.service.counters.parsed == 2 + at


@pytest.mark.parametrize("name", ["sequence_start", "sequence_end"])
def test_a_flag_is_true_for_each_value_but_zero(name: str) -> None:
    served = Served()
    known = of_sequence((5, False, False)).SerializeToString()
    served.ask(known)
    served.ask(known)
    key = field_of(1, name.encode())
    served.ask(known.replace(key + b"\x12\x02\x08\x00", key + b"\x12\x02\x08\x02"))
    assert served.port.consumer.about(served.port.added[-1].context).parameters[name] is True
    with pytest.raises(InvalidRequest, match=f"invalid value type for '{name}' parameter, expected bool_param."):
        served.ask(known.replace(key + b"\x12\x02\x08\x00", key + b"\x12\x02\x10\x00"))
    assert len(served.port.added) == 3


def test_a_call_waits_with_the_time_of_its_round() -> None:
    served = Served()
    for _ in range(3):
        served.ask(request())
    assert [added.context[3] for added in served.port.added] == [501, 502, 503]


@pytest.mark.parametrize("known", [False, True])
def test_contents_of_another_size_are_refused_by_name_and_harm_no_plan(known: bool) -> None:
    served = Served()
    if known:
        served.ask(request())
        served.ask(request())
    wrong = request(id="7")
    wrong.raw_input_contents[1] = bytes(17)
    expected = "[request id: 7] input byte size mismatch for input 'B' for model 'm'. Expected 16, got 17"
    assert served.refusal(wrong) == (InvalidRequest, expected)
    swapped = request("B", "A")
    swapped.raw_input_contents[0] = bytes(8)
    served.ask(request("B", "A"))
    served.ask(request("B", "A"))
    assert "'B'" in served.refusal(swapped)[1]
    assert served.port.counters.refused == 2
    parsed = served.service.counters.parsed
    served.ask(request("B", "A"))
    assert served.service.counters.parsed == parsed


def test_a_raw_content_too_many_is_passed_over_and_takes_no_plan() -> None:
    served = Served(ONE)
    more = request("A")
    more.raw_input_contents.append(b"more")
    for parsed, message in enumerate([more, more, request("A"), request("A"), more, request("A")], 1):
        served.ask(message)
        assert served.service.counters.parsed == (1, 2, 3, 3, 4, 4)[parsed - 1]
    assert [added.inputs for added in served.port.added] == [[np.arange(4, dtype=np.int32).tobytes()]] * 6


def test_requests_that_no_known_client_writes_are_parsed_each_time() -> None:
    served = Served(ONE)
    for _ in range(2):
        call = served.ask(request("A", id="x").SerializeToString() + UNKNOWN)
    served.port.run()
    assert (call.response.id, call.values()) == ("x", [[0, -1, -2, -3]])
    assert served.service.counters.parsed == 2


# --- kinds of contents


@pytest.mark.parametrize("large", [False, True])
def test_typed_contents_are_rows_like_raw_ones(large: bool) -> None:
    size = LARGE_MESSAGE_BYTES if large else 3
    served = Served(signature_of("A", shape=(-1,)))
    for _ in range(2):
        served.ask(typed(*range(size), size=size))
    assert [added.inputs for added in served.port.added] == [[np.arange(size, dtype=np.int32).tobytes()]] * 2
    refusal = served.refusal(typed(*range(size + 1), size=size, id="7"))
    assert refusal[0] is InvalidRequest
    assert refusal[1].startswith("[request id: 7] input byte size mismatch for input 'A'")
    assert served.port.counters.refused == 1


def test_typed_contents_for_no_rows_are_refused() -> None:
    served = Served(ONE, packed=False)
    assert "batch dimension is 0" in served.refusal(typed(1, 2, 3, 4, rows=0))[1]


@pytest.mark.parametrize("packed", [False, True])
def test_a_large_request_is_cut_and_its_rows_are_found(packed: bool) -> None:
    served = Served(signature_of("A", "B", shape=(-1,)), packed=packed)
    width = LARGE_MESSAGE_BYTES
    for first in (0, 5, 9):
        served.ask(request(rows=2, width=width, first=first))
        a, b = (np.frombuffer(bytes(memoryview(one).cast("B")), np.int32) for one in served.port.added[-1].inputs)
        np.testing.assert_array_equal(a, np.arange(first, first + 2 * width))
        np.testing.assert_array_equal(b, np.arange(first + 2 * width, first + 4 * width))
    assert served.service.counters.parsed == 1


@pytest.mark.parametrize("width", [0, 4, LARGE_MESSAGE_BYTES])
def test_the_first_large_request_of_a_kind_is_read_where_it_lies_too(width: int) -> None:
    served = Served(signature_of("A", "B", shape=(-1,)), packed=True)
    large, other = request("A", width=LARGE_MESSAGE_BYTES), request("B", width=width, first=7)
    large.MergeFrom(ModelInferRequest(inputs=other.inputs, raw_input_contents=other.raw_input_contents))
    data = large.SerializeToString()
    message: Any = mmap(-1, len(data))
    message[:] = data
    served.handle(KnownCall(message, 0, len(data)))
    assert [bytes(content) for content in served.port.added[0].inputs] == list(large.raw_input_contents)
    assert served.port.buffers == [message]
    assert served.service.counters.parsed == 1


@pytest.mark.parametrize("size", [LARGE_MESSAGE_BYTES, 10])
def test_what_is_no_request_is_malformed(size: int) -> None:
    served = Served()
    kind, text = served.refusal(b"\x0a\x01m" + b"\xff" * size)
    assert kind is MalformedMessage
    assert text.startswith("the message is not a ModelInferRequest: ")
    assert (served.service.counters.invalid, served.service.observer.seen) == (1, 1)


def test_too_many_fields_are_refused_before_they_are_read() -> None:
    served = Served()
    assert "fields" in served.refusal(request().SerializeToString() + b"\x40\x00" * 20_000)[1]
    assert (served.service.counters.invalid, served.service.counters.parsed) == (1, 0)


@pytest.mark.parametrize("batched", [False, True])
def test_rows_that_are_gathered_are_arrays_of_the_request_s_shape(batched: bool) -> None:
    served = Served(signature_of("A", "B", shape=(-1,) if batched else (2, -1), batched=batched), packed=False)
    for first in (0, 7):
        served.ask(request(rows=2, width=3, first=first))
    for first, added in zip((0, 7), served.port.added, strict=True):
        a, b = added.inputs
        assert a.tolist() == [list(range(first, first + 3)), list(range(first + 3, first + 6))]
        assert b.tolist() == [list(range(first + 6, first + 9)), list(range(first + 9, first + 12))]
        assert (added.rows, added.held_bytes) == (2 if batched else 1, 48)
    wrong = request(rows=2, width=3)
    wrong.raw_input_contents[1] = bytes(20)
    assert "Expected 24, got 20" in served.refusal(wrong)[1]
    assert served.service.counters.parsed == 2


def test_of_several_wrong_texts_the_last_is_named() -> None:
    served = Served(signature_of("A", "B", datatype="BYTES", shape=(1,)), packed=False)
    message = ModelInferRequest(model_name="m", id="7")
    for name in ("A", "B"):
        message.inputs.add(name=name, datatype="BYTES", shape=[1, 1])
        message.raw_input_contents.append(b"\x01\x00\x00\x00x")
    served.ask(message)
    served.ask(message)
    message.raw_input_contents[0] = message.raw_input_contents[1] = b"\x09\x00\x00\x00x"
    for refused in (1, 2):  # by its plan, and once more
        kind, text = served.refusal(message)
        assert kind is InvalidRequest
        assert text.startswith("[request id: 7] incomplete string data for inference input 'B' for model 'm'")
        assert served.port.counters.refused == refused
    assert served.service.counters.parsed == 1


def test_a_request_without_rows_is_gathered() -> None:
    served = Served(signature_of("A", shape=(0,)), packed=False)
    message = ModelInferRequest(model_name="m")
    message.inputs.add(name="A", datatype="INT32", shape=[0, 0])
    message.raw_input_contents.append(b"")
    for _ in range(3):
        served.ask(message)
        assert served.port.added[-1].rows == 0
        assert served.port.added[-1].inputs[0].shape == (0, 0)


# --- ids


@pytest.mark.parametrize("letter", ["x", "é"])
@pytest.mark.parametrize("more", [b"", UNKNOWN], ids=["scanned", "parsed"])
def test_an_id_has_as_many_bytes_as_it_may(letter: str, more: bytes) -> None:
    served = Served(ONE)
    longest = letter * (MAX_ID_BYTES // len(letter.encode()))
    for _ in range(2):
        served.ask(request("A", id=longest).SerializeToString() + more)
        error = f"the request's id has {MAX_ID_BYTES + 1} bytes, at most {MAX_ID_BYTES} are taken"
        assert served.refusal(request("A", id=longest + "x").SerializeToString() + more) == (InvalidRequest, error)
    served.port.run()
    assert served.service.counters.invalid == 2


# --- what is refused


def test_refusals_are_counted_by_what_is_known_of_them() -> None:
    served = Served()
    assert served.refusal(ModelInferRequest(model_name="n"))[0] is UnknownModel
    assert served.refusal(ModelInferRequest(model_name="m", model_version="x"))[0] is InvalidRequest
    assert served.refusal(ModelInferRequest(model_name="m"))[0] is InvalidRequest
    counters = served.service.counters
    assert (counters.unknown, counters.invalid, counters.parsed) == (1, 1, 3)
    assert served.port.counters.refused == 1
    assert served.service.observer.seen == 3


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("known", [0, 3])
def test_a_port_s_refusal_names_the_request_but_where_the_server_is_full(packed: bool, known: int) -> None:
    served = Served(packed=packed)
    for _ in range(known + 1):
        served.ask(request())
    port = served.port
    port.refusal = QueueFull("too many")
    assert served.refusal(request(id="7")) == (QueueFull, "[request id: 7] too many")
    port.refusal = ModelNotReady("gone")
    assert served.refusal(request()) == (ModelNotReady, "[request id: <id_unknown>] gone")
    port.refusal = Overloaded("full")
    assert served.refusal(request(id="7")) == (Overloaded, "full")
    assert (port.counters.overloaded, port.counters.refused) == (2, 1)
    assert served.service.observer.seen == 3


# --- the bound on requests in flight


def test_requests_in_flight_are_counted_until_they_are_answered_or_refused() -> None:
    inflight = Inflight(2, 8)
    served = Served(inflight=inflight)
    served.ask(request())
    assert served.refusal(ModelInferRequest(model_name="n"))[0] is UnknownModel
    assert inflight.count == 1
    served.ask(request())
    kind, text = served.refusal(request())
    assert kind is Overloaded
    assert "--max-inflight-requests is 8, 2 of them on the worker" in text
    assert served.service.counters.overloaded == 1
    assert (inflight.count, served.service.observer.seen) == (2, 2)
    served.port.run()
    assert inflight.count == 0
    served.ask(request())


def test_a_refusal_above_the_bound_is_observed_where_that_is_due_or_chosen() -> None:
    served = Served(inflight=Inflight(0, 0))
    seen: list[Observation] = []
    sampling = Sampling(seen.append)
    served.refusal(request())
    assert not seen
    chosen = served.service.observing_handler(sampling)
    with pytest.raises(Overloaded):
        chosen(served.call(request()))
    served.service.observer.sample(sampling, 1)
    served.refusal(request())
    assert [(one.error, one.arrival_ns) for one in seen] == [(Overloaded, 501), (Overloaded, 502)]
    assert seen[0].text == str(Inflight(0, 0).refusal())


# --- the model table


def test_a_new_table_is_seen_in_the_next_round_and_ports_of_what_is_gone_are_committed() -> None:
    served = Served()
    served.ask(request())
    served.ask(request())
    old_port, another = served.port, KnownServable(TWO, True)
    second = served.version_of(another, 2)
    served.table = served.table_of(served.version, second)
    served.handle(served.call(request()))  # in the round in which the table was looked at already
    assert (len(old_port.added), served.service.counters.parsed) == (3, 1)
    served.ask(request())
    assert (len(another.ports[0].added), served.service.counters.parsed) == (1, 2)
    served.ask(request(model_version="1"))
    assert (served.servable.ports, old_port.commits, len(old_port.added)) == ([old_port], 0, 4)
    served.table = served.table_of(second)
    served.service.let_go()
    assert (old_port.commits, another.ports[0].commits) == (1, 0)
    served.service.let_go()
    assert old_port.commits == 1
    assert served.refusal(request(model_version="1"))[0] is UnknownModel


def test_an_executor_hands_a_batch_over_to_the_worker() -> None:
    served = Served()
    call = served.ask(request())
    consumer = served.port.consumer
    served.port.consumer = type(consumer)(consumer.finish, consumer.finish, consumer.at_round_end)
    served.port.run()
    assert call.answer is None
    [callback] = served.worker.soon
    callback()
    assert call.answer is not None


# --- requests that are observed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Turned:
    clock = Turned()
    for module in (service, observing):
        monkeypatch.setattr(module, "time", clock)
    return clock


def watched(served: Served, interval: int = 1) -> list[Observation]:
    seen: list[Observation] = []
    served.service.observer.sample(Sampling(seen.append), interval)
    return seen


@pytest.mark.parametrize("packed", [False, True])
def test_an_observed_request_has_the_times_of_its_steps(clock: Turned, packed: bool) -> None:
    served = Served(packed=packed)
    seen = watched(served)
    for number in range(3):  # parsed, by the scan, by its layout
        call = served.ask(request(id="7"))
        observation = call.context
        assert (observation.arrival_ns, observation.found_ns, observation.copied_ns) == (501 + number, 1_000, 1_000)
        assert (observation.rows, observation.version, observation.request_id) == (1, served.version, "7")
        assert (observation.peer, observation.error) == (PEER, None)
        clock.now_ns = 3_000
        served.port.finish(None, TooLate("too late"))
        clock.now_ns = 1_000
    assert [(one.answered_ns, one.error, one.text) for one in seen] == [(3_000, TooLate, "too late")] * 3
    assert served.service.observer.under_way == 0


def test_requests_that_are_refused_or_meet_a_bug_are_observed_to_their_end(clock: Turned) -> None:
    served = Served()
    seen = watched(served)
    served.refusal(ModelInferRequest(model_name="n"))
    served.ask(request())
    served.port.added.clear()
    served.port.refusal = ValueError("a bug")
    with pytest.raises(ValueError, match="a bug"):
        served.ask(request())
    assert [one.error for one in seen] == [UnknownModel, ExecutionFailed]
    assert (seen[1].text, seen[0].answered_ns) == ("internal error", 1_000)


def test_as_many_requests_of_a_round_are_observed_as_are_due(clock: Turned) -> None:
    served = Served()
    seen = watched(served, 4)
    served.service.observer.count(8)
    served.worker.now_ns += 1
    calls = [served.call(request()) for _ in range(6)]
    for call in calls:
        served.handle(call)
    assert [call.context is not None for call in calls] == [True, True, True, False, False, False]
    served.port.run()
    assert len(seen) == 3


def test_a_call_that_is_chosen_is_observed_once(clock: Turned) -> None:
    served = Served()
    seen = watched(served)
    chosen = Sampling(seen.append)
    call: KnownCall = served.call(request())
    served.worker.now_ns += 1
    served.service.observing_handler(chosen)(call)
    served.port.run()
    assert seen == [seen[0]] * 2
    assert served.service.observer.under_way == 0


# --- versions with a latency target


@pytest.mark.parametrize("has_target", [True, False])
def test_what_answers_waited_for_the_worker_is_known_where_versions_have_a_target(has_target: bool) -> None:
    served = Served(ONE)
    turns = SimpleNamespace(has_target=has_target)
    served.table = served.table_of(served.version_of(served.servable, turns=turns))
    served.ask(request("A"))
    consumer = served.port.consumer
    done_ns = time.monotonic_ns() - 3_600 * 10**9
    pending: Any = [(added.context, 0, 1, None) for added in served.port.added]
    consumer.finish(BatchResult(pending, None, ExecutionFailed("no"), Timing(done_ns, done_ns, done_ns, done_ns)))
    assert consumer.around_ns(time.monotonic_ns()) == 0
    (callback,) = served.worker.soon
    callback()
    assert (consumer.around_ns(time.monotonic_ns()) > 0) is has_target


def test_what_a_worker_runs_itself_holds_up_what_comes_next() -> None:
    served = Served(ONE)
    turns = SimpleNamespace(has_target=True)
    served.table = served.table_of(served.version_of(served.servable, turns=turns))
    served.ask(request("A"))
    # The round began when the machine did.
    served.port.finish(None, ExecutionFailed("no"))
    assert served.port.consumer.around_ns(time.monotonic_ns()) > 0
