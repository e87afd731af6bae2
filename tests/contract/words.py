"""The words of errors that clients read: one question to each protocol, and the answer of a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.certificates import issue
from tests.contract.asking import SERVICE, Infer, ask, call, plain, stream
from tests.e2e.process import ServerProcess
from tests.e2e.starting import starting
from tests.e2e.support import pb
from tests.e2e.wire import Client, client_of

__all__ = ["start_lines", "word_lines"]

_INPUT: Final = ("INPUT", "FP32", (1, 4), 4)

#: Requests for inference that are refused, by what is wrong with them.
_INFER: Final[Mapping[str, Infer]] = {
    "a batch above the greatest": Infer(inputs=[("INPUT", "FP32", (9, 4), 36)]),
    "a shape of another rank": Infer(inputs=[("INPUT", "FP32", (4,), 4)]),
    "a shape of another size": Infer(inputs=[("INPUT", "FP32", (1, 5), 5)]),
    "a shape with a negative size": Infer(inputs=[("INPUT", "FP32", (-1, 4), 4)]),
    "a version that is no number": Infer(version="x"),
    "an input twice": Infer(inputs=[_INPUT, _INPUT]),
    "another datatype": Infer(inputs=[("INPUT", "INT32", (1, 4), 4)]),
    "another input": Infer(inputs=[("OTHER", "FP32", (1, 4), 4)]),
    "another output": Infer(outputs=["OTHER"]),
    "memory of a region that is not registered": Infer(
        of_input={"shared_memory_region": "none", "shared_memory_byte_size": 16}
    ),
    "memory without its size": Infer(of_input={"shared_memory_region": "none"}),
    "more inputs": Infer(inputs=[_INPUT, ("OTHER", "FP32", (1, 4), 4)]),
    "no input": Infer(inputs=[]),
    "no rows": Infer(inputs=[("INPUT", "FP32", (0, 4), 0)]),
    "too few values": Infer(inputs=[("INPUT", "FP32", (1, 4), 3)]),
    "unknown datatype": Infer(inputs=[("INPUT", "NONE", (1, 4), 4)]),
    "unknown model": Infer("nowhere"),
    "unknown version": Infer(version="2"),
    "unloaded model": Infer("spare"),
}


def word_lines(server: ServerProcess) -> list[str]:
    """Status and words of each refusal, over each protocol."""
    lines: list[str] = []
    ask(server.rest_port, "POST", "/v2/repository/models/spare/unload")
    with client_of(server.port) as client:
        for what, request in _INFER.items():
            lines += _inference(what, request, client, server.rest_port)
        lines += _rpcs(client)
    lines += _documents(server)
    lines += _texts(server.rest_port)
    lines += _torchserve(server)
    return sorted(lines)


def start_lines(folder: Path) -> list[str]:
    """What a server says on its ports in clear while it starts, and what of gRPC there, once that alone has TLS."""
    folder.mkdir()
    files = issue(folder)
    flags = ("--grpc-use-ssl=true", f"--grpc-server-cert={files.cert}", f"--grpc-server-key={files.key}")
    paths = ("/v2/health/live", "/v1/embeddings", "/embed", "/v1/rerank", "/v1/embedding", "/predictions/neg")
    with starting(folder, *flags) as server:
        said = [_line("rest", server.rest, "GET", path, None) for path in paths]
        said.append(_line("torchserve management", server.management, "GET", "/models", None))
        lines = [f"start, {one}" for one in said]
        for when in ("start", "gRPC alone has TLS"):
            with client_of(server.rest) as client:
                name, text, _ = call(client, SERVICE + "ServerLive", b"")
            lines.append(f"{when}, ServerLive  rest  {name}  {plain(text)}")
            if when == "start":
                server.let_it_load()
        server.stop()
    return lines


def _inference(what: str, request: Infer, client: Client, port: int) -> Iterator[str]:
    """A request over gRPC, as the message of a stream, and over REST."""
    name, text, _ = call(client, SERVICE + "ModelInfer", request.message)
    yield f"infer, {what}  grpc  {name}  {plain(text)}".rstrip()
    name, text, parts = stream(client, SERVICE + "ModelStreamInfer", request.message)
    errors = [pb.ModelStreamInferResponse.FromString(part).error_message for part in parts]
    yield f"infer, {what}  stream  {name}  {plain(' '.join((text, *errors)))}".rstrip()
    reply = ask(port, "POST", request.path, request.document)
    said = "" if reply.status == 200 else plain(reply.body)
    yield f"infer, {what}  rest  {reply.status}  {said}".rstrip()


def _rpcs(client: Client) -> Iterator[str]:
    """What the other RPCs refuse."""
    trace, log = pb.TraceSettingRequest(), pb.LogSettingsRequest()
    trace.settings["trace_level"].value.append("LOUD")
    log.settings["log_format"].string_param = "loud"
    unknown_trace, unknown_log = pb.TraceSettingRequest(), pb.LogSettingsRequest()
    unknown_trace.settings["nothing"].value.append("1")
    unknown_log.settings["nothing"].bool_param = True
    region = pb.SystemSharedMemoryRegisterRequest(name="r", key="/toutates-none", byte_size=16)
    raw_and_typed = pb.ModelInferRequest.FromString(Infer().message)
    raw_and_typed.inputs[0].contents.fp32_contents.extend([0.0] * 4)
    questions: tuple[tuple[str, str, Any], ...] = (
        ("ModelConfig", "unknown model", pb.ModelConfigRequest(name="nowhere")),
        ("ModelConfig", "unknown version", pb.ModelConfigRequest(name="neg", version="2")),
        ("ModelConfig", "unloaded model", pb.ModelConfigRequest(name="spare")),
        ("ModelInfer", "raw and typed values", raw_and_typed),
        ("ModelMetadata", "unknown model", pb.ModelMetadataRequest(name="nowhere")),
        ("ModelMetadata", "unknown version", pb.ModelMetadataRequest(name="neg", version="2")),
        ("ModelReady", "unknown model", pb.ModelReadyRequest(name="nowhere")),
        ("ModelReady", "version that is no number", pb.ModelReadyRequest(name="neg", version="x")),
        ("ModelStatistics", "unknown model", pb.ModelStatisticsRequest(name="nowhere")),
        ("RepositoryIndex", "unknown repository", pb.RepositoryIndexRequest(repository_name="r")),
        ("RepositoryModelLoad", "unknown model", pb.RepositoryModelLoadRequest(model_name="nowhere")),
        ("RepositoryModelUnload", "unknown model", pb.RepositoryModelUnloadRequest(model_name="nowhere")),
        ("SystemSharedMemoryRegister", "no such object", region),
        ("SystemSharedMemoryStatus", "unknown region", pb.SystemSharedMemoryStatusRequest(name="none")),
        ("TraceSetting", "unknown level", trace),
        ("TraceSetting", "unknown model", pb.TraceSettingRequest(model_name="nowhere")),
        ("TraceSetting", "unknown setting", unknown_trace),
        ("LogSettings", "unknown format", log),
        ("LogSettings", "unknown setting", unknown_log),
    )
    for rpc, what, message in questions:
        name, text, _ = call(client, SERVICE + rpc, message.SerializeToString())
        yield f"{rpc}, {what}  grpc  {name}  {plain(text)}".rstrip()


def _documents(server: ServerProcess) -> Iterator[str]:
    """What REST refuses by path and body."""
    infer = "/v2/models/neg/infer"
    no_shape = {"inputs": [{"name": "INPUT", "datatype": "FP32", "data": [0, 0, 0, 0]}]}
    questions: tuple[tuple[str, str, Any], ...] = (
        ("GET", "/nowhere", None),
        ("GET", "/v2/nowhere", None),
        ("GET", "/v2/models/nowhere", None),
        ("GET", "/v2/models/nowhere/config", None),
        ("GET", "/v2/models/nowhere/ready", None),
        ("GET", "/v2/models/nowhere/stats", None),
        ("GET", "/v2/models/nowhere/trace/setting", None),
        ("GET", "/v2/models/neg/versions/2/ready", None),
        ("GET", "/v2/models/spare/ready", None),
        ("GET", infer, None),
        ("POST", infer, {}),
        ("POST", infer, []),
        ("POST", infer, no_shape),
        ("POST", infer, {"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1, 4]}]}),
        ("POST", infer, {"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1, 4], "data": ["x"] * 4}]}),
        ("POST", "/v2/models/neg/generate", {}),
        ("POST", "/v2/models/neg/generate", {"OTHER": 1}),
        ("POST", "/v2/models/nowhere/generate", {"INPUT": [0]}),
        ("POST", "/v2/repository/models/nowhere/load", {}),
        ("POST", "/v2/repository/models/nowhere/unload", {}),
        ("POST", "/v2/repository/traffic", {"nothing": {}}),
        ("POST", "/v2/logging", {"log_format": "loud"}),
        ("POST", "/v2/logging", {"nothing": True}),
        ("POST", "/v2/trace/setting", {"trace_level": ["LOUD"]}),
        ("POST", "/v2/trace/setting", {"nothing": "1"}),
        ("POST", "/v2/systemsharedmemory/region/r/register", {"key": "/toutates-none", "offset": 0, "byte_size": 16}),
        ("GET", "/v2/systemsharedmemory/region/none/status", None),
    )
    for method, path, body in questions:
        yield _line("rest", server.rest_port, method, path, body)
    for path in ("/nowhere", "/status.json?history=some", "/debug/profile?seconds=x", "/graph.svg?model=nowhere"):
        yield _line("metrics", server.http_port, "GET", path, None)


def _texts(port: int) -> Iterator[str]:
    """What the APIs for text refuse."""
    questions: tuple[tuple[str, Any], ...] = (
        ("/v1/embeddings", {"model": "nowhere", "input": "one"}),
        ("/v1/embeddings", {"model": "mood", "input": "one"}),
        ("/v1/embeddings", {"model": "embedder", "input": ""}),
        ("/v1/embeddings", {"model": "embedder", "input": []}),
        ("/v1/embeddings", {"model": "embedder"}),
        ("/v1/embeddings", {"model": "embedder", "input": "one", "dimensions": 99}),
        ("/embed", {"inputs": "one", "model": "nowhere"}),
        ("/embed", {"inputs": ""}),
        ("/embed", {"inputs": []}),
        ("/embed", {"inputs": "one", "model": "mood"}),
        ("/embed", {}),
        ("/embed_sparse", {"inputs": "one"}),
        ("/predict", {"inputs": "one", "model": "embedder"}),
        ("/rerank", {"query": "one", "texts": []}),
        ("/rerank", {"query": "one", "texts": ["two"], "model": "nowhere"}),
        ("/tokenize", {"inputs": "one"}),
        ("/v1/rerank", {"query": "one", "documents": []}),
        ("/v2/rerank", {"query": "one", "documents": ["two"], "model": "nowhere"}),
        ("/v1/embedding", [{"query": ""}]),
        ("/v1/embedding", {}),
    )
    for path, body in questions:
        yield _line("rest", port, "POST", path, body)
    for path in ("/v1/models/nowhere", "/info?model=nowhere", "/info"):
        yield _line("rest", port, "GET", path, None)
    for path in ("/embed", "/v1/embeddings", "/v1/rerank"):
        reply = ask(port, "POST", path, b"{}", {"Content-Type": "text/plain"})
        yield f"POST {path} of text/plain  rest  {reply.status}  {plain(reply.body)}".rstrip()


def _torchserve(server: ServerProcess) -> Iterator[str]:
    """What TorchServe's APIs refuse."""
    for path in ("/predictions/nowhere", "/predictions/echo/9.9", "/predictions/neg"):
        yield _line("rest", server.rest_port, "POST", path, b"x")
    management = server.management_port
    yield _line("torchserve management", management, "GET", "/models/nowhere", None)
    yield _line("torchserve management", management, "DELETE", "/models/nowhere", None)
    yield _line("torchserve management", management, "PUT", "/models/nowhere", None)
    yield _line("torchserve management", management, "POST", "/models", {})
    yield _line("torchserve management", management, "POST", "/models?url=nowhere.mar", None)
    yield _line("torchserve management", management, "GET", "/nowhere", None)


def _line(port_name: str, port: int, method: str, path: str, body: Any) -> str:
    reply = ask(port, method, path, body)
    given = "" if body is None else f" {json.dumps(body) if not isinstance(body, bytes) else body.decode()}"
    said = "" if reply.status == 200 else plain(reply.body)
    return f"{method} {path}{given}  {port_name}  {reply.status}  {said}".rstrip()
