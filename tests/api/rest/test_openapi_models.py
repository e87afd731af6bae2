"""The description of REST: what it says of models."""

from __future__ import annotations

import json
from typing import Any
from weakref import ref

import pytest
import trio

from tests.api.rest.documents import MOST, entry, model_paths, one_input, written
from tests.signatures import signature, spec
from tests.tables import table_of_entries
from toutates.api.rest.endpoints import find_route
from toutates.api.rest.kept_documents import Document
from toutates.api.rest.openapi.document import MAX_EXAMPLES_BYTES, DocumentWriter
from toutates.api.rest.openapi.models import describe
from toutates.models.table import ModelState, VersionEntry
from toutates.server.openapi import OpenApiPages


def test_only_what_can_answer_is_listed() -> None:
    tensors = one_input((4,))
    document = written(
        table_of_entries(
            {
                "both": [entry(1, tensors), entry(3, tensors)],
                # A request without a version is for the newest, which does not answer.
                "older": [entry(1, tensors), entry(2, tensors, ModelState.UNAVAILABLE)],
                "gone": [VersionEntry(1, ModelState.UNAVAILABLE, "unloaded")],
                "none": [],
            }
        )
    )
    assert list(model_paths(document)) == [
        "/v2/models/both/versions/1/infer",
        "/v2/models/both/infer",
        "/v2/models/both/versions/3/infer",
        "/v2/models/older/versions/1/infer",
    ]


def test_models_of_one_signature_share_what_is_said_of_them() -> None:
    document = written(
        table_of_entries({name: [entry(1, one_input((width,)))] for name, width in (("a", 4), ("b", 4), ("c", 5))})
    )
    references = [document["paths"][path]["post"]["requestBody"]["$ref"] for path in model_paths(document)]
    assert references[0] == references[1] != references[2]
    assert set(document["components"]["requestBodies"]) == {"Infer1", "Infer2"}


@pytest.mark.parametrize(
    ("datatype", "zero"), [("BOOL", False), ("BYTES", ""), ("BF16", 0), ("FP16", 0), ("UINT64", 0), ("INT8", 0)]
)
def test_an_example_has_zeros(datatype: str, zero: Any) -> None:
    tensors = one_input((-1, 2), datatype, batched=True)
    assert json.loads(describe(tensors, MOST).example) == {
        "inputs": [{"name": "x", "datatype": datatype, "shape": [1, 1, 2], "data": [zero, zero]}]
    }


def test_a_fixed_shape_is_the_only_one() -> None:
    schema = json.loads(describe(one_input((2, 3)), MOST).request)
    assert schema["properties"]["inputs"]["items"]["properties"]["shape"]["enum"] == [[2, 3]]
    schema = json.loads(describe(one_input((2, -1)), MOST).request)
    assert "enum" not in schema["properties"]["inputs"]["items"]["properties"]["shape"]


def test_an_optional_input_is_described_and_not_in_the_example() -> None:
    bias = spec("bias", "INT32", [4], optional=True)
    tensors = one_input((4,))
    said = describe(signature([*tensors.inputs, bias], tensors.outputs, batched=False), MOST)
    inputs = json.loads(said.request)["properties"]["inputs"]
    assert (inputs["minItems"], inputs["maxItems"]) == (1, 2)
    assert inputs["description"] == "The inputs: x FP32 [4], bias INT32 [4] (optional)"
    assert [given["name"] for given in json.loads(said.example)["inputs"]] == ["x"]


def test_examples_end_where_they_would_be_too_long() -> None:
    assert len(describe(one_input((3, 224, 224)), MOST).example) > 300_000
    assert describe(one_input((2**62,)), MOST).example == b""
    assert describe(one_input((64,)), 100).example == b""
    versions = [entry(1, one_input((262_144 - number,))) for number in range(20)]
    document = written(table_of_entries({f"m{at:02}": [version] for at, version in enumerate(versions)}))
    bodies = document["components"]["requestBodies"].values()
    examples = [body for body in bodies if "example" in body["content"]["application/json"]]
    assert 10 < len(examples) < 20
    assert len(json.dumps(examples, separators=(",", ":"))) < MAX_EXAMPLES_BYTES + 100_000
    assert all("too long" in body["description"] for body in bodies if body not in examples)


def test_names_are_escaped() -> None:
    name = 'a/"\\<\u2028> {x}'
    document = written(table_of_entries({name: [entry(1, one_input((1,), name=name))]}))
    (path,) = model_paths(document)
    assert path == "/v2/models/a%2F%22%5C%3C%E2%80%A8%3E%20%7Bx%7D/infer"
    route = find_route(path)
    assert route is not None
    assert route.model == name
    body = document["components"]["requestBodies"]["Infer1"]["content"]["application/json"]
    assert body["example"]["inputs"][0]["name"] == name


def test_ten_thousand_models_are_written_in_small_pieces() -> None:
    tensors = one_input((64,), batched=True)
    models = {f"model_{number}": [entry(1, tensors)] for number in range(10_000)}
    pieces = list(DocumentWriter({}, MOST).write(table_of_entries(models)))
    assert max(map(len, pieces)) < 65_536
    assert sum(map(len, pieces)) < 4_000_000
    assert len(list(model_paths(json.loads(b"".join(pieces))))) == 10_000


def test_a_document_is_made_once_for_a_table_and_does_not_keep_it() -> None:
    nothing: Any = None
    tables = [table_of_entries({"m": [entry(1, one_input((4,)))]})]
    source = OpenApiPages(lambda: tables[-1], {}, MOST, nothing)._whole

    async def make() -> Document:
        return await source.make()

    assert source.current() is None
    first = trio.run(make)
    assert source.current() is first
    assert trio.run(make) is first
    old = ref(tables.pop())
    tables.append(table_of_entries({"m": [entry(1, one_input((5,)))]}))
    assert old() is None
    assert source.current() is None
    assert trio.run(make).etag != first.etag
