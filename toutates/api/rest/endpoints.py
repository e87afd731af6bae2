"""The table of all endpoints, from path to what answers. An endpoint is a thin adapter around the data plane."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from toutates.api.dataplane import shared_memory
from toutates.api.dataplane.plane import DataPlane
from toutates.api.dataplane.traffic import TrafficRequest, read_change
from toutates.api.rest import messages
from toutates.api.rest.answers import EMPTY, Answer, json_answer
from toutates.protocol import grpc_service_pb2 as pb
from toutates.system.errors import Unavailable

__all__ = ["ENDPOINTS", "Endpoint", "Route", "find_route", "paths_of"]


@dataclass(frozen=True, slots=True)
class Route:
    """A path, read.

    Attributes:
        endpoint: what it leads to.
        model, version, region, repository: what it names, decoded; "" for what it does not name.
    """

    endpoint: Endpoint
    model: str = ""
    version: str = ""
    region: str = ""
    repository: str = ""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What a kind of path leads to.

    A request is read, given to one of the functions, and answered. With neither function, it is inference.

    Attributes:
        name: of the endpoint.
        category: of ``--http-restricted-api``.
        methods: of HTTP.
        read: from the route and the body, None for a GET, to the request message. Raises RequestError.
        write: from the response message to the answer.
        function: of the data plane, called on the worker's thread.
        awaited: of the data plane, called on the main thread in place of ``function`` where ``waits`` says so.
        waits: whether the data plane's answer has to be awaited; as it stands, where models are loaded by request or
            other processes have to be asked.
        refuse: raises RequestError for a request that is refused whatever its body says; called on the worker's thread.
        reads: whether its POSTs change nothing of the server.
        grows: whether the answer grows with the number of models. It is then made beside the worker's thread, where
            models are not named one by one.
        blocks: whether the function may, as long as a client likes. It is called beside the worker's thread.
    """

    name: str
    category: str
    methods: frozenset[str]
    read: Callable[[Route, bytes | None], Any] = field(default=lambda route, body: None)
    write: Callable[[Any], Answer] = json_answer
    function: Callable[[DataPlane, Any], Any] | None = None
    awaited: Callable[[DataPlane, Any], Awaitable[Any]] | None = None
    waits: Callable[[DataPlane], bool] = lambda plane: plane.loads_on_request or plane.asks_others
    refuse: Callable[[DataPlane], None] = lambda plane: None
    reads: bool = False
    grows: bool = False
    blocks: bool = False


_GET: Final = frozenset(("GET",))
_POST: Final = frozenset(("POST",))
_BOTH: Final = _GET | _POST


def _document(message: Any) -> Answer:
    return json_answer(messages.as_document(message))


def _nothing(message: Any) -> Answer:
    return EMPTY


# --- health ----------------------------------------------------------------------------------------------------------
# Triton's bodies are empty, and its clients read the status alone. KServe's client reads these.


def _live(plane: DataPlane, request: pb.ServerLiveRequest) -> pb.ServerLiveResponse:
    try:
        return plane.server_live(request)
    except Unavailable:
        return pb.ServerLiveResponse(live=False)


def _ready(plane: DataPlane, request: pb.ServerReadyRequest) -> pb.ServerReadyResponse:
    try:
        return plane.server_ready(request)
    except Unavailable:
        return pb.ServerReadyResponse(ready=False)


def _write_health(response: pb.ServerLiveResponse | pb.ServerReadyResponse) -> Answer:
    document = messages.as_document(response)
    return json_answer(document, 200 if all(document.values()) else 400)


def _model_ready(plane: DataPlane, request: pb.ModelReadyRequest) -> str:
    """REST tells why a model is not ready, where gRPC says just that."""
    plane.refuse_unless_model_ready(request)
    return request.name


# --- the repository --------------------------------------------------------------------------------------------------


def _refuse(plane: DataPlane, request: Any) -> None:
    plane.refuse_unless_loads_on_request()


def _unless_shared(plane: DataPlane) -> None:
    plane.regions.refuse_unless_allowed()


def _unless_cuda_shared(plane: DataPlane) -> None:
    plane.regions.refuse_cuda_unless_allowed()


def _index(route: Route, body: bytes | None) -> pb.RepositoryIndexRequest:
    return pb.RepositoryIndexRequest(ready=messages.ready_only(body or b""))


