"""What a server says of a model: its inputs and outputs, whether it batches, and whether it is decoupled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from toutates.bench.calls import SERVICE, Refused, ask, fetch_json, read
from toutates.bench.endpoint import GRPC, Endpoint
from toutates.protocol.grpc_service_pb2 import (
    ModelConfigRequest,
    ModelConfigResponse,
    ModelMetadataRequest,
    ModelMetadataResponse,
)

__all__ = ["ModelFacts", "TensorFacts", "ask_model", "model_path"]


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """An input or output.

    Attributes:
        name: of the tensor.
        datatype: as the protocol spells it.
        shape: -1 for open axes, with the batch's axis where the model batches.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model.

    Attributes:
        name, version: as requests name it; version "" for the newest.
        inputs, outputs: its tensors.
        batches: whether the first axis of inputs is the batch's.
        decoupled: whether it may answer a request several times.
    """

    name: str
    version: str
    inputs: Sequence[TensorFacts]
    outputs: Sequence[TensorFacts]
    batches: bool
    decoupled: bool = False


def model_path(model: str, version: str) -> str:
    """The path of a model's resources of the v2 protocol."""
    path = f"/v2/models/{quote(model, safe='')}"
    return f"{path}/versions/{quote(version, safe='')}" if version else path


def ask_model(endpoint: Endpoint, model: str, version: str, fields: Mapping[str, str]) -> ModelFacts:
    """Ask a server for a model.

    Raises:
        Unreachable: it cannot be reached.
        Refused: it does not have the model, or is no server of the v2 protocol.
    """
    return (_by_grpc if endpoint.protocol == GRPC else _by_http)(endpoint, model, version, fields)


def _by_grpc(endpoint: Endpoint, model: str, version: str, fields: Mapping[str, str]) -> ModelFacts:
    asked = ModelMetadataRequest(name=model, version=version)
    told = read(ModelMetadataResponse, ask(endpoint, SERVICE + "ModelMetadata", asked.SerializeToString(), fields))
    inputs, outputs = (
        [TensorFacts(one.name, one.datatype, tuple(one.shape)) for one in tensors]
        for tensors in (told.inputs, told.outputs)
    )
    batches, decoupled = _looks_batched(inputs), False
    try:
        wanted = ModelConfigRequest(name=model, version=version).SerializeToString()
        config = read(ModelConfigResponse, ask(endpoint, SERVICE + "ModelConfig", wanted, fields)).config
    except Refused:  # not of every server of the protocol
        pass
    else:
        batches, decoupled = config.max_batch_size > 0, config.model_transaction_policy.decoupled
    return ModelFacts(model, version, inputs, outputs, batches, decoupled)


def _by_http(endpoint: Endpoint, model: str, version: str, fields: Mapping[str, str]) -> ModelFacts:
    path = model_path(model, version)
    told = fetch_json(endpoint, path, fields)
    try:
        inputs, outputs = ([_tensor(one) for one in told.get(key, ())] for key in ("inputs", "outputs"))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise Refused(f"what the server says of model '{model}' is not of the v2 protocol") from None
    batches, decoupled = _looks_batched(inputs), False
    try:
        config = fetch_json(endpoint, path + "/config", fields)
        batches = int(config.get("max_batch_size", 0)) > 0
        decoupled = bool(config.get("model_transaction_policy", {}).get("decoupled"))
    except (Refused, AttributeError, TypeError, ValueError):
        pass
    return ModelFacts(model, version, inputs, outputs, batches, decoupled)


def _tensor(told: Any) -> TensorFacts:
    return TensorFacts(str(told["name"]), str(told["datatype"]), tuple(int(axis) for axis in told["shape"]))


def _looks_batched(inputs: Sequence[TensorFacts]) -> bool:
    return bool(inputs) and all(one.shape and one.shape[0] < 0 for one in inputs)
