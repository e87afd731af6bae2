"""The description of REST: that nothing of REST is missing in it, and what it says of models."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import ref

import pytest
import trio

from toutates.api.rest.endpoints import ENDPOINTS, find_route, paths_of
from toutates.api.rest.kept_documents import Document
from toutates.api.rest.openapi.document import MAX_EXAMPLES_BYTES, DocumentWriter
from toutates.api.rest.openapi.models import describe
from toutates.api.rest.openapi.operations import OPERATIONS, PAGES, TAGS
from toutates.api.rest.openapi.text import TEXT_OPERATIONS
from toutates.api.restrictions import HTTP_FLAG, REST_GROUPS, by_group, parse_restrictions
from toutates.api.text.handler import TextSettings, routes_of
from toutates.models.table import ModelEntry, ModelState, ModelTable, ServedVersion, VersionEntry
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.protocol.signature import Signature, TensorSpec
from toutates.server.openapi import FILES, OpenApiPages
from toutates.server.pages import Pages

MOST = 1 << 26


class Described:
    """A servable, of which only its signature is looked at."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature


def entry(number: int, signature: Signature, state: ModelState = ModelState.READY) -> VersionEntry:
    described: Any = Described(signature)
    return VersionEntry(number, state, served=ServedVersion("m", number, ModelConfig(), described))


def table_of(**models: Sequence[VersionEntry]) -> ModelTable:
    return ModelTable(
        {name: ModelEntry(name, {version.number: version for version in given}) for name, given in models.items()}
    )


def one_input(shape: tuple[int, ...], datatype: str = "FP32", *, batched: bool = False, name: str = "x") -> Signature:
    return Signature((TensorSpec(name, BY_NAME[datatype], shape),), (TensorSpec("y", BY_NAME["FP32"], (8,)),), batched)


def written(table: ModelTable | None = None, *restrictions: str) -> Any:
    secrets = by_group((), parse_restrictions(restrictions, HTTP_FLAG))
    return json.loads(b"".join(DocumentWriter(secrets, MOST).write(table)))


def model_paths(document: Any) -> Iterator[str]:
    for path, item in document["paths"].items():
        if "models" in item.get("post", {}).get("tags", ()):
            yield path


# --- endpoints -------------------------------------------------------------------------------------------------------


def test_every_endpoint_is_described() -> None:
    assert set(OPERATIONS) == {endpoint.name for _, endpoint in ENDPOINTS}
    paths = written()["paths"]
    for template, endpoint in ENDPOINTS:
        for path in paths_of(template):
            assert {method for method in paths[path] if method != "parameters"} == {
                method.lower() for method in endpoint.methods
            }
            named = re.sub(r"{(\w+)}", lambda name: "7" if name[1] == "version" else "a", path)
            route = find_route(named)
            assert route is not None
            assert route.endpoint is endpoint
            of_path = [parameter["name"] for parameter in paths[path].get("parameters", ())]
            assert of_path == re.findall(r"{(\w+)}", path)
    endpoints = {path for template, _ in ENDPOINTS for path in paths_of(template)}
    assert set(paths) == endpoints | set(PAGES) | set(TEXT_OPERATIONS)


def test_every_route_of_the_apis_for_text_is_described() -> None:
    routes = routes_of(TextSettings())
    assert set(TEXT_OPERATIONS) == set(routes)
    for path, methods in TEXT_OPERATIONS.items():
        route = routes[path]
        has = {"get": route.get, "post": route.post}
        assert set(methods) == {method for method, what in has.items() if what is not None}
        if route.post is not None:  # the example is one
            body = json.dumps(written()["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"])
            route.post.asked(body.encode(), "")


def test_every_page_is_described() -> None:
    nothing: Any = None
    table = ModelTable({})
    openapi = OpenApiPages(lambda: table, {}, MOST, nothing)

    class View:
        unready_reason = is_live = None

    view: Any = View()
    pages = set(Pages(view, nothing, openapi).of(nothing))
    assert pages - {f"/docs/{name}" for name in FILES} == set(PAGES)


def test_operations_are_grouped_and_identified() -> None:
    document = written(table_of(m=[entry(1, one_input((4,)))]))
    operations = [item[method] for item in document["paths"].values() for method in ("get", "post") if method in item]
    assert {tag["name"] for tag in document["tags"]} == {tag for one in operations for tag in one["tags"]} == set(TAGS)
    assert set(REST_GROUPS) < set(TAGS)
    identifiers = [one["operationId"] for one in operations if "operationId" in one]
    assert len(identifiers) == len(set(identifiers))
    assert "models" not in {tag["name"] for tag in written()["tags"]}


def test_what_is_restricted_says_which_field_it_wants() -> None:
    document = written(table_of(m=[entry(1, one_input((4,)))]), "inference,logging:X-Key=hush", "trace:T=mum")
    schemes = document["components"]["securitySchemes"]
    assert schemes == {
        "inference.logging": {"type": "apiKey", "in": "header", "name": "X-Key"},
        "trace": {"type": "apiKey", "in": "header", "name": "T"},
    }
    wanted = {
        path: item["post"].get("security")
        for path, item in document["paths"].items()
        if path in ("/v2/models/m/infer", "/v2/models/{model}/infer", "/v2/trace/setting", "/v2/repository/index")
    }
    assert wanted == {
        "/v2/models/m/infer": [{"inference.logging": []}],
        "/v2/models/{model}/infer": [{"inference.logging": []}],
        "/v2/trace/setting": [{"trace": []}],
        "/v2/repository/index": None,
    }
    assert "hush" not in json.dumps(document)
    # Without any, Swagger UI offers no "Authorize".
    assert "securitySchemes" not in written()["components"]


