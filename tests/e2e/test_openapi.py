"""/openapi.json of a running server: what it says is what the server does."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.control import EXPLICIT
from tests.e2e.http import Answer, get, peer_of, post
from tests.e2e.models import VERSIONS, add_model, versioned_model
from tests.e2e.process import ServerProcess, running
from tests.waiting import wait_until

HTTP = ("--http-addr", "127.0.0.1:0")


def document_of(server: ServerProcess, *fields: str) -> Any:
    with peer_of(server.rest_port) as peer:
        answer = peer.ask(get("/openapi.json", *fields))
        assert answer.status == 200
        assert answer.fields["content-type"] == "application/json"
        return answer.document


@pytest.fixture(scope="module")
def document(server: ServerProcess) -> Any:
    return document_of(server)


def resolved(document: Any, item: Any) -> Any:
    if "$ref" in item:
        _, *names = item["$ref"].split("/")
        item = document
        for name in names:
            item = item[name]
    return item


def operations(document: Any) -> Iterator[tuple[str, str, Any]]:
    for path, item in document["paths"].items():
        for method in ("get", "post"):
            if method in item:
                yield path, method, item[method]


def check(document: Any, schema: Any, value: Any) -> None:
    """Whether a value is of a schema of the document, by a validator of others."""
    from openapi_schema_validator import OAS30Validator

    OAS30Validator({**schema, "components": document["components"]}).validate(value)


def schema_of_answer(document: Any, operation: Any) -> Any:
    return resolved(document, operation["responses"]["200"])["content"]["application/json"]["schema"]


def test_the_document_is_valid(document: Any) -> None:
    from openapi_spec_validator import validate

    validate(document)


def test_every_example_works_as_it_stands(server: ServerProcess, document: Any, repository: Path) -> None:
    ran = set()
    with peer_of(server.rest_port) as peer:
        for path, method, operation in operations(document):
            body = resolved(document, operation.get("requestBody", {})).get("content", {}).get("application/json", {})
            if "text" in operation["tags"]:  # no text model is served here
                continue
            if "example" not in body:
                assert "models" not in operation["tags"]
                continue
            assert method == "post"
            check(document, body["schema"], body["example"])
            filled = path.format(model="versions", repository="any")
            answer = peer.ask(post(filled, json.dumps(body["example"]), "Content-Type: application/json"))
            assert answer.status == 200, (path, answer.body)
            check(document, schema_of_answer(document, operation), answer.document)
            if "models" in operation["tags"]:
                ran.add((answer.document["model_name"], answer.document["model_version"], path))
    models = {folder.name for folder in repository.iterdir()}
    assert {name for name, _, _ in ran} == models
    start = "/v2/models/versions"
    newest = str(max(VERSIONS))
    assert {(version, path) for name, version, path in ran if name == "versions"} == {
        (newest, f"{start}/infer"),
        *((str(number), f"{start}/versions/{number}/infer") for number in VERSIONS),
    }


def test_what_is_answered_is_of_the_schema(server: ServerProcess, document: Any) -> None:
    seen = 0
    with peer_of(server.rest_port) as peer:
        for path, method, operation in operations(document):
            if method != "get" or "200" not in operation["responses"] or path == "/openapi.json":
                continue
            if "text" in operation["tags"] or "region" in path:
                continue
            asked = get(path.format(model="versions", version=VERSIONS[0]))
            answer = peer.ask(asked)
            assert answer.status == 200, (path, answer.body)
            content = operation["responses"]["200"]["content"]
            assert answer.fields["content-type"].partition(";")[0] in content
            if "application/json" in content:
                check(document, content["application/json"]["schema"], answer.document)
            seen += 1
    assert seen > 15


def test_regions_of_shared_memory_are_described_as_they_are_answered(tmp_path: Path) -> None:
    models = tmp_path / "models"
    add_model(models, "one", versioned_model(1))
    memory = SharedMemory(create=True, size=64)
    try:
        with running(models, tmp_path, [*HTTP, "--allow-client-shm"]) as server, peer_of(server.rest_port) as peer:
            document = document_of(server)
            start = "/v2/systemsharedmemory"
            for what in ("register", "status", "unregister"):
                path = f"{start}/region/{{region}}/{what}"
                for filled, template in ((path.format(region="a"), path), (f"{start}/{what}", f"{start}/{what}")):
                    if filled == f"{start}/register":  # which names no region
                        continue
                    [(method, operation)] = [
                        (method, one) for found, method, one in operations(document) if found == template
                    ]
                    body: Any = {}
                    if "requestBody" in operation:
                        body = {"key": memory.name, "byte_size": 64}
                        check(document, operation["requestBody"]["content"]["application/json"]["schema"], body)
                    answer = peer.ask(get(filled) if method == "get" else post(filled, json.dumps(body)))
                    assert str(answer.status) == "200", answer.body
                    described = operation["responses"]["200"].get("content", {})
                    assert bool(answer.body) is bool(described), filled
                    if described:
                        check(document, described["application/json"]["schema"], answer.document)
                        assert answer.document == [{"name": "a", "key": memory.name, "offset": 0, "byte_size": 64}]
            assert peer.ask(get(f"{start}/status")).document == []
    finally:
        memory.close()
        memory.unlink()


def test_a_request_says_what_a_model_takes(document: Any) -> None:
    from jsonschema.exceptions import ValidationError

    operation = document["paths"]["/v2/models/addsub/infer"]["post"]
    content = resolved(document, operation["requestBody"])["content"]["application/json"]
    texts = content["schema"]["properties"]["inputs"]["description"]
    assert texts == "The inputs: INPUT0 INT32 [-1, 16], INPUT1 INT32 [-1, 16]"
    for key, wrong in (("datatype", "FP32"), ("name", "INPUT2"), ("shape", [16]), ("data", ["a"])):
        example = json.loads(json.dumps(content["example"]))
        example["inputs"][0][key] = wrong
        with pytest.raises(ValidationError):
            check(document, content["schema"], example)


def test_who_has_the_document_is_told_so(server: ServerProcess) -> None:
    with peer_of(server.port) as peer:  # on the port of gRPC too
        first = peer.ask(get("/openapi.json"))
        etag = first.fields["etag"]
        assert first.fields["cache-control"] == "no-cache"
        for known in (etag, f"W/{etag}", f'"x", {etag}', "*"):
            answer = peer.ask(get("/openapi.json", f"If-None-Match: {known}"))
            assert (answer.status, answer.body, answer.fields["etag"]) == (304, b"", etag)
        assert peer.ask(get("/openapi.json", 'If-None-Match: "x"')).body == first.body
        assert peer.ask(post("/openapi.json", "")).status == 405
        peer.sock.sendall(b"HEAD /openapi.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        head = b"".join(iter(lambda: peer.sock.recv(65_536), b""))
        assert head.endswith(b"\r\n\r\n")
        assert b"content-length: %d\r\n" % len(first.body) in head


def test_models_come_and_go_in_it(tmp_path: Path) -> None:
    models = tmp_path / "models"
    odd = "a<b>&\"c' {d}%2F\u00e9"
    for name in ("one", odd):
        add_model(models, name, versioned_model(1))
    with running(models, tmp_path, [*HTTP, *EXPLICIT]) as server, peer_of(server.rest_port) as peer:

        def infers() -> list[str]:
            return [path for path, _, operation in operations(document_of(server)) if "models" in operation["tags"]]

        assert infers() == []
        assert peer.ask(post("/v2/repository/models/one/load", "{}")).status == 200
        assert infers() == ["/v2/models/one/infer"]
        encoded = "a%3Cb%3E%26%22c%27%20%7Bd%7D%252F%C3%A9"
        assert peer.ask(post(f"/v2/repository/models/{encoded}/load", "{}")).status == 200
        document = document_of(server)
        path = f"/v2/models/{encoded}/infer"
        assert document["paths"][path]["post"]["summary"] == f"Run {odd}"
        body = resolved(document, document["paths"][path]["post"]["requestBody"])
        example = json.dumps(body["content"]["application/json"]["example"])
        assert peer.ask(post(path, example)).document["model_name"] == odd
        assert peer.ask(post("/v2/repository/models/one/unload", "{}")).status == 200
        wait_until(lambda: infers() == [path])
        # While models come and go, every document that is read is whole.
        stop = threading.Event()
        answers: list[Answer] = []

        def read() -> None:
            with peer_of(server.rest_port) as reader:
                while not stop.is_set():
                    answers.append(reader.ask(get("/openapi.json")))

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for _ in range(3):
            for verb in ("load", "unload"):
                assert peer.ask(post(f"/v2/repository/models/one/{verb}", "{}")).status == 200
        wait_until(lambda: answers)
        stop.set()
        for reader in readers:
            reader.join()
        assert {answer.status for answer in answers} == {200}
        assert all(path in answer.document["paths"] for answer in answers)
        assert server.stop() == 0
        assert "Traceback" not in server.log


@pytest.mark.parametrize(
    ("flags", "needed"),
    [
        (("--http-restricted-api", "metadata,model-repository:X-Key=secret"), ("X-Key: secret",)),
        (("--http-restricted-api", "model-repository:X-Key=secret"), ("X-Key: secret",)),
        (("--grpc-restricted-protocol", "metadata:key=secret"), ("triton-grpc-protocol-key: secret",)),
        (
            ("--http-restricted-api", "metadata:A=secret", "--http-restricted-api", "model-repository:B=secret"),
            ("A: secret", "B: secret"),
        ),
    ],
)
def test_what_is_restricted_is_not_told(
    repository: Path, tmp_path: Path, flags: tuple[str, ...], needed: tuple[str, ...]
) -> None:
    from openapi_spec_validator import validate

    flags = (*HTTP, "--load-models", "mlp,texts", "--server-id", "my_own_server", *flags)
    with running(repository, tmp_path, flags) as server, peer_of(server.rest_port) as peer:
        for fields in ((), needed[1:], tuple(f"{field}x" for field in needed)):
            answer = peer.ask(get("/openapi.json", *fields))
            assert answer.status == 200
            for told in (b"mlp", b"models/texts", b"my_own_server", b"secret"):
                assert told not in answer.body
            assert "securitySchemes" in answer.document["components"]
        validate(answer.document)
        whole = peer.ask(get("/openapi.json", *needed))
        assert "/v2/models/mlp/infer" in whole.document["paths"]
        assert whole.fields["etag"] != answer.fields["etag"]
        names = sorted(name.strip() for name in whole.fields["vary"].split(","))
        assert names == sorted(field.partition(":")[0] for field in needed)
        assert b"secret" not in whole.body
        validate(whole.document)
        # Not to those either who know the ETag of the whole one.
        assert peer.ask(get("/openapi.json", f"If-None-Match: {whole.fields['etag']}")).status == 200
        # Nor does an error tell the name that was meant, where the index may not.
        refused = peer.ask(post("/v2/models/mlq/infer", '{"inputs": []}'))
        assert refused.status == 404
        assert ("mlp" in refused.document["error"]) is not any("model-repository" in flag for flag in flags)


def test_an_example_is_no_longer_than_what_the_server_takes(repository: Path, tmp_path: Path) -> None:
    flags = [*HTTP, "--load-models", "mlp,rank1", "--http-max-input-size", "100"]
    with running(repository, tmp_path, flags) as server, peer_of(server.rest_port) as peer:
        document = document_of(server)
        bodies = {}
        for name in ("mlp", "rank1"):
            operation = document["paths"][f"/v2/models/{name}/infer"]["post"]
            bodies[name] = resolved(document, operation["requestBody"])
        assert "example" not in bodies["mlp"]["content"]["application/json"]
        example = json.dumps(bodies["rank1"]["content"]["application/json"]["example"], separators=(",", ":"))
        assert peer.ask(post("/v2/models/rank1/infer", example)).status == 200


def test_a_flood_of_requests_for_it_leaves_others_their_turn(server: ServerProcess) -> None:
    """64 pipelined requests on each of 32 connections that read nothing: what they hold is one document."""
    flood = get("/openapi.json") * 64
    socks = [socket.create_connection(("127.0.0.1", server.rest_port)) for _ in range(32)]
    try:
        for sock in socks:
            sock.sendall(flood)
        with peer_of(server.rest_port) as peer:
            for _ in range(50):
                assert peer.ask(get("/v2/health/live")).status == 200
    finally:
        for sock in socks:
            sock.close()
