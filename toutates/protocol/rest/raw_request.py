"""A body without JSON, all of which is the one input of a model: what Triton calls a raw binary request.

It is for models with one input whose shape follows from the size of the body. All outputs are sent as binary data.
"""

from __future__ import annotations

from math import prod
from typing import Final

from toutates.protocol.datatypes import join_strings
from toutates.protocol.grpc_service_pb2 import ModelInferRequest
from toutates.protocol.names import request_prefix
from toutates.protocol.rest.lengths import too_large
from toutates.protocol.rest.parameters import add_forwarded
from toutates.protocol.rest.request import Buffer, OutputForms, Target
from toutates.protocol.signature import Signature
from toutates.system.errors import InvalidRequest

__all__ = ["RAW_OUTPUTS", "read_raw_request"]

#: How the outputs of such a request are sent.
RAW_OUTPUTS: Final = OutputForms({}, default=True)


def read_raw_request(body: Buffer, target: Target, signature: Signature) -> tuple[ModelInferRequest, Buffer]:
    """The message that a body would be over gRPC, without raw contents, and the bytes of its only input.

    Args:
        body: in full.
        target: what it is for.
        signature: of the model.

    Raises:
        InvalidRequest: the model has several inputs, the shape does not follow, or the body is too large.
    """
    if len(body) > target.max_input_bytes:
        raise too_large("Raw input", len(body), target.max_input_bytes)
    inputs = signature.inputs
    if len(inputs) != 1:
        raise _refusal(
            "Raw request must only have 1 input (found 1) to be deduced but got "
            f"{len(inputs)} inputs in '{target.model}' model configuration"
        )
    spec = inputs[0]
    shape = list(spec.shape)
    content = body
    if not spec.datatype.size:
        if shape != [1]:
            raise _refusal(f"For BYTE datatype raw input '{spec.name}', the model must have input shape [1]")
        content = join_strings([body])
    elif shape.count(-1) > 1:
        raise _refusal(
            f"The shape of the raw input '{spec.name}' can not be deduced because there are more than one "
            "variable-sized dimension"
        )
    elif -1 in shape:
        row = prod(size for size in shape if size != -1) * spec.datatype.size
        shape[shape.index(-1)] = len(body) // row if row else 0
    message = ModelInferRequest(model_name=target.model, model_version=target.version)
    message.inputs.add(name=spec.name, datatype=spec.datatype.name, shape=[1, *shape] if signature.batched else shape)
    add_forwarded(target.forwarded, message.parameters)
    return message, content


def _refusal(text: str) -> InvalidRequest:
    return InvalidRequest(request_prefix("") + text)
