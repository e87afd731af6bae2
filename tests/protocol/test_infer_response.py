"""Responses as protobuf reads them, and classes as a naive implementation finds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hypothesis_numpy

from toutates.protocol import infer_response
from toutates.protocol.grpc_service_pb2 import ModelInferRequest, ModelInferResponse
from toutates.protocol.infer_response import WireTensor, build_template, classify, write_response
from toutates.system.errors import InvalidRequest

names = st.text(max_size=20)
tensors = st.lists(
    st.tuples(
        st.builds(WireTensor, names, names, st.lists(st.integers(0, 2**63 - 1), max_size=4).map(tuple)),
        st.one_of(st.binary(max_size=20), st.integers(120, 70_000).map(bytes)),
    ),
    max_size=3,
)


def response(
    model: str, version: str, identifier: str, outputs: Sequence[tuple[WireTensor, bytes]]
) -> ModelInferResponse:
    """The same as protobuf writes it."""
    message = ModelInferResponse(model_name=model, model_version=version, id=identifier)
    for tensor, content in outputs:
        message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        message.raw_output_contents.append(content)
    return message


def id_field(identifier: str) -> bytes:
    return ModelInferRequest(id=identifier).SerializeToString()


@given(names, names, names, tensors)
def test_templated_response_is_what_protobuf_writes(
    model: str, version: str, identifier: str, outputs: list[tuple[WireTensor, bytes]]
) -> None:
    sizes = [len(content) for _, content in outputs]
    template = build_template(model, version, [tensor for tensor, _ in outputs], list(range(len(outputs))), sizes)
    contents = [content for _, content in outputs]
    parts = [template.before, id_field(identifier), template.after]
    if template.single >= 0:
        assert (len(outputs), template.single_size) == (1, sizes[template.single])
        parts.append(contents[template.single])
    else:
        for part in template.outputs:
            parts += [part.head, contents[part.index]]
    data = b"".join(parts)
    assert len(data) == template.length + len(id_field(identifier))
    assert data == response(model, version, identifier, outputs).SerializeToString()


@given(names, names, names, tensors)
def test_written_response_is_what_protobuf_writes(
    model: str, version: str, identifier: str, outputs: list[tuple[WireTensor, bytes]]
) -> None:
    pieces = write_response(
        model,
        version,
        id_field(identifier),
        [tensor for tensor, _ in outputs],
        [memoryview(content) for _, content in outputs],
    )
    assert b"".join(pieces) == response(model, version, identifier, outputs).SerializeToString()


# --- classes


def naive_classes(values: npt.NDArray[Any], count: int) -> list[list[str]]:
    """Row by row, value by value."""
    rows: list[list[str]] = []
    for row in values:
        best = sorted(range(len(row)), key=lambda at: (-row[at].item(), at))[:count]
        if row.dtype.kind == "f":
            rows.append([f"{row[at].item():f}:{at}" for at in best])
        else:
            rows.append([f"{row[at].item()}:{at}" for at in best])
    return rows


@given(
    st.data(),
    st.sampled_from([np.float32, np.float64, np.int8, np.uint8, np.int16, np.int64, np.uint64]),
    st.tuples(st.integers(0, 4), st.integers(0, 9)),
    st.integers(1, 12),
)
def test_classes_are_those_of_a_naive_implementation(
    data: st.DataObject, dtype: npt.DTypeLike, shape: tuple[int, int], count: int
) -> None:
    kind = np.dtype(dtype)
    # Few different values, so that many are equal; and the ends of the range.
    ends = [0, 1] if kind.kind == "f" else [np.iinfo(kind).min, np.iinfo(kind).max, 0, 1]
    elements: st.SearchStrategy[Any] = st.sampled_from(ends)
    if kind.kind == "f":
        elements |= st.floats(allow_nan=False, width=32)
    values = data.draw(hypothesis_numpy.arrays(kind, shape, elements=elements))
    classes = classify(values, count)
    assert classes.shape == (shape[0], min(count, shape[1]))
    assert classes.tolist() == naive_classes(values, count)


def test_classes_of_too_many_values_are_refused() -> None:
    assert classify(np.zeros((1, 1_000_000), np.int8), 1).tolist() == [["0:0"]]
    with pytest.raises(InvalidRequest, match="classification output tensor too large"):
        classify(np.zeros((1, 1_000_001), np.int8), 1)


@given(st.data())
def test_the_greatest_of_many_are_those_that_a_whole_sort_finds(data: st.DataObject) -> None:
    """NaN is greatest; of equal values, and of NaN, the first."""
    elements = st.sampled_from([0.0, -0.0, 1.5, -2.0, np.inf, -np.inf, np.nan])
    row = np.array(data.draw(st.lists(elements, min_size=1, max_size=12)), np.float32)
    count = data.draw(st.integers(1, len(row)))
    assert classify(row[None], count).tolist() == classify(row[None], len(row))[:, :count].tolist()


def test_more_classes_than_a_worker_has_time_for_are_refused_by_the_limit() -> None:
    most = infer_response.MAX_CLASSES
    assert classify(np.zeros((2, most), np.int8), most // 2).shape == (2, most // 2)
    with pytest.raises(InvalidRequest, match=f"2 rows by {most} classes is too large, at most {most} classes"):
        classify(np.zeros((2, most), np.int8), most)
    with pytest.raises(InvalidRequest, match="at most 131072 values of more than 64 rows are sorted; send fewer rows"):
        classify(np.zeros((65, 10_000), np.int8), 1)


def test_limits_of_classes_are_what_is_still_answered() -> None:
    most = infer_response.MAX_SORTED_ELEMENTS
    assert classify(np.zeros((128, most // 128), np.int8), 1).tolist() == [["0:0"]] * 128
    with pytest.raises(InvalidRequest, match="are sorted"):
        classify(np.zeros((128, most // 128 + 1), np.int8), 1)
    # Of 64 rows more values may come, because they are not sorted.
    assert classify(np.zeros((64, most), np.int8)[:, : most // 32], 1).tolist() == [["0:0"]] * 64
    with pytest.raises(InvalidRequest, match="classification of 1 row by 16385 classes"):
        classify(np.zeros((1, infer_response.MAX_CLASSES + 1), np.int8), infer_response.MAX_CLASSES + 1)


class Labels:
    """Of every other class."""

    def of(self, numbers: Sequence[int]) -> Sequence[str]:
        return ["" if number % 2 else f"class {number}" for number in numbers]


def test_classes_have_their_labels_where_there_are_any() -> None:
    found = classify(np.array([[1, 3, 2], [9, 8, 7]], np.int32), 2, Labels())
    assert found.tolist() == [["3:1", "2:2:class 2"], ["9:0:class 0", "8:1"]]


def test_classes_are_found_without_sorting_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a sort of all takes 100 ms for a million values: what is sorted are the classes asked for."""
    sorted_sizes: list[int] = []
    argsort = np.argsort

    def measured(values: Any, **options: Any) -> Any:
        sorted_sizes.append(values.size)
        return argsort(values, **options)

    monkeypatch.setattr(np, "argsort", measured)
    values = np.random.default_rng(1).normal(size=(3, 262_144))
    assert classify(values, 5).shape == (3, 5)
    assert sum(sorted_sizes) == 15


def test_classes_of_infinities_and_not_a_number_are_written_as_c_does() -> None:
    values = np.array([[1.0, np.inf, -np.inf]], np.float32)
    assert classify(values, 3).tolist() == [["inf:1", "1.000000:0", "-inf:2"]]
    assert sorted(classify(np.array([[np.nan, 1.0]]), 2).tolist()[0]) == ["1.000000:1", "nan:0"]
