"""ModelInfer: what goes in, and that it comes out as ONNX Runtime computes it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest

from tests.e2e.models import DATATYPES, VERSIONS
from tests.e2e.process import ServerProcess, running
from tests.e2e.support import (
    Tensor,
    bytes_tensor,
    channel_to,
    grpc,
    infer,
    outputs_of,
    pb,
    refused,
    request,
    triton,
)


@pytest.fixture(scope="module")
def channel(server: ServerProcess) -> Iterator[Any]:
    with channel_to(server.address) as channel:
        yield channel


def run_directly(repository: Path, model: str, inputs: dict[str, npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    """The outputs of ONNX Runtime itself."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        str(repository / model / "1" / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )
    outputs: list[npt.NDArray[Any]] = session.run(None, inputs)
    return outputs


def ints(*shape: int) -> npt.NDArray[np.int32]:
    return np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)


def addsub_request(a: npt.NDArray[np.int32], b: npt.NDArray[np.int32], **fields: Any) -> Any:
    return request("addsub", Tensor.of("INPUT0", "INT32", a), Tensor.of("INPUT1", "INT32", b), **fields)


# --- datatypes

#: Bits of every kind: zeroes, ones, signs, infinities and NaNs where the type has them.
_PATTERN = bytes([0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 1, 2, 3, 4, 5, 6, 7, 8, 0x80, 0x7F])
_SIZES = {"BOOL": 1, "UINT8": 1, "INT8": 1, "UINT16": 2, "INT16": 2, "FP16": 2, "BF16": 2}
_SIZES |= {"UINT32": 4, "INT32": 4, "FP32": 4, "UINT64": 8, "INT64": 8, "FP64": 8}


