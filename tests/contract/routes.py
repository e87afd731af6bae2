"""Every path over HTTP with the status of each method, and every RPC with that of common messages."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tests.contract.asking import SECONDS, SERVICE, Infer, ask, call, plain, stream
from tests.e2e.process import ServerProcess
from tests.e2e.wire import client_of
from toutates.api.rest.endpoints import ENDPOINTS, paths_of
from toutates.api.text.handler import TextSettings, routes_of
from toutates.protocol import grpc_service_pb2 as pb
from toutates.protocol.health_pb2 import HealthCheckRequest
from toutates.protocol.proto_files import PROTO_NAMES
from toutates.protocol.reflection_pb2 import ServerReflectionRequest

__all__ = ["route_lines", "rpc_lines"]

#: What deletes comes last.
METHODS: Final = ("GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "DELETE")

#: What names in templates stand for. A model that is loaded and unloaded is another than those that are asked.
_NAMES: Final = {"model": "neg", "version": "1", "region": "none", "repository": "r", "id": "embedder"}
_SPARE: Final = ("/load", "/unload")
#: By path, the body of a request that succeeds; of other paths {}.
_BODIES: Final[Mapping[str, Any]] = {
    "/": {"inputs": "one"},
    "/decode": {"ids": [6, 7], "model": "embedder"},
    "/embed": {"inputs": "one"},
    "/embed_all": {"inputs": "one"},
    "/embed_sparse": {"inputs": "one"},
    "/embeddings": {"model": "embedder", "input": "one"},
    "/predict": {"inputs": "one", "model": "mood"},
    "/rerank": {"query": "one", "texts": ["two"]},
    "/similarity": {"inputs": {"source_sentence": "one", "sentences": ["two"]}},
    "/tokenize": {"inputs": "one", "model": "embedder"},
    "/v1/embedding": [{"query": "one"}],
    "/v1/embeddings": {"model": "embedder", "input": "one"},
    "/v1/rerank": {"query": "one", "documents": ["two"]},
    "/v2/rerank": {"query": "one", "documents": ["two"]},
}
_PAGES: Final = (
    "/metrics",
    "/health/live",
    "/health/ready",
    "/openapi.json",
    "/docs",
    *(f"/proto/{name}" for name in PROTO_NAMES),
    "/nowhere",
    "/v2/",
    "/v2/nowhere",
)
_TORCHSERVE: Final = ("/ping", "/predictions/{model}", "/predictions/{model}/{version}", "/explanations/{model}")
_MANAGEMENT: Final = ("/", "/models", "/models/{model}", "/models/{model}/{version}", "/models/{model}/1/set-default")
#: Pages that may be longer a moment later.
_OF_THE_MOMENT: Final = ("/metrics", "/status.json", "/debug", "/graph.svg")
_MONITORING: Final = (
    *(
        "/",
        "/graph.svg",
        "/graph.svg?model=pair",
        "/status.json",
        "/metrics",
        "/health/live",
        "/health/ready",
        "/nowhere",
    ),
    *("/debug/tasks", "/debug/profile?seconds=0.01"),
)


def route_lines(server: ServerProcess) -> list[str]:
    """A line for each path, port and answer, with the methods that get it."""
    lines: list[str] = []
    for template, _ in ENDPOINTS:
        for path in paths_of(template):
            lines += _of_path("http", server.rest_port, path)
    for path in (*routes_of(TextSettings()), "/info?model=embedder", *_PAGES, *_TORCHSERVE):
        lines += _of_path("http", server.rest_port, path)
    for path in _MANAGEMENT:
        lines += _of_path("torchserve management", server.management_port, path)
    for path in _MONITORING:
        lines += _of_path("metrics", server.http_port, path)
    for path in ("/v2/health/live", "/metrics", "/nowhere"):
        lines += _of_path("grpc", server.port, path)
    return sorted(lines)


def _of_path(port_name: str, port: int, template: str) -> Iterator[str]:
    answers: dict[str, list[str]] = {}
    path = template
    names = {**_NAMES, "model": "echo"} if "predictions" in template or "explanations" in template else _NAMES
    names = {**names, "model": "spare"} if template.endswith(_SPARE) else names
    for name, value in names.items():
        path = path.replace("{" + name + "}", value)
    for method in METHODS:
        body = _body(template) if method in ("POST", "PUT", "PATCH") else None
        reply = ask(port, method, path, body)
        allowed = f"  allow {reply.fields['allow']}" if "allow" in reply.fields else ""
        answers.setdefault(f"{reply.status}  {reply.kind}{allowed}", []).append(method)
    for answer, methods in answers.items():
        yield f"{port_name} {template}  {','.join(methods)}  {answer}"
    difference = _head_difference(port, path)
    if difference:
        yield f"{port_name} {template}  HEAD is answered otherwise than GET: {difference}"


def _head_difference(port: int, path: str) -> str:
    """In which fields the answer to HEAD differs from that to GET; "" for none. Those that always differ are left out.

    Fails where bytes of a body follow the head.
    """
    first, again = (ask(port, "GET", path).fields for _ in range(2))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        for _ in range(2):  # the second answer cannot be read if the first one has a body
            connection.request("HEAD", path)
            response = connection.getresponse()
            response.read()
    finally:
        connection.close()
    given = {name.lower(): value for name, value in response.getheaders()}
    steady = {name for name, value in first.items() if value == again.get(name) and name != "date"}
    if path.startswith(_OF_THE_MOMENT):
        steady.discard("content-length")
    return ", ".join(
        sorted((first.keys() ^ given.keys()) | {name for name in steady if given.get(name) != first[name]})
    )


def _body(template: str) -> Any:
    if template.endswith("/infer"):
        return Infer().document
    if template.endswith(("/generate", "/generate_stream")):
        return {"INPUT": [0, 0, 0, 0]}
    if template.startswith("/predictions"):
        return b"x"
    return _BODIES.get(template, {})


# --- gRPC -------------------------------------------------------------------------------------------------------------

#: By RPC, a message that succeeds; of others the empty one.
_MESSAGES: Final[Mapping[str, bytes]] = {
    "ModelConfig": pb.ModelConfigRequest(name="neg").SerializeToString(),
    "ModelInfer": Infer().message,
    "ModelMetadata": pb.ModelMetadataRequest(name="neg").SerializeToString(),
    "ModelReady": pb.ModelReadyRequest(name="neg").SerializeToString(),
    "ModelStatistics": pb.ModelStatisticsRequest(name="neg").SerializeToString(),
    "RepositoryModelLoad": pb.RepositoryModelLoadRequest(model_name="spare").SerializeToString(),
    "RepositoryModelUnload": pb.RepositoryModelUnloadRequest(model_name="spare").SerializeToString(),
}
_HEALTH: Final = "/grpc.health.v1.Health/Check"
_REFLECTION: Final = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


def rpc_lines(server: ServerProcess) -> list[str]:
    """Each RPC with its status for a message that succeeds, an empty one, and one that cannot be read."""
    [service] = [one for name, one in pb.DESCRIPTOR.services_by_name.items() if name == "GRPCInferenceService"]
    lines: list[str] = []
    with client_of(server.port) as client:

        def line(path: str, what: str, message: bytes, **more: Any) -> None:
            name, text, _ = call(client, path, message, **more)
            lines.append(f"{path.removeprefix('/')}  {what}  {name}  {plain(text)}".rstrip())

        for method in service.methods:
            path = SERVICE + method.name
            if method.client_streaming:
                for what, message in (("succeeds", Infer().message), ("empty", b""), ("unreadable", b"\xff")):
                    name, text, parts = stream(client, path, message)
                    errors = [pb.ModelStreamInferResponse.FromString(part).error_message for part in parts]
                    shown = f"{path.removeprefix('/')}  {what}  {name}  {plain(text)}  answers {len(parts)}"
                    lines.append(f"{shown}  {' '.join(map(plain, errors))}".rstrip())
                continue
            line(path, "succeeds", _MESSAGES.get(method.name, b""))
            line(path, "empty", b"")
            line(path, "unreadable", b"\xff")
        line(_HEALTH, "succeeds", b"")
        line(_HEALTH, "service of the v2 protocol", _health("inference.GRPCInferenceService"))
        line(_HEALTH, "unknown service", _health("nowhere"))
        for name in _REFLECTION:
            request = ServerReflectionRequest(list_services="*").SerializeToString()
            status, text, parts = stream(client, f"/{name}/ServerReflectionInfo", request)
            lines.append(f"{name}/ServerReflectionInfo  list  {status}  {text}  answers {len(parts)}")
        line(SERVICE + "Nothing", "unknown method", b"")
        line("/nowhere.Service/Nothing", "unknown service", b"")
        line(SERVICE + "ServerLive", "compressed by gzip, unreadable", b"\xff", flag=1, headers=_GZIP)
        line(SERVICE + "ServerLive", "compressed by an unknown coding", b"\xff", flag=1, headers=_SNAPPY)
        line(SERVICE + "ServerLive", "not gRPC", b"", headers=[("content-type", "text/plain")])
    return sorted(lines)


_GZIP: Final = [("grpc-encoding", "gzip")]
_SNAPPY: Final = [("grpc-encoding", "snappy")]


def _health(service: str) -> bytes:
    return HealthCheckRequest(service=service).SerializeToString()
