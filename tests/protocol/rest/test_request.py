"""Infer requests in JSON, with and without binary data: what is read, and what is refused in which words."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from tests.cpu_time import lines_run
from tests.protocol.rest.support import LIMIT, TARGET, by_form, compact, read, read_cut, refusal, tensor
from toutates.protocol.rest.cutting import cut
from toutates.protocol.rest.parameters import matching_fields
from toutates.protocol.rest.request import Target, read_request
from toutates.system.errors import InvalidRequest, RequestError

NUMBERS = list(range(1, 17))
INT32 = np.arange(1, 17, dtype=np.int32).tobytes()


def simple(first: dict[str, Any] | None = None, **members: Any) -> dict[str, Any]:
    """A request for two inputs of sixteen INT32, whose first one is given."""
    second = tensor("INPUT1", "INT32", [1, 16], NUMBERS)
    return {"inputs": [first or tensor("INPUT0", "INT32", [1, 16], NUMBERS), second], **members}


# --- what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [NUMBERS, [NUMBERS], [NUMBERS[:8], NUMBERS[8:]], [[[[NUMBERS[:1]]], *NUMBERS[1:]]]])
def test_the_nesting_of_data_does_not_matter(data: list[Any]) -> None:
    request = read(simple(tensor("INPUT0", "INT32", [1, 16], data)))
    assert request.contents == [INT32, INT32]
    assert [list(tensor.shape) for tensor in request.message.inputs] == [[1, 16], [1, 16]]


def test_data_fifty_deep_is_read() -> None:
    data: list[Any] = NUMBERS
    for _ in range(49):
        data = [data]
    assert read(simple(tensor("INPUT0", "INT32", [1, 16], data))).contents[0] == INT32


@pytest.mark.parametrize(
    ("datatype", "data", "expected"),
    [
        ("BOOL", [True, False], b"\x01\x00"),
        ("INT8", [-128, 127], b"\x80\x7f"),
        ("INT8", [300, -129], b"\x2c\x7f"),
        ("UINT8", [255, 256], b"\xff\x00"),
        ("INT16", [-2, 70_000], b"\xfe\xff\x70\x11"),
        ("UINT16", [65_535, 65_536], b"\xff\xff\x00\x00"),
        ("INT32", [2**31 - 1, 2**31], b"\xff\xff\xff\x7f\x00\x00\x00\x80"),
        ("UINT32", [2**32 - 1, 2**32], b"\xff\xff\xff\xff\x00\x00\x00\x00"),
        ("INT64", [-(2**63), 2**63 - 1], b"\0\0\0\0\0\0\0\x80\xff\xff\xff\xff\xff\xff\xff\x7f"),
        ("UINT64", [0, 2**64 - 1], b"\0\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff"),
        ("FP64", [0.1, 2**70], np.array([0.1, 2.0**70]).tobytes()),
        ("FP32", [3.4028235e38, -3.4028235e38], np.array([3.4028235e38, -3.4028235e38], np.float32).tobytes()),
        ("FP32", [3.4028235677973e38, 2**127], np.array([3.4028235e38, 2.0**127], np.float32).tobytes()),
        ("FP16", [1.5, 65_519], np.array([1.5, 65_504], np.float16).tobytes()),
        ("BF16", [1, -2.5], b"\x80\x3f\x20\xc0"),
        ("BF16", [1 + 2**-8, 1 + 3 * 2**-8], b"\x80\x3f\x82\x3f"),  # halves go to the even one
        ("BYTES", ["\u00e9", ""], b"\x02\0\0\0\xc3\xa9\0\0\0\0"),
        ("BYTES", ['a]"', "\\}{["], b'\x03\0\0\0a]"\x04\0\0\0\\}{['),
    ],
)
def test_every_datatype_is_read(datatype: str, data: list[Any], expected: bytes) -> None:
    assert read({"inputs": [tensor("x", datatype, [2], data)]}).contents == [expected]
    assert read({"inputs": [tensor("x", datatype, [2, 1], [[item] for item in data])]}).contents == [expected]


@pytest.mark.parametrize(
    ("datatype", "number", "shown"),
    [
        ("FP32", b"1e39", "1e+39"),
        ("FP32", b"-3.4028236e38", "-3.4028236e+38"),
        ("FP32", b"1" + b"0" * 39, "1e+39"),
        ("FP16", b"65520", "65520.0"),
        ("FP16", b"-1e300", "-1e+300"),
        ("BF16", b"3.4028235e38", "3.4028235e+38"),
        ("BF16", b"1e39", "1e+39"),
    ],
)
@pytest.mark.parametrize("count", [3, 3_000, 70_000])
@pytest.mark.parametrize("nested", [False, True])
def test_a_finite_number_that_would_become_infinite_is_refused_with_its_place(
    datatype: str, number: bytes, shown: str, count: int, nested: bool
) -> None:
    last = count - 1
    data = [b"[1]" if nested else b"1"] * count
    data[0] = b"[Infinity]" if nested else b"Infinity"
    data[last] = b"[%b]" % number if nested else number
    shape = [count, 1] if nested else [count]
    text = compact({"inputs": [tensor("x", datatype, shape, [0])]}).replace(b"[0]", b"[%b]" % b",".join(data))
    said = f"input 'x': element {last} of the data, {shown}, is beyond the range of {datatype}; infinity is written"
    with pytest.raises(InvalidRequest, match=re.escape(said)):
        (read if count < 16_384 else read_cut)(text)


@pytest.mark.parametrize("word", [b"NaN", b"Inf", b"Infinity", b"-Inf", b"-Infinity"])
@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64", "BF16"])
def test_words_for_numbers_that_json_lacks_are_read(word: bytes, datatype: str) -> None:
    text = compact({"inputs": [tensor("x", datatype, [2], [1, 2])]}).replace(b"[1,2]", b"[1, %b]" % word)
    content = bytes(read(text).contents[0])
    size = len(content) // 2
    if datatype == "BF16":
        content = b"\0\0" + content[:2] + b"\0\0" + content[2:]
        size = 4
    values = np.frombuffer(content, {2: np.float16, 4: np.float32, 8: np.float64}[size])
    expected = np.array([1, float(word)])
    np.testing.assert_array_equal(values, expected)


def test_a_word_for_a_number_within_a_string_is_text() -> None:
    assert read(b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":["Inf"]}],"z":Inf}').contents == [
        b"\x03\0\0\0Inf"
    ]


def test_binary_data_is_taken_in_the_order_of_the_inputs() -> None:
    request = read(
        {
            "inputs": [
                tensor("a", "INT32", [1, 16], binary_data_size=64),
                tensor("b", "INT32", [1, 16], NUMBERS),
                tensor("c", "UINT8", [0], binary_data_size=0),
                tensor("d", "UINT8", [3], binary_data_size=3),
            ]
        },
        INT32 + b"abc",
    )
    assert [bytes(content) for content in request.contents] == [INT32, INT32, b"", b"abc"]


def test_data_of_an_empty_tensor_is_not_looked_at() -> None:
    request = read({"inputs": [tensor("x", "FP32", [0, 4], "nothing")]})
    assert request.contents == [b""]
    assert request.key is None


def test_unknown_members_and_second_ones_are_passed_over() -> None:
    text = (
        b'{"model_name":"y","inputs":[{"name":"x","name":"z","datatype":"UINT8","shape":[2],"shape":[3],'
        b'"data":[1,2],"data":[3,4],"more":{"data":[5]}}],"id":"1","id":2}'
    )
    request = read(text)
    assert request.message.id == "1"
    assert [(found.name, list(found.shape)) for found in request.message.inputs] == [("x", [2])]
    assert request.contents == [b"\x01\x02"]
    assert request.key is None


def test_parameters_keep_their_types() -> None:
    parameters = {"a": 1, "b": "text", "c": True, "d": 1.5, "e": 2**63, "f": -1}
    message = read(simple(parameters=parameters)).message
    found = {key: (value.WhichOneof("parameter_choice"), value) for key, value in message.parameters.items()}
    assert {key: kind for key, (kind, _) in found.items()} == {
        "a": "int64_param",
        "b": "string_param",
        "c": "bool_param",
        "d": "double_param",
        "e": "double_param",
        "f": "int64_param",
    }
    assert found["e"][1].double_param == 2.0**63


def test_parameters_of_triton_become_those_of_the_message() -> None:
    parameters = {"sequence_id": 2**64 - 1, "sequence_start": True, "priority": 2**64 - 1, "timeout": 2**64 - 1}
    message = read(simple(parameters={**parameters, "binary_data_output": True})).message
    assert message.parameters["sequence_id"].int64_param == -1
    assert message.parameters["sequence_start"].bool_param
    assert message.parameters["priority"].uint64_param == 2**64 - 1
    assert message.parameters["timeout"].int64_param == 2**63 - 1
    assert "binary_data_output" not in message.parameters
    message = read(simple(parameters={"sequence_id": "s" * 128})).message
    assert message.parameters["sequence_id"].string_param == "s" * 128


def test_outputs_are_json_unless_they_are_asked_for_as_binary_data() -> None:
    outputs = [{"name": "a", "parameters": {"binary_data": True}}, {"name": "b"}]
    forms = read(simple(outputs=outputs)).form.outputs
    assert [forms.is_binary(name) for name in "ab"] == [True, False]
    assert not read(simple()).form.outputs.is_binary("a")
    assert read(simple(parameters={"binary_data_output": True})).form.outputs.is_binary("a")
    listed = read(simple(parameters={"binary_data_output": True}, outputs=[{"name": "a"}])).form.outputs
    assert not listed.is_binary("a")


def test_classes_are_asked_for_by_a_positive_number() -> None:
    outputs = [{"name": name, "parameters": {"classification": count}} for name, count in (("a", 3), ("b", 0))]
    message = read(simple(outputs=outputs)).message
    assert message.outputs[0].parameters["classification"].int64_param == 3
    assert "classification" not in message.outputs[1].parameters


def test_a_tensor_in_shared_memory_becomes_that_of_the_message() -> None:
    region = {"shared_memory_region": "r", "shared_memory_offset": 8}
    request = read(
        {"inputs": [tensor("x", "FP32", [1], **region)], "outputs": [{"name": "y", "parameters": dict(region)}]}
    )
    for parameters in (request.message.inputs[0].parameters, request.message.outputs[0].parameters):
        assert parameters["shared_memory_region"].string_param == "r"
        assert parameters["shared_memory_byte_size"].int64_param == 0
        assert parameters["shared_memory_offset"].int64_param == 8
    assert request.contents == []


def test_forwarded_header_fields_become_parameters() -> None:
    target = Target("simple", "", LIMIT, [("MY_Header2", '"quoted"\\x')])
    assert read(simple(), target=target).message.parameters["MY_Header2"].string_param == '"quoted"\\x'


def test_header_fields_are_chosen_by_a_part_of_their_name() -> None:
    fields = [("my_header1", "a"), ("X-MY_HEADER2", "b"), ("other", "my_header")]
    assert matching_fields(re.compile("my_header.*", re.IGNORECASE), fields) == fields[:2]


@pytest.mark.parametrize("name", ["triton_x", "priority", "headers", "binary_data_output"])
def test_a_header_field_cannot_be_a_parameter_of_the_server(name: str) -> None:
    assert refusal(simple(), target=Target("simple", "", LIMIT, [(name, "1")])) == (
        "InvalidRequest",
        f"Header '{name}' is reserved for Triton usage and cannot be forwarded.",
    )


# --- by a form that is known -----------------------------------------------------------------------------------------


def test_requests_that_differ_in_id_and_data_are_of_one_key() -> None:
    known = read({"id": "1", "inputs": [tensor("x", "FP32", [2], [1, 2]), tensor("y", "BYTES", [1], ["a"])]})
    other = {"id": "a longer one", "inputs": [tensor("x", "FP32", [2], [[0.5], [7]]), tensor("y", "BYTES", [1], ["]"])]}
    assert by_form(known, compact(other)) == (
        [np.array([0.5, 7], np.float32).tobytes(), b"\x01\0\0\0]"],
        b"a longer one",
    )


@pytest.mark.parametrize(
    "text",
    [
        b'{"inputs":[{"data":[1,2],"name":"x]}","datatype":"UINT8","shape":[2]}]}',
        b'{"inputs":[{"name":"x]}","datatype":"UINT8","shape":[2],"data":[1,2]}],"outputs":[]}',
        b'{"outputs":[],"inputs":[{"name":"x]}","datatype":"UINT8","shape":[2],"data": [1,2] }]}',
        b'{"inputs":[{"shape":[2],"data":[[1],[2]],"name":"x","datatype":"UINT8"}],"id": "7"}',
        b'{"id":"7","inputs":[{"shape":[2],"data":[1,2],"name":"x","datatype":"UINT8"},'
        b'{"shape":[2],"data":["]}",""],"name":"y","datatype":"BYTES"}],"outputs":[{"name":"y"}]}',
    ],
)
def test_a_key_is_found_wherever_the_data_stands(text: bytes) -> None:
    request = read(text)
    assert request.key is not None
    assert request.contents[0] == b"\x01\x02"


def test_binary_data_is_found_where_it_is() -> None:
    document = {"id": "7", "inputs": [tensor("x", "INT32", [1, 16], binary_data_size=64)]}
    known = read(document, INT32)
    assert known.key is not None
    assert b"7" not in known.key
    other = compact({**document, "id": "88"})
    assert by_form(known, other, INT32[::-1]) == ([INT32[::-1]], b"88")
    assert by_form(known, other, INT32[1:]) is None
    assert by_form(known, other, INT32 + b"1") is None


def test_requests_of_all_sequences_are_of_one_kind() -> None:
    data = {"inputs": [tensor("x", "UINT8", [1], [7])]}

    def of_sequence(identifier: int | str, start: bool, end: bool, **more: Any) -> dict[str, Any]:
        named = {"sequence_id": identifier, "sequence_start": start, "sequence_end": end}
        return {**more, **data, "parameters": {**named, "binary_data_output": True}}

    known = read(of_sequence(5, True, False, id="a"))
    assert known.key is not None
    for said in ((5, True, False), (10**18, False, True), ("text, not a number", False, False), (0, True, True)):
        document = compact(of_sequence(*said, id="bb"))
        assert by_form(known, document) == ([b"\x07"], b"bb")
        for text in (document, json.dumps(of_sequence(*said, id="bb")).encode()):
            found = cut(text, 0, len(text))
            assert found is not None
            assert found[4] == said
            assert known.form.layout(b"", found, text, len(text)) is None
    # What a parser has to look at, each time: numbers of 20 digits, escape sequences, wide letters.
    for identifier in (2**64 - 1, 'a"b', "\u00e9"):
        assert read(of_sequence(identifier, True, False)).key is None


@pytest.mark.parametrize(
    "text",
    [
        b'{"inputs":[{"name":"x","shape":[1],"datatype":"UINT8","data":[7],"parameters":{"sequence_id":5}}]}',
        b'{"parameters":{"sequence_id":5},"inputs":[{"name":"x","shape":[1],"datatype":"UINT8","data":[7],'
        b'"parameters":{"sequence_end":false}}]}',
        b'{"parameters":{"sequence_id":5,"sequence_id":5},"inputs":[{"name":"x","shape":[1],"datatype":"UINT8",'
        b'"data":[7]}]}',
        b'{"parameters":{"sequence_id":5,"sequence_start":true},"parameters":{"sequence_end":true},'
        b'"inputs":[{"name":"x","shape":[1],"datatype":"UINT8","data":[7]}]}',
        b'{"parameters":{"sequence_id" :5},"inputs":[{"name":"x","shape":[1],"datatype":"UINT8","data":[7]}]}',
    ],
)
def test_what_only_looks_like_a_sequence_is_not_remembered(text: bytes) -> None:
    assert read(text).key is None


def test_a_layout_finds_what_requests_without_an_id_differ_in() -> None:
    text = b'{"inputs":[{"name":"x","datatype":"UINT8","shape":[2],"data":[1,2]}],"outputs":[]}'
    form, found = read(text).form, cut(text, 0, len(text))
    assert found is not None
    layout = form.layout(b"k", found, text, len(text))
    assert layout is not None
    assert (layout.key, layout.head + b"1,2" + layout.tail) == (b"k", text)
    assert layout.read(text.replace(b"[1,2]", b"[[3],[4]]")) == b"\x03\x04"
    for spoiled in (
        b"[1]",
        b'[1,2],"data":[1,2]',
        b"",
        b"[1,2",
        b'[1,"2"]',
        b"[1],[2]",
        b"[1],2",
        b"[[1],[2",
        b"[[1,2]3",
        b"[1[,]2]",
    ):
        assert layout.read(text.replace(b"[1,2]", spoiled)) is None
    assert layout.read(text + b" ") is None
    assert layout.read(layout.head) is None


def test_there_is_no_layout_with_an_id_or_several_arrays() -> None:
    data = [tensor("x", "UINT8", [1], [1])]
    with_id, two = {"id": "7", "inputs": data}, {"inputs": [*data, tensor("y", "UINT8", [1], [1])]}
    for document in (with_id, two, {"inputs": [tensor("x", "BYTES", [1], ["a"])]}):
        text = compact(document)
        found = cut(text, 0, len(text))
        assert found is not None
        assert read(text).form.layout(b"", found, text, len(text)) is None


@pytest.mark.parametrize(
    "spoiled",
    [
        b"[1]",
        b"[1,2,3]",
        b"[]",
        b"[1,]",
        b"[1 2]",
        b"[1,,2]",
        b"[[1,2]",
        b"[1],[2]",
        b"[[1],[2]]]",
        b"[[1][2]]",
        b"[[],1,2]",
        b"[1 [],2]",
        b"[1,true]",
        b"[1,null]",
        b"[1,01]",
        b'[1,"2"]',
        b"[1,{}]",
        b"[1,nan]",
        b"[1,1e999]",
    ],
)
def test_an_array_that_is_odd_is_left_to_the_long_way(spoiled: bytes) -> None:
    document = compact({"inputs": [tensor("x", "FP32", [2], [1, 2])]})
    known = read(document)
    assert known.key is not None
    assert by_form(known, document.replace(b"[1,2]", spoiled)) is None


@pytest.mark.parametrize(
    "text",
    [
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data" :[2]}],"more":{"data":[1]}}',
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"d\\u0061ta":[2]}],"more":{"data":[1]}}',
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[2]}],"parameters":{"id":"x"}}',
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[2]}],"id":1,"parameters":{"id":"x"}}'.replace(
            b'"id":1', b'"id" :"x"'
        ),
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[2]}],"parameters":{"id":""}}',
    ],
)
def test_a_key_is_not_remembered_where_the_cut_may_be_wrong(text: bytes) -> None:
    request = read(text)
    assert request.key is None
    assert request.contents == [np.float32(2).tobytes()]


def test_an_id_that_is_not_plain_is_still_returned() -> None:
    request = read({"id": '\u00e9"\\\x01', **simple()})
    assert request.message.id == '\u00e9"\\\x01'
    assert request.identifier == b'\xc3\xa9\\"\\\\\\u0001'
    assert request.key is None


@pytest.mark.parametrize("data", [b"[300,NaN]", b"[NaN,1]", b"[Inf,1]"])
def test_an_array_of_integers_has_no_words(data: bytes) -> None:
    text = compact({"inputs": [tensor("x", "INT64", [2], [1, 2])]}).replace(b"[1,2]", data)
    assert refusal(text)[1].endswith("attempt to access JSON non-signed-integer as signed-integer")


def test_an_id_beyond_ascii_does_not_keep_a_large_array_from_being_read() -> None:
    text = '{"id":"\u00e9","inputs":[{"name":"x","datatype":"UINT8","shape":[20000],"data":[%s]}]}'
    document = (text % ",".join(["7"] * 20_000)).encode()
    request = read_cut(document)
    assert request.contents == [b"\x07" * 20_000]
    assert request.identifier == "\u00e9".encode()


def test_large_arrays_are_read_in_pieces() -> None:
    values = np.random.default_rng(1).standard_normal((3, 50, 400)).astype(np.float32)
    document = compact({"inputs": [tensor("x", "FP32", [3, 50, 400], values.tolist())]})
    request = read_cut(document)
    assert request.contents == [values.tobytes()]
    pauses: list[None] = []
    found = cut(document, 0, len(document))
    assert found is not None
    result = request.form.read(found, document, len(document), len(document), lambda: pauses.append(None))
    assert result == (values.tobytes(), (0, values.nbytes))
    assert len(pauses) > 10


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        (b"[1,", b"[", "Failed to parse 'data' field: shape does not match true shape"),
        (b"[1,", b"[1,1,", "Unable to parse 'data': Shape does not match true shape of 'data' field"),
        (b"7,7,7", b"7,true,7", "Unable to parse 'data': attempt to access JSON non-number as double"),
        (b"7,7,7", b"7,,7", "the request's JSON has more than 16384 values"),
    ],
)
def test_mistakes_in_large_arrays_are_told(old: bytes, new: bytes, error: str) -> None:
    document = compact({"inputs": [tensor("x", "FP32", [40_000], [1] + [7] * 39_999)]})
    with pytest.raises(RequestError, match=re.escape(error)):
        read_cut(document.replace(old, new, 1))


def test_numbers_that_json_lacks_are_read_in_large_arrays_too() -> None:
    document = compact({"inputs": [tensor("x", "FP32", [40_000], [7] * 40_000)]}).replace(b"7]", b"-Inf]")
    values = np.frombuffer(read_cut(document).contents[0], np.float32)
    assert (values[0], values[-1]) == (7, -np.inf)


@pytest.mark.parametrize(
    "number", ["5e-324", "1.5E-310", "-1.7976931348623157e308", "1.2345678901234567e-0300", "1e+299"]
)
def test_numbers_near_the_ends_of_a_double_are_read_in_arrays_of_any_length(number: str) -> None:
    for count in (1, 600, 20_000):
        text = compact({"inputs": [tensor("x", "FP64", [count], 0)]})
        document = text.replace(b":0}", f":[{','.join([number] * count)}]}}".encode())
        assert read_cut(document).contents == [np.full(count, float(number)).tobytes()]


def test_a_mistake_beside_a_number_near_the_end_of_a_double_is_told() -> None:
    document = compact({"inputs": [tensor("x", "FP32", [40_000], [7] * 40_000)]}).replace(b"[7,7", b"[1e-300,true", 1)
    with pytest.raises(RequestError, match="Unable to parse 'data': attempt to access JSON non-number as double"):
        read_cut(document)


def test_many_rows_of_an_array_that_is_as_deep_as_it_may_be_are_read() -> None:
    rows = ",".join(["[" * 99 + "1" + "]" * 99] * 4)
    text = compact({"inputs": [tensor("x", "INT32", [4], 0)]})
    assert read(text.replace(b":0}", f":[{rows}]}}".encode())).contents == [np.ones(4, np.int32).tobytes()]
    kind, found = refusal(text.replace(b":0}", f":[[{rows}]]}}".encode()))
    assert (kind, found.endswith("exceeds maximum allowed limit (100)")) == ("InvalidRequest", True)


# --- what is refused -------------------------------------------------------------------------------------------------

VALUES_OF_NO_TYPE: tuple[Any, ...] = ({}, [], None)
ONE_FIELD = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But "
)


def one(datatype: str = "INT32", shape: Any = None, data: Any = None, **parameters: Any) -> dict[str, Any]:
    return {"inputs": [tensor("x", datatype, [2] if shape is None else shape, data, **parameters)]}


@pytest.mark.parametrize(
    ("document", "kind", "text"),
    [
        ({}, 500, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        ([], 500, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        ({"inputs": {}}, 500, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
        ({"inputs": [1]}, 500, "Unable to parse 'name': attempt to access non-existing object member 'name'"),
        ({"id": 1}, 500, "Unable to parse 'id': attempt to access JSON non-string as string"),
        ({"id": None}, 500, "Unable to parse 'id': attempt to access JSON non-string as string"),
        ({"parameters": []}, 500, "failed to get request params.: attempt to get members for non-object"),
        ({"parameters": {"sequence_id": 1.5}}, 500, "Unable to parse 'sequence_id': attempt to access JSON "),
        (
            {"parameters": {"sequence_start": 1}},
            500,
            "Unable to parse 'sequence_start': attempt to access JSON non-bool",
        ),
        ({"parameters": {"priority": -1}}, 500, "Unable to parse 'priority': attempt to access JSON non-unsigned-"),
        ({"parameters": {"timeout": "1"}}, 500, "Unable to parse 'timeout': attempt to access JSON non-unsigned-"),
        (
            {"parameters": {"binary_data_output": 1}},
            500,
            "Unable to parse 'binary_data_output': attempt to access JSON",
        ),
        (
            {"parameters": {"sequence_id": "s" * 129}},
            501,
            "string correlation ID cannot be longer than 128 characters",
        ),
        *(
            (
                {"parameters": {key: True}},
                400,
                "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
            )
            for key in ("triton_x", "triton_enable_empty_final_response")
        ),
        *(
            (
                {"parameters": {"z": value}},
                400,
                "parameter 'z' has invalid type. It should be either 'int', 'bool', or 'string'.",
            )
            for value in VALUES_OF_NO_TYPE
        ),
        (
            one(shape=[2, -5], data=[1]),
            500,
            "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (
            one(shape=[2, -5], binary_data_size=8),
            500,
            "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (one(shape=[2.0], data=[1]), 500, "Unable to parse 'shape': attempt to access JSON non-unsigned-integer"),
        (one(shape=2, data=[1]), 500, "Unable to parse 'shape': attempt to access JSON non-array as array"),
        (
            {"inputs": [{"name": "x", "shape": [1]}]},
            500,
            "Unable to parse 'datatype': attempt to access non-existing object member 'datatype'",
        ),
        (one(), 400, ONE_FIELD + "no field is set"),
        (one(data=[1, 2], binary_data_size=8), 400, ONE_FIELD + "set 'data' 'binary_data_size'"),
        (
            one(data=[1], shared_memory_region="r", binary_data_size=8),
            400,
            ONE_FIELD + "set 'data' 'binary_data_size' 'shared_memory_region'",
        ),
        (one(binary_data_size="8"), 500, "Unable to parse 'binary_data_size': attempt to access JSON non-unsigned-"),
        (one(binary_data_size=-1), 500, "Unable to parse 'binary_data_size': attempt to access JSON non-unsigned-"),
        (
            one(shared_memory_region="r", shared_memory_offset=-1),
            500,
            "Unable to parse 'shared_memory_offset': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (one(data=5), 500, "Unable to parse 'data': attempt to access JSON non-array as array"),
        (one(data={}), 500, "Unable to parse 'data': attempt to access JSON non-array as array"),
        (one(data=[1]), 500, "Failed to parse 'data' field: shape does not match true shape"),
        (one(data=[1, 2, 3]), 500, "Unable to parse 'data': Shape does not match true shape of 'data' field"),
        (one(data=[]), 500, "Failed to parse 'data' field: shape does not match true shape"),
        (
            one(data=[1, 2.0]),
            500,
            "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer",
        ),
        (one(data=[1, 2**63]), 500, "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-int"),
        (one("UINT8", data=[1, -1]), 500, "Unable to parse 'data': attempt to access JSON non-unsigned-integer as"),
        (one("UINT64", data=[1, 2**64]), 500, "Unable to parse 'data': attempt to access JSON non-unsigned-integer"),
        (one("BOOL", data=[1, 0]), 500, "Unable to parse 'data': attempt to access JSON non-boolean as boolean"),
        (one("FP32", data=[1, None]), 500, "Unable to parse 'data': attempt to access JSON non-number as double"),
        (one("FP32", data=[1, True]), 500, "Unable to parse 'data': attempt to access JSON non-number as double"),
        (
            one("BYTES", data=["a", 1]),
            500,
            "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
        ),
        (
            {"id": "i", **one("BYTES", shape=[16], data=["a"] * 17)},
            400,
            "[request id: i] expected 16 string elements for inference input 'x' for model 'simple', got 17",
        ),
        (
            one("BYTES", shape=[16], data=["a"] * 15),
            400,
            "[request id: <id_unknown>] expected 16 string elements for inference input 'x' for model 'simple', got 15",
        ),
        (one("FP8", data=[1, 2]), 400, "invalid datatype for input x"),
        (
            one(shape=[16, 2**60 + 2], data=[1]),
            400,
            "invalid shape for input 'x': shape [16,1152921504606846978] causes total element count to exceed maximum "
            "size of 9223372036854775807",
        ),
        (
            one(shape=[4, 2**60 + 2], data=[1]),
            400,
            "byte size overflow for input 'x': element count (4611686018427387912) * data type size (4) exceeds "
            "maximum allowed size (9223372036854775807)",
        ),
        (
            one(shape=[2**63], data=[1]),
            400,
            "invalid shape for input 'x': shape [9223372036854775808] contains one or more invalid dimensions",
        ),
        (
            one("FP64", shape=[2**23 + 1], data=[1]),
            400,
            f"JSON input 'x' has a byte_size (67108872 bytes) that exceeds the maximum allowed value of {LIMIT} bytes. "
            "Use --http-max-input-size to increase the limit.",
        ),
        (
            {"id": "i", "inputs": [tensor("x", "UINT8", [1], [1])] * 2},
            400,
            "[request id: i] input 'x' already exists in request",
        ),
        ({"inputs": [], "outputs": 1}, 500, "Unable to parse 'outputs': attempt to access JSON non-array as array"),
        ({"inputs": [], "outputs": [{}]}, 500, "Unable to parse 'name': attempt to access non-existing object member"),
        (
            {"inputs": [], "outputs": [{"name": "y"}, {"name": "y"}]},
            400,
            "[request id: <id_unknown>] output 'y' already exists in request",
        ),
        (
            {"inputs": [], "outputs": [{"name": "y", "parameters": {"binary_data": 1}}]},
            500,
            "Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean",
        ),
        (
            {"inputs": [], "outputs": [{"name": "y", "parameters": {"classification": -1}}]},
            500,
            "Unable to set 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (
            {
                "inputs": [],
                "outputs": [{"name": "y", "parameters": {"classification": 1, "shared_memory_region": "r"}}],
            },
            400,
            "Output can't set both 'shared_memory_region' and 'classification'",
        ),
        (
            {
                "inputs": [],
                "outputs": [{"name": "y", "parameters": {"binary_data": True, "shared_memory_region": "r"}}],
            },
            400,
            "Output can't set both 'shared_memory_region' and 'binary_data'",
        ),
    ],
)
def test_mistakes_are_told_in_tritons_words(document: Any, kind: int, text: str) -> None:
    error, found = refusal(document)
    assert found.startswith(text)
    assert error == {400: "InvalidRequest", 500: "MalformedMessage", 501: "Unsupported"}[kind]


@pytest.mark.parametrize("depth", [100, 120, 5_000])
def test_data_that_is_too_deep_is_refused(depth: int) -> None:
    for datatype, item in (("INT32", "1"), ("BYTES", '"a"')):
        text = compact(one(datatype, shape=[1], data=0)).replace(
            b"0}", b"[" * (depth + 1) + item.encode() + b"]" * (depth + 1) + b"}"
        )
        kind, found = refusal(text)
        assert kind == "InvalidRequest"
        assert found.endswith("JSON nesting depth exceeds maximum allowed limit (100)")


def test_a_parameter_that_no_double_holds_is_refused() -> None:
    kind, found = refusal({"parameters": {"far": 10**400}, **simple()})
    assert kind == "MalformedMessage"
    assert found == "parameter 'far': Number too big to be stored in double."


def test_binary_data_is_counted() -> None:
    document = {"inputs": [tensor(name, "INT32", [1, 16], binary_data_size=64) for name in ("INPUT0", "INPUT1")]}
    assert refusal(document, INT32 + INT32[4:]) == (
        "InvalidRequest",
        "unexpected size for input 'INPUT1', expecting 4 additional bytes for model 'simple'",
    )
    assert refusal(document, INT32 * 2 + b"1234") == (
        "InvalidRequest",
        "unexpected additional input data for model 'simple'",
    )


def test_json_of_exactly_the_limit_passes() -> None:
    text = compact(one(data=[1, 2]))
    assert read(text, target=Target("simple", "", len(text))).contents
    assert refusal(text + b" ", target=Target("simple", "", len(text))) == (
        "InvalidRequest",
        f"request JSON size of {len(text) + 1} bytes exceeds the maximum allowed input size of {len(text)} bytes. "
        "Use --http-max-input-size to increase the limit.",
    )


def test_strings_count_against_the_limit() -> None:
    text = compact({"inputs": [tensor("x", "BYTES", [300], [""] * 300)]})
    assert len(text) < 1_199
    assert refusal(text, target=Target("simple", "", 1_199))[1].startswith(
        "JSON input 'x' has a byte_size (1200 bytes) "
    )


def test_the_message_has_the_model_and_the_version() -> None:
    message = read(simple(), target=Target("m", "3", LIMIT)).message
    assert (message.model_name, message.model_version) == ("m", "3")


def test_the_work_for_many_inputs_grows_with_their_number_alone() -> None:
    def lines(inputs: int) -> int:
        body = compact({"inputs": [tensor(f"i{number}", "INT32", [1], [1]) for number in range(inputs)]})
        return lines_run(lambda: read_request(body, 0, len(body), len(body), TARGET))

    assert lines(800) <= 4 * lines(200)