def raw_of(datatype: str, elements: int) -> bytes:
    """Content of a tensor, of any bits that the datatype can have."""
    if datatype == "BYTES":
        texts = [b"", b"a", "ünïcode 模型".encode(), b"\0", b"x" * 300, b"line\nline", b"\xff\0", bytes(range(256))]
        return bytes_tensor(*[texts[at % len(texts)] for at in range(elements)])
    size = elements * _SIZES[datatype]
    if datatype == "BOOL":
        return bytes(at % 3 == 0 for at in range(size))
    return (_PATTERN * (size // len(_PATTERN) + 1))[:size]


@pytest.mark.parametrize("rows", [1, 3, 64])
@pytest.mark.parametrize("datatype", DATATYPES)
def test_raw_contents_of_every_datatype_come_back_bit_for_bit(channel: Any, datatype: str, rows: int) -> None:
    raw = raw_of(datatype, 4 * rows)
    for _ in range(2):  # the second one by the plan of the first
        response = infer(channel, request(f"identity_{datatype}", Tensor("INPUT", datatype, [rows, 4], raw)))
        [output] = response.outputs
        assert (output.name, output.datatype, list(output.shape)) == ("OUTPUT", datatype, [rows, 4])
        assert list(response.raw_output_contents) == [raw]


_TYPED: dict[str, tuple[str, list[Any]]] = {
    "BOOL": ("bool_contents", [True, False, True, True]),
    "UINT8": ("uint_contents", [0, 1, 255, 7]),
    "UINT16": ("uint_contents", [0, 1, 65535, 7]),
    "UINT32": ("uint_contents", [0, 1, 2**32 - 1, 7]),
    "UINT64": ("uint64_contents", [0, 1, 2**64 - 1, 7]),
    "INT8": ("int_contents", [0, -1, 127, -128]),
    "INT16": ("int_contents", [0, -1, 32767, -32768]),
    "INT32": ("int_contents", [0, -1, 2**31 - 1, -(2**31)]),
    "INT64": ("int64_contents", [0, -1, 2**63 - 1, -(2**63)]),
    "FP32": ("fp32_contents", [0.0, -1.5, np.inf, 1e-40]),
    "FP64": ("fp64_contents", [0.0, -1.5, -np.inf, 1e-310]),
    "BYTES": ("bytes_contents", [b"", b"\xff\0", "ü".encode(), b"\xfe" * 200 + b"\0"]),
}


@pytest.mark.parametrize("datatype", _TYPED)
def test_typed_contents_of_every_datatype_come_back_raw(channel: Any, datatype: str) -> None:
    field, values = _TYPED[datatype]
    message = request(f"identity_{datatype}", Tensor("INPUT", datatype, [1, 4], None))
    getattr(message.inputs[0].contents, field).extend(values)
    for _ in range(2):
        response = infer(channel, message)
        if datatype == "BYTES":
            assert response.raw_output_contents[0] == bytes_tensor(*values)
        else:
            np.testing.assert_array_equal(
                outputs_of(response)["OUTPUT"], np.array([values], np.dtype(DTYPES[datatype]))
            )


def test_large_typed_contents_come_back_raw(channel: Any) -> None:
    """Which are read without protobuf: numbers of fixed size have no limit of their own, others one that is named."""
    rows = 2_000
    numbers = np.arange(rows, dtype=np.float32)
    message = request("dynamic", Tensor("INPUT", "FP32", [1, 500_000], None))
    message.inputs[0].contents.fp32_contents.extend(np.tile(numbers, 250).tolist())
    np.testing.assert_array_equal(outputs_of(infer(channel, message))["OUTPUT"][0], -np.tile(numbers, 250))
    message = request("open", Tensor("INPUT", "INT32", [2, 10_000], None))
    message.inputs[0].contents.int_contents.extend(range(-10_000, 10_000))
    answer = outputs_of(infer(channel, message))["OUTPUT"]
    np.testing.assert_array_equal(answer.ravel(), -np.arange(-10_000, 10_000))
    message.inputs[0].contents.int_contents.extend([-1] * 100_000)
    status, text = refused(channel, message)
    assert status == "INVALID_ARGUMENT"
    assert "at most 524288 bytes of integers are taken in one request; send raw_input_contents instead" in text
    elements = [bytes([at % 256]) * 200 for at in range(240)]
    message = request("identity_BYTES", Tensor("INPUT", "BYTES", [60, 4], None))
    message.inputs[0].contents.bytes_contents.extend(elements)
    assert infer(channel, message).raw_output_contents[0] == bytes_tensor(*elements)


DTYPES = {"BOOL": "?", "UINT8": "u1", "UINT16": "u2", "UINT32": "u4", "UINT64": "u8", "INT8": "i1", "INT16": "i2"}
DTYPES |= {"INT32": "i4", "INT64": "i8", "FP32": "f4", "FP64": "f8"}


@pytest.mark.parametrize(("datatype", "value", "kept"), [("INT8", 0x181, -127), ("UINT16", 0x12345, 0x2345)])
def test_typed_contents_of_small_integers_keep_the_low_bytes(
    channel: Any, datatype: str, value: int, kept: int
) -> None:
    message = request(f"identity_{datatype}", Tensor("INPUT", datatype, [1, 4], None))
    getattr(message.inputs[0].contents, _TYPED[datatype][0]).extend([value] * 4)
    assert outputs_of(infer(channel, message))["OUTPUT"].tolist() == [[kept] * 4]


def test_typed_contents_of_several_inputs_go_to_their_own_inputs(channel: Any) -> None:
    message = request("addsub", Tensor("INPUT1", "INT32", [2, 16], None), Tensor("INPUT0", "INT32", [2, 16], None))
    message.inputs[0].contents.int_contents.extend([1] * 32)
    message.inputs[1].contents.int_contents.extend(range(32))
    outputs = outputs_of(infer(channel, message))
    np.testing.assert_array_equal(outputs["OUTPUT1"], ints(2, 16) - 1)


def test_numpy_arrays_of_tritonclient_come_back(server: ServerProcess) -> None:
    rng = np.random.default_rng(5)
    arrays: list[tuple[str, npt.NDArray[Any]]] = [
        ("FP16", rng.normal(size=(2, 4)).astype(np.float16)),
        ("BOOL", np.array([[True, False, True, False]])),
        ("INT64", np.array([[-(2**63), 0, 1, 2**63 - 1]])),
        ("BYTES", np.array([["a", "", "ü", "b"]], np.object_)),
    ]
    with triton.InferenceServerClient(server.address) as client:
        for datatype, array in arrays:
            tensor = triton.InferInput("INPUT", list(array.shape), datatype)
            tensor.set_data_from_numpy(array)
            output = client.infer(f"identity_{datatype}", [tensor]).as_numpy("OUTPUT")
            if datatype == "BYTES":
                output = np.array([[element.decode() for element in output[0]]], np.object_)
            np.testing.assert_array_equal(output, array)


def test_bytes_of_tritonclient_that_are_no_text_come_back(server: ServerProcess) -> None:
    """Such as images and protobuf messages, which numpy's fixed-length bytes cannot carry."""
    elements = [b"\xff\xd8\xff\xe0\0\0", b"\0", bytes(range(256)) * 40, b"\x80" * 15]
    array = np.empty((1, 4), np.object_)
    array[0] = elements
    tensor = triton.InferInput("INPUT", [1, 4], "BYTES")
    tensor.set_data_from_numpy(array)
    with triton.InferenceServerClient(server.address) as client:
        assert client.infer("identity_BYTES", [tensor]).as_numpy("OUTPUT")[0].tolist() == elements


def test_bfloat16_of_tritonclient_comes_back(server: ServerProcess) -> None:
    import ml_dtypes

    array = np.array([[1.5, -2.0, 0.0, 3.0]]).astype(ml_dtypes.bfloat16)
    tensor = triton.InferInput("INPUT", [1, 4], "BF16")
    tensor.set_data_from_numpy(array)
    with triton.InferenceServerClient(server.address) as client:
        output = client.infer("identity_BF16", [tensor]).as_numpy("OUTPUT")
    np.testing.assert_array_equal(output.astype(np.float32), array.astype(np.float32))


def test_outputs_are_those_of_onnx_runtime_bit_for_bit(channel: Any, repository: Path) -> None:
    rng = np.random.default_rng(7)
    for rows in (1, 2, 5, 64):
        values = rng.normal(size=(rows, 64)).astype(np.float32)
        [expected] = run_directly(repository, "mlp", {"INPUT": values})
        response = infer(channel, request("mlp", Tensor.of("INPUT", "FP32", values)))
        assert response.raw_output_contents[0] == expected.tobytes()


# --- requested outputs


def test_all_outputs_are_returned_sorted_by_name_when_none_is_asked_for(channel: Any) -> None:
    response = infer(channel, addsub_request(ints(2, 16), ints(2, 16)))
    assert [output.name for output in response.outputs] == ["OUTPUT0", "OUTPUT1"]
    outputs = outputs_of(response)
    np.testing.assert_array_equal(outputs["OUTPUT0"], 2 * ints(2, 16))
    np.testing.assert_array_equal(outputs["OUTPUT1"], 0 * ints(2, 16))
    assert not response.parameters
    assert not any(output.parameters or output.HasField("contents") for output in response.outputs)


@pytest.mark.parametrize(
    ("asked", "returned"),
    [
        (["OUTPUT1", "OUTPUT0"], ["OUTPUT0", "OUTPUT1"]),
        (["OUTPUT1"], ["OUTPUT1"]),
        (["OUTPUT0"], ["OUTPUT0"]),
    ],
)
def test_outputs_asked_for_are_returned_sorted_by_name(channel: Any, asked: list[str], returned: list[str]) -> None:
    for rows in (1, 20):  # the latter is split over batches and joined
        a, b = ints(rows, 16), 3 * ints(rows, 16)
        response = infer(channel, addsub_request(a, b, outputs=asked))
        assert [output.name for output in response.outputs] == returned
        for name, values in outputs_of(response).items():
            np.testing.assert_array_equal(values, a + b if name == "OUTPUT0" else a - b)


def test_inputs_in_another_order_than_the_models_find_their_place(channel: Any) -> None:
    a, b = ints(2, 16), 5 * ints(2, 16)
    for _ in range(2):
        message = request("addsub", Tensor.of("INPUT1", "INT32", b), Tensor.of("INPUT0", "INT32", a))
        np.testing.assert_array_equal(outputs_of(infer(channel, message))["OUTPUT1"], a - b)


def test_surplus_raw_contents_are_ignored(channel: Any) -> None:
    a, b = ints(1, 16), 2 * ints(1, 16)
    for surplus in (b"", b"12345678"):
        message = addsub_request(a, b)
        message.raw_input_contents.append(surplus)
        np.testing.assert_array_equal(outputs_of(infer(channel, message))["OUTPUT1"], a - b)


def test_parameters_that_triton_knows_are_accepted(channel: Any) -> None:
    message = addsub_request(ints(1, 16), ints(1, 16))
    message.parameters["triton_enable_empty_final_response"].bool_param = False
    message.parameters["sequence_id"].int64_param = 0
    message.parameters["sequence_start"].bool_param = True
    message.parameters["sequence_end"].bool_param = True
    message.parameters["priority"].uint64_param = 3
    message.parameters["timeout"].int64_param = 1_000_000
    message.parameters["mine"].string_param = "x"
    message.parameters["mine_too"].double_param = 0.5
    assert len(infer(channel, message).outputs) == 2


# --- id


@pytest.mark.parametrize("identifier", ["", "1", "ünïcode-模型", "x" * 127, "x" * 128, "é" * 100, "x" * 65_000])
def test_id_is_echoed(channel: Any, identifier: str) -> None:
    for message in (
        addsub_request(ints(1, 16), ints(1, 16), id=identifier),
        addsub_request(ints(20, 16), ints(20, 16), id=identifier),
        request("identity_BYTES", Tensor("INPUT", "BYTES", [1, 4], raw_of("BYTES", 4)), id=identifier),
    ):
        for _ in range(2):
            assert infer(channel, message).id == identifier


def test_each_of_many_requests_of_a_batch_gets_its_own_id(channel: Any) -> None:
    futures = [
        channel.unary_unary("/inference.GRPCInferenceService/ModelInfer").future(
            addsub_request(ints(1, 16) + at, ints(1, 16), id=f"id-{at}").SerializeToString(), timeout=120
        )
        for at in range(24)
    ]
    for at, future in enumerate(futures):
        response = pb.ModelInferResponse.FromString(future.result())
        assert response.id == f"id-{at}"
        np.testing.assert_array_equal(outputs_of(response)["OUTPUT1"], np.full((1, 16), at))


# --- versions


@pytest.mark.parametrize(
    ("asked", "used"), [("", 10), ("1", 1), ("2", 2), ("10", 10), ("1abc", 1), (" 2", 2), ("+2", 2), ("2.9", 2)]
)
def test_version_asked_for_answers_and_the_newest_by_default(channel: Any, asked: str, used: int) -> None:
    message = request("versions", Tensor.of("INPUT", "INT32", ints(1, 4)), model_version=asked)
    for _ in range(2):
        response = infer(channel, message)
        assert response.model_name == "versions"
        assert response.model_version == str(used)
        np.testing.assert_array_equal(outputs_of(response)["OUTPUT"], ints(1, 4) + used)


def test_versions_answer_side_by_side(channel: Any) -> None:
    def ask(at: int) -> int:
        version = VERSIONS[at % len(VERSIONS)]
        values = np.full((1, 4), at, np.int32)
        message = request("versions", Tensor.of("INPUT", "INT32", values), model_version=str(version))
        return int(outputs_of(infer(channel, message))["OUTPUT"][0, 0]) - at - version

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, range(60))) == {0}