def _load(route: Route, body: bytes | None) -> pb.RepositoryModelLoadRequest:
    return messages.load_request(route.repository, route.model, body or b"")


def _traffic(route: Route, body: bytes | None) -> TrafficRequest:
    return TrafficRequest() if body is None else read_change(body)


def _unload(route: Route, body: bytes | None) -> pb.RepositoryModelUnloadRequest:
    return messages.unload_request(route.repository, route.model, body or b"")


# --- the table -------------------------------------------------------------------------------------------------------


def _named(message: Callable[..., Any]) -> Callable[[Route, bytes | None], Any]:
    return lambda route, body: message(name=route.model, version=route.version)


# Templates of paths. {name} stands for what a path names, [...] for what may be left out.
_MODEL: Final = "/v2/models/{model}"
_VERSION: Final = _MODEL + "[/versions/{version}]"
_REPOSITORY: Final = "/v2/repository[/{repository}]"
_SYSTEM: Final = "/v2/systemsharedmemory[/region/{region}]"
_CUDA: Final = "/v2/cudasharedmemory[/region/{region}]"


def _asks_others(plane: DataPlane) -> bool:
    return plane.asks_others


_STATISTICS: Final = Endpoint(
    "statistics",
    "statistics",
    _GET,
    _named(pb.ModelStatisticsRequest),
    lambda response: json_answer(messages.as_document(response, whole=True)),
    DataPlane.model_statistics,
    DataPlane.statistics_of_all,
    _asks_others,
    grows=True,
)

