"""Triton's generate extension: one flat JSON object in, one or several out.

A member of the request that has the name of an input is that input, a scalar or a flat array. Any other is a parameter
of the request. The model says what datatype and shape an input has. Answers have a member for each output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

from toutates.protocol.datatypes import BY_NAME
from toutates.protocol.grpc_service_pb2 import ModelInferRequest
from toutates.protocol.infer_response import WireTensor
from toutates.protocol.names import request_prefix
from toutates.protocol.rest.arrays import BeyondRange, pack_elements
from toutates.protocol.rest.document import Members, as_string, parse_document, read_member
from toutates.protocol.rest.lengths import check_json_size
from toutates.protocol.rest.parameters import is_known, read_any
from toutates.protocol.rest.request import Buffer, Target
from toutates.protocol.rest.values import ValueWriter
from toutates.protocol.signature import Signature, TensorSpec
from toutates.system.errors import InvalidRequest, MalformedMessage, RequestError
from toutates.system.json_text import encode_json

__all__ = ["read_generate_request", "server_sent_event", "write_generate_response"]

_NESTED: Final = "parameters"


class _Object(list[tuple[str, Any]]):
    """An object, with members of the same name."""


def read_generate_request(body: bytes, target: Target, signature: Signature) -> tuple[ModelInferRequest, list[bytes]]:
    """The message that a body would be over gRPC, without raw contents, and the bytes of its inputs.

    Args:
        body: in full.
        target: what it is for. Header fields are not forwarded here.
        signature: of the model.

    Raises:
        RequestError: it cannot be used, in Triton's words.
    """
    check_json_size(len(body), target.max_input_bytes)
    members = parse_document(body, make_object=_Object)
    if not isinstance(members, _Object):
        raise MalformedMessage("attempt to get members for non-object")
    reading = _Reading(target, signature, len(body))
    reading.read(members)
    return reading.message, reading.contents


class _Reading:
    def __init__(self, target: Target, signature: Signature, size: int) -> None:
        self.message = ModelInferRequest(model_name=target.model, model_version=target.version)
        self.contents: list[bytes] = []
        self._target = target
        self._signature = signature
        self._size = size
        self._specs = {spec.name: spec for spec in signature.inputs}

    def read(self, members: Members) -> None:
        for key, value in members:
            if key == "id":
                self.message.id = read_member({key: value}, key, as_string)
        for key, value in members:
            if key == _NESTED:
                self._read_nested(value)
            elif key != "id":
                self._read(key, value)

    def _read_nested(self, value: Any) -> None:
        if _NESTED in self._specs:
            raise InvalidRequest(f"Keyword '{_NESTED}' for nested schema also given as input tensor name")
        if not isinstance(value, _Object):
            text = "attempt to access JSON non-object as object"
            raise MalformedMessage(f"Expected JSON object for keyword: '{_NESTED}': {text}")
        for key, nested in value:
            try:
                self._read(key, nested)
            except RequestError as error:
                raise type(error)(f"Converting keyword: '{_NESTED}': {error}") from None

    def _read(self, key: str, value: Any) -> None:
        spec = self._specs.get(key)
        if spec is not None:
            self._read_input(spec, value)
        elif is_known(key):  # which has no effect here, whatever it is
            return
        else:
            read_any(key, value, self.message.parameters)

    def _read_input(self, spec: TensorSpec, value: Any) -> None:
        message = self.message
        if any(tensor.name == spec.name for tensor in message.inputs):
            raise InvalidRequest(f"{request_prefix(message.id)}input '{spec.name}' already exists in request")
        elements = value if isinstance(value, list) and not isinstance(value, _Object) else [value]
        try:
            content = pack_elements(elements, spec.datatype)
        except BeyondRange as error:
            raise InvalidRequest(f"input '{spec.name}': {error}") from None
        most = self._target.max_input_bytes
        if len(content) > most:
            raise InvalidRequest(
                f"request size of {self._size} bytes with input '{spec.name}' of size {len(content)} bytes exceeds the "
                f"maximum allowed input size of {most}. Use --http-max-input-size to increase the limit."
            )
        shape = _shape_of(len(elements), self._signature.wire_shape(spec))
        if shape is None:
            raise InvalidRequest(f"The schema can not convert input '{spec.name}' to tensor with proper shape")
        message.inputs.add(name=spec.name, datatype=spec.datatype.name, shape=shape)
        self.contents.append(content)


def _shape_of(count: int, shape: Sequence[int]) -> list[int] | None:
    """The shape of so many elements: the innermost open dimension takes what the fixed ones leave, the others are 1."""
    fixed = prod(size for size in shape if size != -1)
    if -1 not in shape:
        return list(shape) if fixed == count else None
    if not fixed or count % fixed:
        return None
    innermost = len(shape) - 1 - list(reversed(shape)).index(-1)
    return [count // fixed if at == innermost else 1 if size == -1 else size for at, size in enumerate(shape)]


def write_generate_response(
    model: str,
    version: str,
    identifier: str,
    tensors: Sequence[WireTensor],
    contents: Sequence[Buffer],
    parameters: Mapping[str, bool | int | float | str] | None = None,
) -> bytes:
    """One response as JSON; its members are sorted by their names.

    Args:
        model: name.
        version: the version that ran, decimal.
        identifier: id of the request; "" for none.
        tensors: the outputs. One with a single element is a scalar.
        contents: of each output, as raw contents.
        parameters: of the response, which a model may set.

    Raises:
        InvalidRequest: an output cannot be written as JSON.
    """
    members = {key: encode_json(value) for key, value in (parameters or {}).items()}
    members |= {"model_name": encode_json(model), "model_version": encode_json(version)}
    if identifier:
        members["id"] = encode_json(identifier)
    for tensor, content in zip(tensors, contents, strict=True):
        text = ValueWriter(tensor.name, BY_NAME[tensor.datatype]).write(content)
        members[tensor.name] = text[1:-1] if prod(tensor.shape) == 1 else text
    return b"{%b}" % b",".join([b"%b:%b" % (encode_json(key), members[key]) for key in sorted(members)])


def server_sent_event(document: bytes) -> bytes:
    """A response, or an error, as ``generate_stream`` sends it."""
    return b"data: %b\n\n" % document
