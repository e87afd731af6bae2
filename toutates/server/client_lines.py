"""Code that asks for a model, to copy: Python with tritonclient, and curl, both for the model's own inputs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from math import prod
from typing import Final
from urllib.parse import quote

from toutates.protocol.datatypes import Datatype
from toutates.protocol.signature import Signature, TensorSpec

__all__ = ["client_lines", "client_records"]

#: Elements of a tensor that are written out; curl's body is made by a program where one has more.
_MOST_WRITTEN: Final = 64
#: Sizes of axes that the graph leaves open: of a picture's height and width, and of any other.
_PICTURE: Final = 224
_OPEN: Final = 1
_CHANNELS: Final = (1, 3, 4)
#: What listens on every address is on this one too.
_ANY: Final = ("0.0.0.0", "::")


def client_lines(
    model: str,
    signature: Signature,
    grpc: tuple[str, int],
    rest: tuple[str, int],
    *,
    grpc_tls: bool = False,
    rest_tls: bool = False,
) -> str:
    """The code, with what stands before each part.

    Args:
        model: its name.
        signature: of the version that is asked for where a request names none.
        grpc, rest: host and port, as the server listens.
        grpc_tls, rest_tls: whether they speak TLS.
    """
    python = _python(model, signature, _host(grpc), tls=grpc_tls)
    curl = _curl(model, signature, _host(rest), tls=rest_tls)
    what = _described(signature)
    return "\n".join(
        [
            "",
            f"Ask for {model!a} from Python (pip install 'tritonclient[grpc]'){what}:",
            "",
            *(f"    {line}".rstrip() for line in python),
            "",
            "or by curl:",
            "",
            f"    {curl}",
            "",
        ]
    )


def client_records(
    model: str,
    signature: Signature,
    grpc: tuple[str, int],
    rest: tuple[str, int],
    *,
    grpc_tls: bool = False,
    rest_tls: bool = False,
) -> list[dict[str, object]]:
    """The same as a record for the log."""
    return [
        {
            "event": "code of a client",
            "model": model,
            "python": "\n".join(_python(model, signature, _host(grpc), tls=grpc_tls)),
            "curl": _curl(model, signature, _host(rest), tls=rest_tls),
        }
    ]


def _python(model: str, signature: Signature, address: str, *, tls: bool) -> list[str]:
    secure = ", ssl=True" if tls else ""
    lines = [
        "import numpy as np",
        "import tritonclient.grpc as triton",
        "",
        f"client = triton.InferenceServerClient({address!a}{secure})",
        "inputs = []",
    ]
    for tensor in _inputs(signature):
        shape = _shape(signature, tensor)
        lines += [
            f"inputs.append(triton.InferInput({tensor.name!a}, {shape}, {tensor.datatype.name!a}))",
            f"inputs[-1].set_data_from_numpy({_zeros(tensor.datatype, shape)})",
        ]
    lines.append(f"result = client.infer({model!a}, inputs)")
    lines += [f"print(result.as_numpy({tensor.name!a}))" for tensor in signature.outputs]
    return lines


def _zeros(datatype: Datatype, shape: Sequence[int]) -> str:
    if datatype.name == "BYTES":
        return f"np.full({shape}, b'text', np.object_)"
    name = "float32" if datatype.name == "BF16" else datatype.numpy.name  # which tritonclient cuts to BF16
    return f"np.zeros({shape}, {'bool' if name == 'bool' else f'np.{name}'})"


def _curl(model: str, signature: Signature, address: str, *, tls: bool) -> str:
    url = shlex.quote(f"{'https' if tls else 'http'}://{address}/v2/models/{quote(model, safe='')}/infer")
    tensors = [(tensor, _shape(signature, tensor)) for tensor in _inputs(signature)]
    if all(prod(shape) <= _MOST_WRITTEN for _, shape in tensors):
        body = [
            _json_head(tensor, shape) | {"data": [_zero(tensor.datatype)] * prod(shape)} for tensor, shape in tensors
        ]
        return f"curl -d {shlex.quote(json.dumps({'inputs': body}))} {url}"
    # Python writes names by repr; what is in the quotes of JSON could not be multiplied.
    parts = [
        f"{{**{_json_head(tensor, shape)!a}, 'data': [{_zero(tensor.datatype)!a}] * {prod(shape)}}}"
        for tensor, shape in tensors
    ]
    program = f"import json; print(json.dumps({{'inputs': [{', '.join(parts)}]}}))"
    return f"python3 -c {shlex.quote(program)} | curl --data-binary @- {url}"


def _json_head(tensor: TensorSpec, shape: Sequence[int]) -> dict[str, object]:
    return {"name": tensor.name, "datatype": tensor.datatype.name, "shape": list(shape)}


def _zero(datatype: Datatype) -> object:
    if datatype.name == "BYTES":
        return "text"
    return False if datatype.name == "BOOL" else 0


def _inputs(signature: Signature) -> list[TensorSpec]:
    return [tensor for tensor in signature.inputs if not tensor.optional]


def _shape(signature: Signature, tensor: TensorSpec) -> list[int]:
    """A shape that the tensor may have: of one row, and with some size for each axis that is open."""
    shape = signature.wire_shape(tensor)
    # [rows, channels, height, width], or with the channels last
    is_picture = len(shape) == 4 and (shape[1] in _CHANNELS or shape[3] in _CHANNELS)
    return [(_PICTURE if is_picture and axis else _OPEN) if size == -1 else size for axis, size in enumerate(shape)]


def _described(signature: Signature) -> str:
    """What the inputs of the code are."""
    kinds = {tensor.datatype.name == "BYTES" for tensor in _inputs(signature)}
    if not kinds:
        return "; it needs no inputs"
    values = "zeros and texts" if len(kinds) == 2 else "texts" if kinds == {True} else "zeros"
    opened = ", of axes that the model leaves open one size of many" if _has_open_axis(signature) else ""
    return f"; the inputs are {values}{opened}"


def _has_open_axis(signature: Signature) -> bool:
    return any(-1 in tensor.shape for tensor in _inputs(signature))


def _host(address: tuple[str, int]) -> str:
    host, port = address
    host = "localhost" if host in _ANY else host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