def test_a_document_without_models_says_why() -> None:
    document = written(None, "inference:A=a", "metadata,statistics:B=b")
    assert document["info"]["description"].endswith("that have the header fields of those groups (`B`).")


# --- models ----------------------------------------------------------------------------------------------------------


def test_only_what_can_answer_is_listed() -> None:
    signature = one_input((4,))
    document = written(
        table_of(
            both=[entry(1, signature), entry(3, signature)],
            # A request without a version is for the newest, which does not answer.
            older=[entry(1, signature), entry(2, signature, ModelState.UNAVAILABLE)],
            gone=[VersionEntry(1, ModelState.UNAVAILABLE, "unloaded")],
            none=[],
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
        table_of(a=[entry(1, one_input((4,)))], b=[entry(1, one_input((4,)))], c=[entry(1, one_input((5,)))])
    )
    references = [document["paths"][path]["post"]["requestBody"]["$ref"] for path in model_paths(document)]
    assert references[0] == references[1] != references[2]
    assert set(document["components"]["requestBodies"]) == {"Infer1", "Infer2"}


@pytest.mark.parametrize(
    ("datatype", "zero"), [("BOOL", False), ("BYTES", ""), ("BF16", 0), ("FP16", 0), ("UINT64", 0), ("INT8", 0)]
)
def test_an_example_has_zeros(datatype: str, zero: Any) -> None:
    signature = one_input((-1, 2), datatype, batched=True)
    assert json.loads(describe(signature, MOST).example) == {
        "inputs": [{"name": "x", "datatype": datatype, "shape": [1, 1, 2], "data": [zero, zero]}]
    }


def test_a_fixed_shape_is_the_only_one() -> None:
    schema = json.loads(describe(one_input((2, 3)), MOST).request)
    assert schema["properties"]["inputs"]["items"]["properties"]["shape"]["enum"] == [[2, 3]]
    schema = json.loads(describe(one_input((2, -1)), MOST).request)
    assert "enum" not in schema["properties"]["inputs"]["items"]["properties"]["shape"]


def test_an_optional_input_is_described_and_not_in_the_example() -> None:
    bias = TensorSpec("bias", BY_NAME["INT32"], (4,), optional=True)
    signature = one_input((4,))
    said = describe(Signature((*signature.inputs, bias), signature.outputs, False), MOST)
    inputs = json.loads(said.request)["properties"]["inputs"]
    assert (inputs["minItems"], inputs["maxItems"]) == (1, 2)
    assert inputs["description"] == "The inputs: x FP32 [4], bias INT32 [4] (optional)"
    assert [given["name"] for given in json.loads(said.example)["inputs"]] == ["x"]


def test_examples_end_where_they_would_be_too_long() -> None:
    assert len(describe(one_input((3, 224, 224)), MOST).example) > 300_000
    assert describe(one_input((2**62,)), MOST).example == b""
    assert describe(one_input((64,)), 100).example == b""
    versions = [entry(1, one_input((262_144 - number,))) for number in range(20)]
    document = written(table_of(**{f"m{at:02}": [version] for at, version in enumerate(versions)}))
    bodies = document["components"]["requestBodies"].values()
    examples = [body for body in bodies if "example" in body["content"]["application/json"]]
    assert 10 < len(examples) < 20
    assert len(json.dumps(examples, separators=(",", ":"))) < MAX_EXAMPLES_BYTES + 100_000
    assert all("too long" in body["description"] for body in bodies if body not in examples)


def test_names_are_escaped() -> None:
    name = 'a/"\\<\u2028> {x}'
    document = written(ModelTable({name: ModelEntry(name, {1: entry(1, one_input((1,), name=name))})}))
    (path,) = model_paths(document)
    assert path == "/v2/models/a%2F%22%5C%3C%E2%80%A8%3E%20%7Bx%7D/infer"
    route = find_route(path)
    assert route is not None
    assert route.model == name
    body = document["components"]["requestBodies"]["Infer1"]["content"]["application/json"]
    assert body["example"]["inputs"][0]["name"] == name


def test_ten_thousand_models_are_written_in_small_pieces() -> None:
    signature = one_input((64,), batched=True)
    models = {f"model_{number}": [entry(1, signature)] for number in range(10_000)}
    pieces = list(DocumentWriter({}, MOST).write(table_of(**models)))
    assert max(map(len, pieces)) < 65_536
    assert sum(map(len, pieces)) < 4_000_000
    assert len(list(model_paths(json.loads(b"".join(pieces))))) == 10_000


def test_a_document_is_made_once_for_a_table_and_does_not_keep_it() -> None:
    nothing: Any = None
    tables = [table_of(m=[entry(1, one_input((4,)))])]
    source = OpenApiPages(lambda: tables[-1], {}, MOST, nothing)._whole

    async def make() -> Document:
        return await source.make()

    assert source.current() is None
    first = trio.run(make)
    assert source.current() is first
    assert trio.run(make) is first
    old = ref(tables.pop())
    tables.append(table_of(m=[entry(1, one_input((5,)))]))
    assert old() is None
    assert source.current() is None
    assert trio.run(make).etag != first.etag