# --- shapes


def test_scalars_go_in_and_out(channel: Any) -> None:
    for value in (1.5, [2.5]):
        response = infer(channel, request("scalar", Tensor.of("INPUT", "FP32", value)))
        np.testing.assert_array_equal(
            outputs_of(response)["OUTPUT"], -np.array(value, np.float32).reshape(1), strict=True
        )


def test_models_without_a_batch_dimension_take_whole_shapes(channel: Any) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    response = infer(channel, request("fixed", Tensor.of("INPUT", "FP32", values)))
    np.testing.assert_array_equal(outputs_of(response)["OUTPUT"], -values)
    for columns in (1, 7, 7, 0, 300):
        response = infer(channel, request("open", Tensor.of("INPUT", "INT32", ints(2, columns))))
        np.testing.assert_array_equal(outputs_of(response)["OUTPUT"], -ints(2, columns))


def test_texts_without_a_batch_dimension_come_back(channel: Any) -> None:
    raw = bytes_tensor(b"a\xff\0", b"", b"\x89PNG\r\n\x1a\n" * 9 + b"\0")
    response = infer(channel, request("texts", Tensor("INPUT", "BYTES", [3], raw)))
    assert list(response.outputs[0].shape) == [3]
    assert response.raw_output_contents[0] == raw


