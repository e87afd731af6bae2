"""Requests, and the clients that send them: tritonclient and bare grpcio, so that nothing of ours is opposite us.

Where they are not installed (free-threaded Python has no grpcio), the modules that import this one are skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pytest

grpc = pytest.importorskip("grpc")
triton = pytest.importorskip("tritonclient.grpc")
pb = triton.service_pb2

__all__ = [
    "INFER",
    "SERVICE",
    "Tensor",
    "bytes_tensor",
    "call",
    "channel_to",
    "grpc",
    "infer",
    "outputs_of",
    "pb",
    "refused",
    "request",
    "statistics_of",
    "triton",
]

SERVICE: Final = "/inference.GRPCInferenceService/"
INFER: Final = SERVICE + "ModelInfer"

_NUMPY: Final[Mapping[str, npt.DTypeLike]] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BF16": np.uint16,
}
_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input of a request: ``raw`` is its content, or None where the request has none for it."""

    name: str
    datatype: str
    shape: Sequence[int]
    raw: bytes | None

    @classmethod
    def of(cls, name: str, datatype: str, values: npt.ArrayLike) -> Tensor:
        """A tensor of these values; not for BYTES."""
        array = np.array(values, _NUMPY[datatype])
        return cls(name, datatype, array.shape, array.tobytes())


def bytes_tensor(*elements: bytes) -> bytes:
    """The raw content of a BYTES tensor."""
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


def request(model: str, *tensors: Tensor, outputs: Sequence[str] = (), **fields: Any) -> Any:
    """A ModelInferRequest; ``fields`` are id, model_version and so on."""
    message = pb.ModelInferRequest(model_name=model, **fields)
    for tensor in tensors:
        message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if tensor.raw is not None:
            message.raw_input_contents.append(tensor.raw)
    for name in outputs:
        message.outputs.add(name=name)
    return message


@contextmanager
def channel_to(address: str) -> Iterator[Any]:
    """A connection of its own, which takes messages of any size."""
    options = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    with grpc.insecure_channel(address, options=options) as channel:
        yield channel


def call(channel: Any, path: str, message: bytes, timeout: float | None = _SECONDS, **options: Any) -> bytes:
    """One unary call, bytes for bytes."""
    answer: bytes = channel.unary_unary(path)(message, timeout=timeout, **options)
    return answer


def infer(channel: Any, message: Any, **options: Any) -> Any:
    """ModelInfer: the response to a ModelInferRequest."""
    return pb.ModelInferResponse.FromString(call(channel, INFER, message.SerializeToString(), **options))


def outputs_of(response: Any) -> dict[str, npt.NDArray[Any]]:
    """The outputs of a response by name, BF16 as the uint16 of the same bits; none of BYTES."""
    assert len(response.outputs) == len(response.raw_output_contents)
    return {
        tensor.name: np.frombuffer(raw, _NUMPY[tensor.datatype]).reshape(tensor.shape)
        for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def refused(channel: Any, message: Any, path: str = INFER, **options: Any) -> tuple[str, str]:
    """Send what is refused; returns the status's name and the text."""
    data = message if isinstance(message, bytes) else message.SerializeToString()
    with pytest.raises(grpc.RpcError) as caught:
        call(channel, path, data, **options)
    return caught.value.code().name, caught.value.details()


def statistics_of(channel: Any, model: str, version: str = "") -> Any:
    """ModelStatistics of one version of a model."""
    answer = call(
        channel,
        SERVICE + "ModelStatistics",
        pb.ModelStatisticsRequest(name=model, version=version).SerializeToString(),
    )
    [statistics] = pb.ModelStatisticsResponse.FromString(answer).model_stats
    return statistics
