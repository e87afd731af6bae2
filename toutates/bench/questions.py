"""Requests to a model with random data, by what the server says of its inputs, and the answers to compare with."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping, Sequence
from math import prod
from typing import Final, TypeVar

import numpy as np
from google.protobuf.message import Message

from toutates.bench.client_connection import Answer, ClientConnection, ConnectionFailed, Request
from toutates.bench.driver import Unreachable
from toutates.h2grpc import Status
from toutates.protocol.datatypes import BY_NAME, encode_bytes_tensor
from toutates.protocol.grpc_service_pb2 import (
    ModelInferRequest,
    ModelInferResponse,
    ModelMetadataRequest,
    ModelMetadataResponse,
)
from toutates.protocol.parsing import parse
from toutates.system.errors import MalformedMessage

__all__ = ["INFER", "Reference", "Refused", "ask", "random_request"]

M = TypeVar("M", bound=Message)

_SERVICE: Final = "/inference.GRPCInferenceService/"
INFER: Final = _SERVICE + "ModelInfer"
_PATIENCE_S: Final = 30.0
_CHUNK: Final = 1 << 18
#: Elements of an input; more are a mistake in --shape.
_MOST_ELEMENTS: Final = 2**28


class Refused(Exception):
    """The server does not answer a request that the load is to consist of, or it cannot be made."""


def ask(host: str, port: int, path: str, message: bytes) -> bytes:
    """One call over a connection of its own; returns the answer's message.

    Raises:
        Unreachable: the server cannot be reached, or does not speak HTTP/2.
        Refused: it answered with an error.
    """
    connection = ClientConnection()
    answers: Sequence[Answer] = ()
    try:
        with contextlib.closing(socket.create_connection((host, port), _PATIENCE_S)) as sock:
            begun = False
            while not answers:
                if connection.greeted and not begun:
                    connection.begin(Request(path, f"{host}:{port}", message))
                    begun = True
                sock.sendall(connection.data_to_send())
                data = sock.recv(_CHUNK)
                if not data:
                    raise ConnectionFailed(connection.ended or "the server closed the connection")
                answers = connection.receive(data)
    except (OSError, ConnectionFailed) as error:
        raise Unreachable(f"{host}:{port}: {error}") from error
    answer = answers[0]
    if answer.status:
        text = connection.texts.get(answer.status, "")
        name = Status(answer.status).name if 0 < answer.status <= max(Status) else str(answer.status)
        raise Refused(f"{name}: {text}" if text else name)
    return bytes(answer.message[5:])


def random_request(
    host: str, port: int, model: str, version: str, shapes: Mapping[str, Sequence[int]], rng: np.random.Generator
) -> bytes:
    """A ModelInferRequest with random values.

    Args:
        host, port: of the server, which is asked for the model's inputs.
        model: its name.
        version: of it; "" for the newest.
        shapes: of inputs, with the batch; an axis that is open is 1 otherwise.
        rng: of the values.

    Raises:
        Unreachable, Refused: see ``ask``; or no such input can be made.
    """
    asked = ModelMetadataRequest(name=model, version=version)
    told = _read(ModelMetadataResponse, ask(host, port, _SERVICE + "ModelMetadata", asked.SerializeToString()))
    if unknown := shapes.keys() - {given.name for given in told.inputs}:
        names = ", ".join(repr(given.name) for given in told.inputs)
        raise Refused(f"model '{model}' has no input {sorted(unknown)[0]!r}; it has {names}")
    request = ModelInferRequest(model_name=model, model_version=version)
    for given in told.inputs:
        shape = list(shapes.get(given.name, [max(axis, 1) if axis < 0 else axis for axis in given.shape]))
        if prod(shape) > _MOST_ELEMENTS:
            raise Refused(f"input '{given.name}' would have {prod(shape)} elements, at most {_MOST_ELEMENTS} are made")
        request.inputs.add(name=given.name, datatype=given.datatype, shape=shape)
        request.raw_input_contents.append(_random(given.datatype, shape, rng))
    return request.SerializeToString()


def _random(datatype: str, shape: Sequence[int], rng: np.random.Generator) -> bytes:
    known = BY_NAME.get(datatype)
    if known is None:
        raise Refused(f"the server has an input of type '{datatype}', of which no values can be made")
    if datatype == "BYTES":
        return encode_bytes_tensor(np.array([b"%d" % at for at in rng.integers(0, 10**6, prod(shape))], object))
    if datatype == "BOOL":
        return rng.integers(0, 2, shape).astype(np.bool_).tobytes()
    if datatype == "BF16":
        return (rng.standard_normal(shape).astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    if known.numpy.kind == "f":
        return rng.standard_normal(shape).astype(known.numpy.newbyteorder("<")).tobytes()
    return rng.integers(0, 100, shape).astype(known.numpy.newbyteorder("<")).tobytes()


class Reference:
    """The answer that later ones to the same request are compared with.

    Args:
        message: a ModelInferResponse.

    Raises:
        Refused: it is none.
    """

    def __init__(self, message: bytes) -> None:
        self._expected = _read(ModelInferResponse, message)

    def difference(self, message: bytes) -> str:
        """How an answer differs, in words; "" if it does not. Sums are taken in another order in a batch, so values of
        floating point may differ a little."""
        try:
            given = _read(ModelInferResponse, message)
        except Refused as error:
            return str(error)
        if len(given.raw_output_contents) != len(self._expected.raw_output_contents):
            return "it has other outputs"
        for output, other, raw, expected in zip(
            given.outputs,
            self._expected.outputs,
            given.raw_output_contents,
            self._expected.raw_output_contents,
            strict=False,
        ):
            if (output.name, output.datatype, list(output.shape)) != (other.name, other.datatype, list(other.shape)):
                return f"output '{other.name}' has another name, type or shape"
            if raw != expected and not _close(output.datatype, raw, expected):
                return f"output '{output.name}' has other values"
        return ""


def _close(datatype: str, raw: bytes, expected: bytes) -> bool:
    known = BY_NAME.get(datatype)
    if known is None or known.numpy.kind != "f" or len(raw) != len(expected):
        return False
    values, others = (np.frombuffer(data, known.numpy).astype(np.float64) for data in (raw, expected))
    scale = float(np.abs(others).max(initial=0.0, where=np.isfinite(others)))
    tolerance = 1e-2 if datatype == "FP16" else 1e-3
    return np.allclose(values, others, rtol=tolerance, atol=tolerance * 0.1 * scale, equal_nan=True)


def _read(kind: type[M], octets: bytes) -> M:
    try:
        return parse(kind, octets)
    except MalformedMessage as error:
        raise Refused(f"the server's answer cannot be read: {error}") from None