#: By the template of its paths. In order: the first one that fits counts.
ENDPOINTS: Final[tuple[tuple[str, Endpoint], ...]] = (
    (_VERSION + "/infer", Endpoint("infer", "inference", _POST, reads=True)),
    (
        "/v2/health/live",
        Endpoint("live", "health", _GET, lambda route, body: pb.ServerLiveRequest(), _write_health, _live),
    ),
    (
        "/v2/health/ready",
        Endpoint("ready", "health", _GET, lambda route, body: pb.ServerReadyRequest(), _write_health, _ready),
    ),
    (
        _VERSION + "/ready",
        Endpoint(
            "model_ready",
            "health",
            _GET,
            _named(pb.ModelReadyRequest),
            lambda name: json_answer({"name": name, "ready": True}),
            _model_ready,
        ),
    ),
    ("/v2/models/stats", _STATISTICS),
    (_VERSION + "/stats", _STATISTICS),
    (
        "/v2",
        Endpoint(
            "server_metadata",
            "metadata",
            _GET,
            lambda route, body: pb.ServerMetadataRequest(),
            _document,
            DataPlane.server_metadata,
        ),
    ),
    (
        _VERSION,
        Endpoint(
            "model_metadata", "metadata", _GET, _named(pb.ModelMetadataRequest), _document, DataPlane.model_metadata
        ),
    ),
    (
        _VERSION + "/config",
        Endpoint(
            "model_config",
            "model-config",
            _GET,
            _named(pb.ModelConfigRequest),
            lambda response: _document(response.config),
            DataPlane.model_config,
        ),
    ),
    (_VERSION + "/generate", Endpoint("generate", "inference", _POST, reads=True)),
    (_VERSION + "/generate_stream", Endpoint("generate_stream", "inference", _POST, reads=True)),
    (
        _REPOSITORY + "/index",
        Endpoint(
            "index",
            "model-repository",
            _POST,
            _index,
            lambda response: json_answer(messages.model_index(response)),
            DataPlane.repository_index,
            DataPlane.repository_index_on_request,
            reads=True,
            grows=True,
        ),
    ),
    (
        _REPOSITORY + "/models/{model}/load",
        Endpoint("load", "model-repository", _POST, _load, _nothing, _refuse, DataPlane.load),
    ),
    (
        _REPOSITORY + "/models/{model}/unload",
        Endpoint("unload", "model-repository", _POST, _unload, _nothing, _refuse, DataPlane.unload),
    ),
    (
        "/v2/repository/traffic",
        Endpoint(
            "traffic",
            "model-repository",
            _BOTH,
            _traffic,
            json_answer,
            awaited=DataPlane.traffic,
            waits=lambda plane: True,
        ),
    ),
    (
        "/v2[/models/{model}]/trace/setting",
        Endpoint(
            "trace",
            "trace",
            _BOTH,
            lambda route, body: messages.trace_request(route.model, body),
            lambda response: json_answer(messages.trace_settings(response)),
            DataPlane.trace_setting,
            DataPlane.trace_setting_of_all,
            _asks_others,
        ),
    ),
    (
        "/v2/logging",
        Endpoint(
            "logging",
            "logging",
            _BOTH,
            lambda route, body: messages.log_request(body),
            lambda response: json_answer(messages.log_settings(response)),
            DataPlane.log_settings,
            DataPlane.log_settings_of_all,
            _asks_others,
        ),
    ),
    (
        _SYSTEM + "/status",
        Endpoint(
            "system_status",
            "shared-memory",
            _GET,
            lambda route, body: pb.SystemSharedMemoryStatusRequest(name=route.region),
            lambda response: json_answer(messages.system_regions(response)),
            lambda plane, request: shared_memory.system_status(plane.regions, request),
        ),
    ),
    (
        _SYSTEM + "/register",
        Endpoint(
            "system_register",
            "shared-memory",
            _POST,
            lambda route, body: messages.system_registration(route.region, body or b""),
            _nothing,
            lambda plane, request: shared_memory.register_system(plane.regions, request),
            refuse=_unless_shared,
            blocks=True,
        ),
    ),
    (
        _SYSTEM + "/unregister",
        Endpoint(
            "system_unregister",
            "shared-memory",
            _POST,
            lambda route, body: pb.SystemSharedMemoryUnregisterRequest(name=route.region),
            _nothing,
            lambda plane, request: shared_memory.unregister_system(plane.regions, request),
            refuse=_unless_shared,
            blocks=True,
        ),
    ),
    (
        _CUDA + "/status",
        Endpoint(
            "cuda_status",
            "shared-memory",
            _GET,
            lambda route, body: pb.CudaSharedMemoryStatusRequest(name=route.region),
            lambda response: json_answer(messages.cuda_regions(response)),
            lambda plane, request: shared_memory.cuda_status(plane.regions, request),
        ),
    ),
    (
        _CUDA + "/register",
        Endpoint(
            "cuda_register",
            "shared-memory",
            _POST,
            lambda route, body: messages.cuda_registration(route.region, body or b""),
            _nothing,
            lambda plane, request: shared_memory.register_cuda(plane.regions, request),
            refuse=_unless_cuda_shared,
            blocks=True,
        ),
    ),
    (
        _CUDA + "/unregister",
        Endpoint(
            "cuda_unregister",
            "shared-memory",
            _POST,
            lambda route, body: pb.CudaSharedMemoryUnregisterRequest(name=route.region),
            _nothing,
            lambda plane, request: shared_memory.unregister_cuda(plane.regions, request),
            refuse=_unless_cuda_shared,
            blocks=True,
        ),
    ),
)

#: What a template's names stand for, where that is not any text without a slash.
_NAMED: Final = {"version": "[0-9]+"}


def _pattern(template: str) -> re.Pattern[str]:
    text = template.replace("[", "(?:").replace("]", ")?")
    return re.compile(re.sub(r"{(\w+)}", lambda name: f"(?P<{name[1]}>{_NAMED.get(name[1], '[^/]+')})", text))


_PATTERNS: Final = tuple((_pattern(template), endpoint) for template, endpoint in ENDPOINTS)


def paths_of(template: str) -> list[str]:
    """A template without the part that may be left out, and with it."""
    before, bracket, rest = template.partition("[")
    inner, _, after = rest.partition("]")
    return [before + after, before + inner + after] if bracket else [template]


def find_route(path: str) -> Route | None:
    """Where a path leads; None for nowhere. To be remembered with the request's head.

    Args:
        path: as it came, without the query. What it names is percent-decoded, segment by segment. The server's own
            may have a slash at its end, as a base URL has.
    """
    if path == "/v2/":
        path = "/v2"
    for pattern, endpoint in _PATTERNS:
        match = pattern.fullmatch(path)
        if match is not None:
            try:
                named = {name: unquote(text, errors="strict") for name, text in match.groupdict(default="").items()}
            except UnicodeDecodeError:
                return None
            return Route(endpoint, **named)
    return None