@pytest.mark.parametrize("rows", [1, 5])
def test_rows_without_dimensions_are_shown_as_rows_of_one(channel: Any, rows: int) -> None:
    response = infer(channel, request("rank1", Tensor.of("INPUT", "INT32", ints(rows, 1))))
    np.testing.assert_array_equal(outputs_of(response)["OUTPUT"], -ints(rows, 1))


@pytest.mark.parametrize("shape", [(1, 0), (3, 0), (0, 0)])
def test_tensors_without_elements_go_in_and_out(channel: Any, shape: tuple[int, int]) -> None:
    for _ in range(2):
        response = infer(channel, request("dynamic", Tensor.of("INPUT", "FP32", np.zeros(shape))))
        assert list(response.outputs[0].shape) == list(shape)
        assert list(response.raw_output_contents) == [b""]


def test_classes_of_no_elements_are_none(channel: Any) -> None:
    for shape in ((2, 0), (0, 0)):
        message = request("dynamic", Tensor.of("INPUT", "FP32", np.zeros(shape)), outputs=["OUTPUT"])
        message.outputs[0].parameters["classification"].int64_param = 3
        response = infer(channel, message)
        assert list(response.outputs[0].shape) == [shape[0], 0]
        assert list(response.raw_output_contents) == [b""]


