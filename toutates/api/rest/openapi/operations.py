"""What the document says of each endpoint: its purpose, its body, its answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import Message

from toutates.api.rest.openapi.messages import Schema, add_schemas, reference
from toutates.protocol import grpc_service_pb2 as pb
from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.model_config_pb2 import ModelConfig
from toutates.protocol.proto_files import PROTO_NAMES

__all__ = ["JSON", "OPERATIONS", "PAGES", "TAGS", "Body", "Operation", "shared_schemas"]

JSON: Final = "application/json"
_OCTETS: Final = "application/octet-stream"
_TEXT: Final = "text/plain"


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a request.

    Attributes:
        schemas: by media type.
        example: of JSON; None for none. It changes nothing.
        required: whether there has to be one.
    """

    schemas: Mapping[str, Schema]
    example: Any = None
    required: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """What is said of an endpoint, or of a page.

    Attributes:
        summary: what it does, one line of plain text.
        answers: schemas of what it answers, by media type; none of an empty body.
        text: more of it, in Markdown.
        body: of a POST; None for none.
    """

    summary: str
    answers: Mapping[str, Schema]
    text: str = ""
    body: Body | None = None


def _object(required: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    schema: Schema = {"type": "object", "properties": properties}
    if required:
        schema["required"] = list(required)
    return schema


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_STRING: Final[Schema] = {"type": "string"}
_BOOLEAN: Final[Schema] = {"type": "boolean"}
_UNSIGNED: Final[Schema] = {"type": "integer", "minimum": 0}
_BINARY: Final[Schema] = {"type": "string", "format": "binary"}
_PARAMETERS: Final[Schema] = {
    "type": "object",
    "additionalProperties": {"oneOf": [_BOOLEAN, {"type": "number"}, _STRING]},
}


def _shared(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _message(kind: type[Message]) -> Mapping[str, Schema]:
    descriptor: Any = kind.DESCRIPTOR
    return {JSON: reference(descriptor)}


def _list_of(kind: type[Message]) -> Mapping[str, Schema]:
    descriptor: Any = kind.DESCRIPTOR
    return {JSON: _array(reference(descriptor))}


_SYSTEM_STATUS: Final = pb.SystemSharedMemoryStatusResponse.RegionStatus
_CUDA_STATUS: Final = pb.CudaSharedMemoryStatusResponse.RegionStatus

_DATATYPE: Final[Schema] = {"type": "string", "enum": list(BY_NAME)}
_SHAPE: Final = _array({"type": "integer", "format": "int64", "minimum": 0})
_DATA: Final = {**_array({}), "description": "The elements in row-major order; arrays may be nested."}
_TRACE: Final = _object(
    trace_level=_array({"type": "string", "enum": ["OFF", "TIMESTAMPS", "TENSORS"]}),
    trace_rate=_STRING,
    trace_count=_STRING,
    trace_mode=_STRING,
    log_frequency=_STRING,
    trace_file=_STRING,
)
_LOG: Final = _object(
    log_file=_STRING,
    log_info=_BOOLEAN,
    log_warning=_BOOLEAN,
    log_error=_BOOLEAN,
    log_verbose_level=_UNSIGNED,
    log_format=_STRING,
)

#: Schemas that several operations share, beside those of messages.
_SCHEMAS: Final[Mapping[str, Schema]] = {
    "Error": _object(("error",), error=_STRING),
    "InferInput": _object(
        ("name", "datatype", "shape"),
        name=_STRING,
        datatype=_DATATYPE,
        shape=_SHAPE,
        data=_DATA,
        parameters=_PARAMETERS,
    ),
    "InferRequestedOutput": _object(("name",), name=_STRING, parameters=_PARAMETERS),
    "InferRequest": _object(
        ("inputs",),
        id=_STRING,
        parameters=_PARAMETERS,
        inputs=_array(_shared("InferInput")),
        outputs=_array(_shared("InferRequestedOutput")),
    ),
    "InferOutput": _object(
        ("name", "datatype", "shape"),
        name=_STRING,
        datatype=_DATATYPE,
        shape=_SHAPE,
        data=_DATA,
        parameters=_PARAMETERS,
    ),
    "InferResponse": _object(
        ("model_name", "model_version", "outputs"),
        id=_STRING,
        model_name=_STRING,
        model_version=_STRING,
        parameters=_PARAMETERS,
        outputs=_array(_shared("InferOutput")),
    ),
    "GenerateRequest": {
        "type": "object",
        "description": "A member for each input, a value or a flat array. Any other member is a parameter.",
        "properties": {"id": _STRING, "parameters": {"type": "object"}},
        "additionalProperties": {},
    },
    "GenerateResponse": {
        "type": "object",
        "description": "A member for each output, a value or a flat array.",
        "properties": {"id": _STRING, "model_name": _STRING, "model_version": _STRING},
        "additionalProperties": {},
    },
    "ModelIndex": _array(_object(("name",), name=_STRING, version=_STRING, state=_STRING, reason=_STRING)),
    "LogSettings": _LOG,
    "TraceSettings": _TRACE,
}


def shared_schemas() -> dict[str, Schema]:
    """The schemas that ``OPERATIONS`` refers to, by name."""
    schemas = dict(_SCHEMAS)
    kinds: tuple[Any, ...] = (
        pb.ServerLiveResponse,
        pb.ServerReadyResponse,
        pb.ServerMetadataResponse,
        pb.ModelMetadataResponse,
        ModelConfig,
        pb.ModelStatisticsResponse,
        _SYSTEM_STATUS,
        _CUDA_STATUS,
    )
    for kind in kinds:
        add_schemas(kind.DESCRIPTOR, schemas, whole=kind is pb.ModelStatisticsResponse)
    return schemas


_BINARY_TENSORS: Final = (
    "Tensors may be sent and asked for as binary data behind the JSON (`binary_data_size`, `binary_data`), with the "
    "length of the JSON in the header field `Inference-Header-Content-Length`. With 0 there, the body is the only "
    "input itself."
)
_EXPLICIT: Final = "Only with `--model-control-mode explicit`."
_SHARED: Final = "Only with `--allow-client-shm`; clients share memory with a server on the same machine."
_CUDA_SHARED: Final = _SHARED + " It takes a GPU."
_GENERATE_BODY: Final = Body({JSON: _shared("GenerateRequest")}, required=True)


_SYSTEM_REGION: Final = Body(
    {JSON: _object(("key", "byte_size"), key=_STRING, offset=_UNSIGNED, byte_size=_UNSIGNED)}, required=True
)
_CUDA_REGION: Final = Body(
    {
        JSON: _object(
            ("raw_handle", "device_id", "byte_size"),
            raw_handle=_object(("b64",), b64=_STRING),
            device_id=_UNSIGNED,
            byte_size=_UNSIGNED,
        )
    },
    required=True,
)

#: Anything by name.
_NAMED: Final = {"type": "object", "additionalProperties": {}}

#: By the name of the endpoint.
OPERATIONS: Final[Mapping[str, Operation]] = {
    "infer": Operation(
        "Run a model",
        {JSON: _shared("InferResponse"), _OCTETS: _BINARY},
        _BINARY_TENSORS,
        Body({JSON: _shared("InferRequest"), _OCTETS: _BINARY}, required=True),
    ),
    "generate": Operation(
        "Run a model on flat JSON", {JSON: _shared("GenerateResponse")}, "Triton's generate extension.", _GENERATE_BODY
    ),
    "generate_stream": Operation(
        "Run a model on flat JSON, answered as server-sent events",
        {"text/event-stream": _STRING},
        "Triton's generate extension.",
        _GENERATE_BODY,
    ),
    "live": Operation("Whether the server runs", _message(pb.ServerLiveResponse)),
    "ready": Operation("Whether all models can answer", _message(pb.ServerReadyResponse)),
    "model_ready": Operation(
        "Whether a model can answer", {JSON: _object(("name", "ready"), name=_STRING, ready=_BOOLEAN)}
    ),
    "server_metadata": Operation("The server's name, version and extensions", _message(pb.ServerMetadataResponse)),
    "model_metadata": Operation("A model's versions and tensors", _message(pb.ModelMetadataResponse)),
    "model_config": Operation("A model's configuration", _message(ModelConfig)),
    "statistics": Operation("Counts and times of inferences", _message(pb.ModelStatisticsResponse)),
    "index": Operation(
        "The models of the repository and their states",
        {JSON: _shared("ModelIndex")},
        body=Body({JSON: _object(ready=_BOOLEAN)}, {"ready": True}),
    ),
    "load": Operation(
        "Load a model, or load it again",
        {},
        _EXPLICIT,
        Body({JSON: _object(parameters={"type": "object", "additionalProperties": _STRING})}),
    ),
    "unload": Operation(
        "Unload a model",
        {},
        _EXPLICIT,
        Body({JSON: _object(parameters=_object(unload_dependents=_BOOLEAN))}),
    ),
    "traffic": Operation(
        "The rules of aliases and traffic, and changing them",
        {JSON: _object(aliases=_NAMED, traffic=_NAMED, problem=_STRING)},
        "A name that is null is removed. " + _EXPLICIT,
        Body({JSON: _object(aliases=_NAMED, traffic=_NAMED)}, required=True),
    ),
    "trace": Operation(
        "The trace settings, and changing them",
        {JSON: _shared("TraceSettings")},
        "A setting that is null goes back to its default.",
        Body({JSON: {"type": "object", "additionalProperties": {}}}, {}, required=True),
    ),
    "logging": Operation(
        "The log settings, and changing them",
        {JSON: _shared("LogSettings")},
        body=Body({JSON: _shared("LogSettings")}, {}, required=True),
    ),
    "system_status": Operation("The registered regions of system shared memory, or one", _list_of(_SYSTEM_STATUS)),
    "system_register": Operation("Register a region of system shared memory", {}, _SHARED, _SYSTEM_REGION),
    "system_unregister": Operation("Unregister a region of system shared memory, or all", {}, _SHARED),
    "cuda_status": Operation("The registered regions of CUDA shared memory, or one", _list_of(_CUDA_STATUS)),
    "cuda_register": Operation("Register a region of CUDA shared memory", {}, _CUDA_SHARED, _CUDA_REGION),
    "cuda_unregister": Operation("Unregister a region of CUDA shared memory, or all", {}, _CUDA_SHARED),
}

#: What is served beside the endpoints, by path.
PAGES: Final[Mapping[str, Operation]] = {
    "/metrics": Operation("Metrics for Prometheus", {_TEXT: _STRING}),
    "/health/live": Operation("Whether the server runs, for probes", {_TEXT: _STRING}),
    "/health/ready": Operation("Whether all models can answer, for probes", {_TEXT: _STRING}),
    "/openapi.json": Operation("This document", {JSON: {"type": "object"}}),
    "/docs": Operation("This document, to read and to try", {"text/html": _STRING}),
    **{f"/proto/{name}": Operation(f"{name}, for clients of gRPC", {_TEXT: _STRING}) for name in PROTO_NAMES},
}

#: What operations are grouped by: the groups of ``--http-restricted-api``, and three more.
TAGS: Final[Mapping[str, str]] = {
    "models": "Inference by each model that is served, with an example that works as it stands.",
    "inference": "Inference, for any model.",
    "health": "Health.",
    "metadata": "The server, and tensors of models.",
    "model-config": "Configurations of models.",
    "model-repository": "The repository: its index, loading and unloading.",
    "statistics": "Statistics.",
    "trace": "Traces.",
    "logging": "The log.",
    "shared-memory": "Shared memory.",
    "text": "Text models, by the APIs of other servers. Errors are in each API's own form.",
    "pages": "Metrics, probes and this document.",
}
