"""Requests to the models of ``repository``, as raw messages, and what their answers say."""

from __future__ import annotations

from typing import Final

import numpy as np

from tests.e2e.wire import Answer, Client
from toutates.protocol.grpc_service_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelReadyRequest,
    ModelReadyResponse,
)

__all__ = ["INFER", "SERVICE", "added", "is_ready", "versions"]

SERVICE: Final = "/inference.GRPCInferenceService/"
INFER: Final = SERVICE + "ModelInfer"


def versions(number: int, version: str = "") -> bytes:
    """A request to a model that adds the version's number."""
    message = ModelInferRequest(model_name="versions", model_version=version)
    message.inputs.add(name="INPUT", datatype="INT32", shape=[1, 4])
    message.raw_input_contents.append(np.full(4, number, np.int32).tobytes())
    return message.SerializeToString()


def added(answer: Answer) -> int:
    """What the model answered."""
    assert answer.status == ("0", ""), answer.status
    response = ModelInferResponse.FromString(answer.data[5:])
    return int(np.frombuffer(response.raw_output_contents[0], np.int32)[0])


def is_ready(client: Client, model: str, version: str = "") -> bool:
    """Whether a model, or one of its versions, is ready."""
    answer = client.call(SERVICE + "ModelReady", ModelReadyRequest(name=model, version=version).SerializeToString())
    return ModelReadyResponse.FromString(answer.data[5:]).ready