def test_rows_of_many_lengths_at_once_are_answered_each_with_its_own_length(channel: Any) -> None:
    def ask(at: int) -> bool:
        values = np.full((1 + at % 3, 1 + at % 17), at, np.float32)
        response = infer(channel, request("dynamic", Tensor.of("INPUT", "FP32", values)))
        return bool(np.array_equal(outputs_of(response)["OUTPUT"], -values))

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(200)))


@pytest.mark.parametrize("order", [["INPUT", "bias"], ["bias", "INPUT"]])
def test_optional_inputs_are_given_or_left_out(channel: Any, order: list[str]) -> None:
    values = {"INPUT": ints(4), "bias": np.full(4, 3, np.int32)}
    for _ in range(2):
        response = infer(channel, request("optional", Tensor.of("INPUT", "INT32", values["INPUT"])))
        np.testing.assert_array_equal(outputs_of(response)["OUTPUT"], ints(4) + 10)
        response = infer(channel, request("optional", *[Tensor.of(name, "INT32", values[name]) for name in order]))
        np.testing.assert_array_equal(outputs_of(response)["OUTPUT"], ints(4) + 3)


def test_rows_that_differ_from_batch_to_batch_are_not_joined_to_nonsense(channel: Any) -> None:
    same = np.full((3, 4), 2, np.int64)  # three rows take two batches
    response = infer(channel, request("ragged", Tensor.of("INPUT", "INT64", same)))
    np.testing.assert_array_equal(outputs_of(response)["OUTPUT"], same[:, :2])
    unlike = np.array([[1] * 4, [1] * 4, [3] * 4])
    with pytest.raises(grpc.RpcError) as caught:
        infer(channel, request("ragged", Tensor.of("INPUT", "INT64", unlike)))
    assert caught.value.code().name == "INTERNAL"
    assert "have shapes that depend on their batch" in caught.value.details()


