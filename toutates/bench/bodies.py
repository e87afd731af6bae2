"""Requests as they are sent, of their contents: gRPC, REST with JSON or binary tensors, and APIs of embeddings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toutates.bench.calls import SERVICE
from toutates.bench.data import Contents
from toutates.bench.endpoint import GRPC
from toutates.bench.load import Asked
from toutates.bench.metadata import ModelFacts, model_path
from toutates.bench.streams import STREAM
from toutates.protocol.datatypes import BY_NAME, encode_bytes_tensor
from toutates.protocol.grpc_service_pb2 import ModelInferRequest

__all__ = ["BINARY", "INFER", "JSON", "BodySettings", "Region", "embeddings_body", "infer_body", "raw_tensor"]

INFER: Final = SERVICE + "ModelInfer"
JSON: Final = "json"
BINARY: Final = "binary"
#: Of Triton's extension: how many octets of the body are JSON.
_JSON_SIZE: Final = "Inference-Header-Content-Length"

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a region of shared memory.

    Attributes:
        name: of the region, as it is registered with the server.
        offset, size: of the part, in bytes.
    """

    name: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class BodySettings:
    """How requests are written.

    Attributes:
        protocol: GRPC or HTTP.
        inputs, outputs: JSON or BINARY, over HTTP.
        streams: whether a request is a message of a stream.
        fields: further metadata or header fields.
        parameters: of each request.
    """

    protocol: str = GRPC
    inputs: str = BINARY
    outputs: str = BINARY
    streams: bool = False
    fields: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str | int | bool | float] = field(default_factory=dict)


def raw_tensor(datatype: str, array: Array) -> bytes:
    """A tensor's octets as ``raw_input_contents`` has them."""
    if datatype == "BYTES":
        return encode_bytes_tensor(array)
    return np.ascontiguousarray(array).tobytes()


def infer_body(
    facts: ModelFacts,
    contents: Contents,
    settings: BodySettings,
    weight: float,
    regions: Mapping[str, Region] | None = None,
    output_regions: Mapping[str, Region] | None = None,
) -> Asked:
    """A request for an inference.

    Args:
        facts: the model.
        contents: of the request.
        settings: how it is written.
        weight: how often it is sent.
        regions: where inputs are, instead of in the request.
        output_regions: where outputs are to be put.
    """
    make = _grpc if settings.protocol == GRPC else _http
    return make(facts, contents, settings, weight, regions or {}, output_regions or {})


def _grpc(
    facts: ModelFacts,
    contents: Contents,
    settings: BodySettings,
    weight: float,
    regions: Mapping[str, Region],
    output_regions: Mapping[str, Region],
) -> Asked:
    request = ModelInferRequest(model_name=facts.name, model_version=facts.version)
    for name, value in settings.parameters.items():
        kind = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}[type(value)]
        setattr(request.parameters[name], kind, value)
    if settings.streams and facts.decoupled:
        request.parameters["triton_enable_empty_final_response"].bool_param = True
    for one in facts.inputs:
        array = contents.inputs[one.name]
        tensor = request.inputs.add(name=one.name, datatype=one.datatype, shape=array.shape)
        if region := regions.get(one.name):
            _refer(tensor.parameters, region)
        else:
            request.raw_input_contents.append(raw_tensor(one.datatype, array))
    for name, region in output_regions.items():
        _refer(request.outputs.add(name=name).parameters, region)
    path = STREAM if settings.streams else INFER
    return Asked(path, request.SerializeToString(), weight, settings.fields)


def _refer(parameters: Any, region: Region) -> None:
    parameters["shared_memory_region"].string_param = region.name
    parameters["shared_memory_byte_size"].int64_param = region.size
    if region.offset:
        parameters["shared_memory_offset"].int64_param = region.offset


def _http(
    facts: ModelFacts,
    contents: Contents,
    settings: BodySettings,
    weight: float,
    regions: Mapping[str, Region],
    output_regions: Mapping[str, Region],
) -> Asked:
    inputs: list[dict[str, Any]] = []
    raw: list[bytes] = []
    for one in facts.inputs:
        array = contents.inputs[one.name]
        tensor: dict[str, Any] = {"name": one.name, "datatype": one.datatype, "shape": list(array.shape)}
        if region := regions.get(one.name):
            tensor["parameters"] = _reference(region)
        elif settings.inputs == BINARY:
            raw.append(raw_tensor(one.datatype, array))
            tensor["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            tensor["data"] = _json_values(one.datatype, array)
        inputs.append(tensor)
    document: dict[str, Any] = {"inputs": inputs}
    parameters = dict(settings.parameters)
    if output_regions:
        document["outputs"] = [
            {"name": name, "parameters": _reference(region)} for name, region in output_regions.items()
        ]
    elif settings.outputs == BINARY:
        parameters["binary_data_output"] = True
    if parameters:
        document["parameters"] = parameters
    head = json.dumps(document, separators=(",", ":")).encode()
    fields = {"Content-Type": "application/octet-stream" if raw else "application/json", **settings.fields}
    if raw:
        fields[_JSON_SIZE] = str(len(head))
    return Asked(model_path(facts.name, facts.version) + "/infer", b"".join([head, *raw]), weight, fields)


def _reference(region: Region) -> dict[str, Any]:
    told: dict[str, Any] = {"shared_memory_region": region.name, "shared_memory_byte_size": region.size}
    return {**told, "shared_memory_offset": region.offset} if region.offset else told


def _json_values(datatype: str, array: Array) -> list[Any]:
    if datatype == "BYTES":
        return [octets.decode() for octets in array.ravel().tolist()]
    if datatype == "BF16":
        return (array.astype("<u4") << 16).view("<f4").ravel().tolist()
    if BY_NAME[datatype].numpy.kind == "f":
        return array.astype(np.float64).ravel().tolist()
    return array.ravel().tolist()


def embeddings_body(api: str, model: str, texts: Sequence[str], fields: Mapping[str, str], weight: float) -> Asked:
    """A request for embeddings of texts.

    Args:
        api: "openai" or "tei", whose resources are /v1/embeddings and /embed.
        model: its name, which the second one does not tell.
        texts: one or more.
        fields: further header fields.
        weight: how often it is sent.
    """
    if api == "openai":
        path, document = "/v1/embeddings", {"model": model, "input": list(texts)}
    else:
        path, document = "/embed", {"inputs": list(texts)}
    body = json.dumps(document, separators=(",", ":")).encode()
    return Asked(path, body, weight, {"Content-Type": "application/json", **fields})
