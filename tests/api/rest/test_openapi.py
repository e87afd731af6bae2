"""The description of REST: that nothing of REST is missing in it."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.api.rest.documents import MOST, entry, one_input, written
from tests.tables import table_of, table_of_entries
from toutates.api.rest.endpoints import ENDPOINTS, find_route, paths_of
from toutates.api.rest.openapi.operations import OPERATIONS, PAGES, TAGS
from toutates.api.rest.openapi.text import TEXT_OPERATIONS
from toutates.api.restrictions import REST_GROUPS
from toutates.api.text.handler import TextSettings, routes_of
from toutates.server.openapi import FILES, OpenApiPages
from toutates.server.pages import Pages


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
    table = table_of()
    openapi = OpenApiPages(lambda: table, {}, MOST, nothing)

    class View:
        unready_reason = is_live = None

    view: Any = View()
    pages = set(Pages(view, nothing, openapi).of(nothing))
    assert pages - {f"/docs/{name}" for name in FILES} == set(PAGES)


def test_operations_are_grouped_and_identified() -> None:
    document = written(table_of_entries({"m": [entry(1, one_input((4,)))]}))
    operations = [item[method] for item in document["paths"].values() for method in ("get", "post") if method in item]
    assert {tag["name"] for tag in document["tags"]} == {tag for one in operations for tag in one["tags"]} == set(TAGS)
    assert set(REST_GROUPS) < set(TAGS)
    identifiers = [one["operationId"] for one in operations if "operationId" in one]
    assert len(identifiers) == len(set(identifiers))
    assert "models" not in {tag["name"] for tag in written()["tags"]}


def test_what_is_restricted_says_which_field_it_wants() -> None:
    document = written(
        table_of_entries({"m": [entry(1, one_input((4,)))]}), "inference,logging:X-Key=hush", "trace:T=mum"
    )
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