# --- classification


def classes_of(
    channel: Any, model: str, count: int, values: Any, datatype: str = "FP32"
) -> tuple[list[int], list[bytes]]:
    """Shape and elements of the classes of OUTPUT."""
    message = request(model, Tensor.of("INPUT", datatype, values), outputs=["OUTPUT"])
    message.outputs[0].parameters["classification"].int64_param = count
    response = infer(channel, message)
    [output] = response.outputs
    assert (output.name, output.datatype) == ("OUTPUT", "BYTES")
    elements: list[bytes] = []
    raw = response.raw_output_contents[0]
    while raw:
        size = int.from_bytes(raw[:4], "little")
        elements.append(raw[4 : 4 + size])
        raw = raw[4 + size :]
    return list(output.shape), elements


def test_classes_are_values_and_indices_greatest_first(channel: Any) -> None:
    values = [[1, 4, 2, 3], [0.5, -1, 0.25, 0]]
    for _ in range(2):
        assert classes_of(channel, "identity_FP32", 2, values) == (
            [2, 2],
            [b"4.000000:1", b"3.000000:3", b"0.500000:0", b"0.250000:2"],
        )


def test_classes_of_equal_values_are_ordered_by_index(channel: Any) -> None:
    assert classes_of(channel, "identity_FP32", 3, [[7, 9, 7, 9]])[1] == [b"9.000000:1", b"9.000000:3", b"7.000000:0"]


def test_classes_are_at_most_as_many_as_there_are_values(channel: Any) -> None:
    assert classes_of(channel, "identity_INT32", 100, [[3, 1, 2, -1]], "INT32") == (
        [1, 4],
        [b"3:0", b"2:2", b"1:1", b"-1:3"],
    )


def test_classes_of_integers_at_the_ends_of_their_range_are_ordered(channel: Any) -> None:
    assert classes_of(channel, "identity_UINT64", 4, [[0, 2**64 - 1, 1, 2**63]], "UINT64")[1] == [
        b"18446744073709551615:1",
        b"9223372036854775808:3",
        b"1:2",
        b"0:0",
    ]


def test_classes_without_a_batch_dimension_have_one_dimension(channel: Any) -> None:
    values = -np.array([[1, 6, 2], [3, 5, 4]], np.float32)
    assert classes_of(channel, "fixed", 2, values) == ([2], [b"6.000000:1", b"5.000000:4"])


def test_classes_of_a_request_split_over_batches_are_joined(channel: Any) -> None:
    rows = 200  # of 64 in a batch
    values = np.tile(np.arange(4, dtype=np.float32), (rows, 1)) + np.arange(rows, dtype=np.float32)[:, None]
    shape, elements = classes_of(channel, "identity_FP32", 1, values)
    assert shape == [rows, 1]
    assert elements == [f"{at + 3:f}:3".encode() for at in range(rows)]


def test_one_output_may_ask_for_classes_and_another_for_numbers(channel: Any) -> None:
    message = addsub_request(ints(1, 16), 0 * ints(1, 16), outputs=["OUTPUT1", "OUTPUT0"])
    message.outputs[0].parameters["classification"].int64_param = 1
    response = infer(channel, message)
    assert [(output.name, output.datatype) for output in response.outputs] == [
        ("OUTPUT0", "INT32"),
        ("OUTPUT1", "BYTES"),
    ]
    assert response.raw_output_contents[0] == ints(1, 16).tobytes()
    assert response.raw_output_contents[1] == bytes_tensor(b"15:15")


# --- sizes and compression


