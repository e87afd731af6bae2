"""Writing a ModelStreamInferResponse: a ModelInferResponse in an envelope, or an error.

``triton_final_response`` is written in front of the response's other fields, whose order protobuf leaves open. So the
envelope and the parameter are one head, and the response behind it is the one of ModelInfer.
"""

from __future__ import annotations

from typing import Final

from toutates.protocol.grpc_service_pb2 import InferParameter, ModelInferResponse, ModelStreamInferResponse
from toutates.protocol.wire_format import field_head, read_varint

__all__ = ["bare_final", "error_response", "id_field_of", "response_head"]

_RESPONSE_TAG: Final = 2 << 3 | 2
_ID_TAG: Final = 3 << 3 | 2
#: Fields of a request among which its id is looked for.
_MOST_FIELDS: Final = 64


def _parameter(*, final: bool) -> bytes:
    parameters = {"triton_final_response": InferParameter(bool_param=final)}
    return ModelInferResponse(parameters=parameters).SerializeToString()


_PARAMETERS: Final = {final: _parameter(final=final) for final in (False, True)}


def response_head(length: int, *, final: bool) -> bytes:
    """What goes before a serialized ModelInferResponse of ``length`` bytes.

    Args:
        length: of the response, bytes.
        final: whether it is the last one of its request.
    """
    parameter = _PARAMETERS[final]
    return field_head(_RESPONSE_TAG, length + len(parameter)) + parameter


def bare_final(id_field: bytes, model: str, version: str) -> bytes:
    """The response that says nothing but that the last one of a request has gone.

    Args:
        id_field: the request's id with tag and length, or b"".
        model, version: as requested.
    """
    response = id_field + ModelInferResponse(model_name=model, model_version=version).SerializeToString()
    return response_head(len(response), final=True) + response


def error_response(text: str, id_field: bytes, asked: tuple[str, str] | None = None, *, final: bool = True) -> bytes:
    """An error in place of a response.

    Args:
        text: says what is wrong.
        id_field: the request's id with tag and length, or b"".
        asked: model and version as requested, of a request that was accepted; None of one that was refused, whose
            error has the id alone.
        final: whether nothing follows for the request.
    """
    message = ModelStreamInferResponse(error_message=text).SerializeToString()
    if asked is None:
        return message + field_head(_RESPONSE_TAG, len(id_field)) + id_field
    response = id_field + ModelInferResponse(model_name=asked[0], model_version=asked[1]).SerializeToString()
    return message + response_head(len(response), final=final) + response


def id_field_of(buffer: bytes, at: int, end: int) -> bytes:
    """The id of the ModelInferRequest ``buffer[at:end]`` with tag and length; b"" if it has none.

    It is looked for among the first fields, which it is in whoever wrote the request. For answers to requests that are
    refused, which protobuf may not have parsed.
    """
    try:
        for _ in range(_MOST_FIELDS):
            if at >= end:
                break
            start = at
            tag, at = read_varint(buffer, at)
            kind = tag & 7
            if kind == 2:
                length, at = read_varint(buffer, at)
                at += length
                if tag == _ID_TAG and at <= end:
                    field = bytes(buffer[start:at])
                    return field if _is_text(field[-length:] if length else b"") else b""
            elif kind == 0:
                _, at = read_varint(buffer, at)
            elif kind in (1, 5):
                at += 8 if kind == 1 else 4
            else:
                break
    except IndexError:
        pass
    return b""


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
