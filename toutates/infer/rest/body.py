"""Requests whose body is one BYTES element of a model, and whose answer is another: neither has a form of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from toutates.infer.rest.call import BodyTensors
from toutates.protocol.grpc_service_pb2 import ModelInferRequest
from toutates.protocol.infer_response import WireTensor
from toutates.protocol.rest.request import Target
from toutates.protocol.rest.response import InferResponse
from toutates.protocol.signature import Signature
from toutates.system.errors import ExecutionFailed, InvalidRequest

__all__ = ["body_message", "body_response"]

#: The length before each BYTES element.
_LENGTH_BYTES: Final = 4
#: Shorter contents are copied, so that a small answer that waits does not keep a whole batch.
_COPIED_BYTES: Final = 65_536


def body_message(target: Target, tensors: BodyTensors, signature: Signature) -> ModelInferRequest:
    """The message that such a request would be over gRPC, without raw contents.

    Raises:
        InvalidRequest: the model has not the tensors for it.
    """
    message = ModelInferRequest(model_name=target.model, model_version=target.version)
    shape = [1, 1] if signature.batched else [1]
    for spec in signature.inputs:
        if spec.name in (tensors.body, tensors.head) and spec.datatype.name == "BYTES":
            message.inputs.add(name=spec.name, datatype="BYTES", shape=shape)
        elif not spec.optional:
            raise _refusal(target.model, f"it has an input '{spec.name}'")
    if not any(tensor.name == tensors.body for tensor in message.inputs):
        raise _refusal(target.model, f"it has no BYTES input '{tensors.body}'")
    for output in signature.outputs:
        if output.name in (tensors.result, tensors.result_head) and output.datatype.name == "BYTES":
            message.outputs.add(name=output.name)
    if not any(tensor.name == tensors.result for tensor in message.outputs):
        raise _refusal(target.model, f"it has no BYTES output '{tensors.result}'")
    return message


def _refusal(model: str, problem: str) -> InvalidRequest:
    return InvalidRequest(
        f"model '{model}' does not take a body as it comes: {problem}; ask it by /v2/models/{model}/infer"
    )


def body_response(
    tensors: BodyTensors, outputs: Sequence[WireTensor], raws: Sequence[bytes | memoryview], pause: Any
) -> InferResponse:
    """The contents of ``result_head`` and ``result``, as the two pieces of a response.

    Raises:
        ExecutionFailed: an output has another number of elements than one, or another datatype, or is not there.
    """
    contents: dict[str, bytes | memoryview] = {tensors.result_head: b""}
    for output, raw in zip(outputs, raws, strict=True):
        whole = memoryview(raw)
        if output.datatype != "BYTES":
            raise ExecutionFailed(f"output '{output.name}' is {output.datatype}, and a body is one element of BYTES")
        if int.from_bytes(whole[:_LENGTH_BYTES], "little") != len(whole) - _LENGTH_BYTES:
            raise ExecutionFailed(f"output '{output.name}' has another number of elements than one")
        content = whole[_LENGTH_BYTES:]
        contents[output.name] = content if len(content) > _COPIED_BYTES else bytes(content)
    if tensors.result not in contents:
        raise ExecutionFailed(f"the model has given no output '{tensors.result}'")
    pieces = [contents[tensors.result_head], contents[tensors.result]]
    return InferResponse(b"", pieces, sum(map(len, pieces)))
