"""Counting a request's fields before it is parsed, and that what passes costs in proportion to its size."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import pytest

from tests.cpu_time import least_cpu_s, lines_run
from tests.infer_messages import MANY, MODEL, RAW, entry, tensor
from tests.protobuf_fields import field_of as field
from toutates.infer.scanning import scan
from toutates.infer.structure import MAX_FIELDS, check_structure
from toutates.infer.validation import validate
from toutates.protocol.datatypes import BY_NAME, typed_contents_to_raw
from toutates.protocol.grpc_service_pb2 import ModelInferRequest
from toutates.protocol.parsing import parse
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.errors import InvalidRequest, RequestError

WIDE: Final = Signature(
    inputs=tuple(TensorSpec(f"in{number}", BY_NAME["FP32"], (-1,)) for number in range(500)),
    outputs=(TensorSpec("out", BY_NAME["FP32"], (-1,)),),
    batched=True,
)


#: What there may be any number of: the caller's data, and text.
DATA: Final[dict[str, Callable[[int], bytes]]] = {
    "packed floats": lambda count: MODEL + tensor(field(5, field(6, bytes(4 * count)))),
    "floats one by one": lambda count: MODEL + tensor(field(5, b"\x35\x00\x00\x00\x00" * count)),
    "packed numbers": lambda count: MODEL + tensor(field(5, field(2, b"\xff" * 9 * count))),
    "numbers one by one": lambda count: MODEL + tensor(field(5, b"\x10\x01" * count)),
    "strings": lambda count: MODEL + tensor(field(5, b"\x42\x00" * count)),
    "raw content": lambda count: MODEL + tensor() + field(7, bytes(count)),
    "contents many times": lambda count: MODEL + tensor(field(5) * min(count, MAX_FIELDS // 2)),
    "a long name": lambda count: field(1, b"m" * count) + tensor() + RAW,
    "a long name of an input": lambda count: MODEL + tensor(name=b"x" * count) + RAW,
    "a long version": lambda count: MODEL + field(2, b"1" * count) + tensor() + RAW,
    "a long id": lambda count: MODEL + field(3, b"i" * count) + tensor() + RAW,
    "a long datatype": lambda count: MODEL + field(5, field(1, b"in0"), field(2, b"F" * count)) + RAW,
    "a long parameter": lambda count: MODEL + tensor() + RAW + entry(b"k" * count),
}


@pytest.mark.parametrize("message_of", MANY.values(), ids=MANY.keys())
def test_fields_are_counted_whatever_they_are(message_of: Callable[[int], bytes]) -> None:
    check(message_of(MAX_FIELDS - 20))
    with pytest.raises(InvalidRequest, match="more than 16384 fields and dimensions besides the contents"):
        check(message_of(MAX_FIELDS + 20))


@pytest.mark.parametrize("message_of", DATA.values(), ids=DATA.keys())
def test_data_and_text_are_not_counted(message_of: Callable[[int], bytes]) -> None:
    check(message_of(10 * MAX_FIELDS))


def check(message: bytes) -> None:
    # As it lies in a connection's buffer, among others.
    check_structure(b"\xff" + message + b"\x40\x00" * MAX_FIELDS, 1, 1 + len(message))


@pytest.mark.parametrize(
    "broken",
    [
        b"\x0a",
        b"\x0a\x05abc",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x47",
        b"\x46",
        b"\xff" * 20,
        field(5, b"\x1a\x7f"),
        field(5, b"\x0a\xff"),
        b"\x08",
        b"\x2a\x80",
    ],
)
def test_what_is_malformed_is_left_to_protobuf(broken: bytes) -> None:
    check_structure(MODEL + broken, 0, len(MODEL + broken))


def judge(message: bytes) -> None:
    """A request that nothing is known of, as the service judges it."""
    try:
        check_structure(message, 0, len(message))
        scan(message, 0, len(message))
        request = parse(ModelInferRequest, message)
        validated = validate(request, [len(raw) for raw in request.raw_input_contents], WIDE, "m")
        for at, source in enumerate(validated.sources):
            if source is None:
                typed_contents_to_raw(request.inputs[at].contents, BY_NAME["FP32"], tensor="in0", model="m")
    except RequestError:
        pass


@pytest.mark.parametrize("message_of", [*MANY.values(), *DATA.values()], ids=[*MANY, *DATA])
def test_twice_the_fields_are_twice_the_work(message_of: Callable[[int], bytes]) -> None:
    few, many = (message_of(size) for size in (MAX_FIELDS // 8, MAX_FIELDS // 4))
    assert lines_run(lambda: judge(many)) <= 2.1 * lines_run(lambda: judge(few))


@pytest.mark.alone  # protobuf is written in C, and so are searches in texts
@pytest.mark.parametrize("message_of", [*MANY.values(), *DATA.values()], ids=[*MANY, *DATA])
def test_twice_the_fields_never_cost_four_times_the_time(message_of: Callable[[int], bytes]) -> None:
    smallest, *larger = [message_of(size) for size in (MAX_FIELDS // 4, MAX_FIELDS // 2, MAX_FIELDS - 100)]
    # No less than what a clock can tell.
    cost_s = max(least_cpu_s(lambda: judge(smallest), times=3), 0.001)
    for message in larger:
        most_s, cost_s = 3.5 * cost_s, max(least_cpu_s(partial(judge, message), times=9), 0.001)
        assert cost_s < most_s


@pytest.mark.parametrize("message_of", MANY.values(), ids=MANY.keys())
def test_a_message_of_megabytes_of_fields_is_refused_before_it_is_read(message_of: Callable[[int], bytes]) -> None:
    few, many = message_of(2 * MAX_FIELDS), message_of(10 * MAX_FIELDS)
    assert lines_run(lambda: judge(many)) <= lines_run(lambda: judge(few))