def test_requests_of_one_length_and_many_kinds_are_told_apart(channel: Any) -> None:
    # By names, ids, the order of inputs and the rows that their contents are divided into; all bytes but few alike.
    a, b = ints(1, 16), ints(1, 16) + 100
    kinds = {
        "id 12": (addsub_request(a, b, id="12"), "SUM", a + b),
        "id 34": (addsub_request(b, b, id="34"), "SUM", b + b),
        "not an id": (addsub_request(a, b, id="ää"[:1]), "SUM", a + b),
        "another order": (
            request("addsub", Tensor.of("INPUT1", "INT32", a), Tensor.of("INPUT0", "INT32", b), id="56"),
            "DIFF",
            b - a,
        ),
    }
    names = {"SUM": "OUTPUT0", "DIFF": "OUTPUT1"}
    assert len({len(message.SerializeToString()) for message, _, _ in kinds.values()}) == 1
    for _ in range(3):
        for message, output, expected in kinds.values():
            response = infer(channel, message)
            assert response.id == message.id
            np.testing.assert_array_equal(outputs_of(response)[names[output]], expected)


def test_requests_whose_metadata_and_deadline_change_with_each_call_are_answered(channel: Any) -> None:
    message = addsub_request(ints(1, 16), ints(1, 16))
    for number in range(300):
        trace = [("traceparent", f"00-{number:032x}-01"), (f"x-{number % 7}", "v" * number)]
        response = infer(channel, message, metadata=trace, timeout=120 + number / 1_000)
        np.testing.assert_array_equal(outputs_of(response)["OUTPUT0"], 2 * ints(1, 16))


def test_requests_too_long_to_be_remembered_are_answered(channel: Any) -> None:
    message = addsub_request(ints(1, 16), ints(1, 16))
    message.parameters["mine"].string_param = "x" * 100_000
    for _ in range(3):
        np.testing.assert_array_equal(outputs_of(infer(channel, message))["OUTPUT0"], 2 * ints(1, 16))


#: A server whose greatest response is small, since the real limit takes gigabytes to reach.
_SMALL_RESPONSES = """
import sys
import toutates.infer.answers, toutates.infer.plan
toutates.infer.answers.MAX_RESPONSE_BYTES = 1_000
toutates.infer.plan.MAX_TEMPLATED_BYTES = 500
from toutates.command.main import main
sys.exit(main())
"""


def test_a_response_above_the_limit_of_grpc_is_refused(repository: Path, tmp_path: Path) -> None:
    with (
        running(
            repository, tmp_path, ["--load-models", "dynamic,addsub"], module=("tests.e2e.coded", _SMALL_RESPONSES)
        ) as process,
        channel_to(process.address) as channel,
    ):
        for columns in (100, 180, 230):  # by a template, and by the way that looks at the size
            values = np.arange(columns, dtype=np.float32).reshape(1, -1)
            response = infer(channel, request("dynamic", Tensor.of("INPUT", "FP32", values)))
            assert response.raw_output_contents[0] == (-values).tobytes()
        for message, size in (
            (request("dynamic", Tensor.of("INPUT", "FP32", np.zeros((1, 300)))), 1236),
            (addsub_request(ints(9, 16), ints(9, 16), id="7"), 1216),  # joined from two batches
        ):
            assert refused(channel, message) == (
                "INVALID_ARGUMENT",
                f"Response has byte size {size} which exceeds gRPC's byte size limit 1000.",
            )
        assert process.stop() == 0


def test_a_tensor_of_a_hundred_megabytes_goes_in_and_out(channel: Any) -> None:
    values = np.arange(25_000_000, dtype=np.float32).reshape(1, -1)
    response = infer(channel, request("dynamic", Tensor("INPUT", "FP32", values.shape, values.tobytes())))
    np.testing.assert_array_equal(outputs_of(response)["OUTPUT"], -values)


@pytest.mark.parametrize("compression", ["Gzip", "Deflate"])
def test_compressed_requests_are_answered(channel: Any, compression: str) -> None:
    for rows in (1, 64):
        message = request("identity_INT32", Tensor.of("INPUT", "INT32", ints(rows, 4)))
        for _ in range(3):
            response = infer(channel, message, compression=getattr(grpc.Compression, compression))
            np.testing.assert_array_equal(outputs_of(response)["OUTPUT"], ints(rows, 4))
