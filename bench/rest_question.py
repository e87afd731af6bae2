"""The request of a load over REST, with the tensor as binary data or as JSON, and the right answers."""

from __future__ import annotations

import http.client
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import tritonclient.http as triton

from bench.errors import NoFigure
from bench.models import Model, Rows
from bench.protocols import BINARY

__all__ = ["RestRequest", "ask", "ask_for_rows"]

_LENGTH = "Inference-Header-Content-Length"
_ANSWER_SECONDS = 60.0


class RestRequest:
    """An infer request.

    Args:
        model: to ask.
        rows: its input, [count, *row].
        form: of ``protocols.FORMS``, in which input and output are sent.

    Attributes:
        path, fields, body: of the HTTP request; fields as "Name: value".
    """

    def __init__(self, model: Model, rows: Rows, form: str) -> None:
        self.path = f"/v2/models/{model.name}/infer"
        tensor: dict[str, Any] = {"name": model.input, "shape": rows.shape, "datatype": model.datatype}
        document: dict[str, Any] = {"inputs": [tensor]}
        self.fields: tuple[str, ...]
        if form == BINARY:
            tensor["parameters"] = {"binary_data_size": rows.nbytes}
            document["outputs"] = [{"name": model.output, "parameters": {"binary_data": True}}]
            text = json.dumps(document).encode()
            self.body = text + rows.tobytes()
            self.fields = ("Content-Type: application/octet-stream", f"{_LENGTH}: {len(text)}")
        else:
            # As short as the numbers can be told apart, as clients in JavaScript and Go write them.
            tensor["data"] = [float(str(number)) for number in rows.ravel()]
            self.body = json.dumps(document).encode()
            self.fields = ("Content-Type: application/json",)


def ask(address: str, request: RestRequest, output: str) -> tuple[npt.NDArray[np.float32], int]:
    """Send a request; returns the output, and the bytes of the answer's body.

    Raises:
        NoFigure: there is no such answer.
    """
    connection = http.client.HTTPConnection(address, timeout=_ANSWER_SECONDS)
    try:
        fields = dict(field.split(": ", 1) for field in request.fields)
        connection.request("POST", request.path, request.body, fields)
        answer = connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise NoFigure(f"a sampled request failed with status {answer.status}: {body[:300]!r}")
        length = answer.getheader(_LENGTH)
        result = triton.InferResult.from_response_body(body, header_length=None if length is None else int(length))
        return _output(result, output), len(body)
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        raise NoFigure(f"a sampled request failed: {error!r}") from error
    finally:
        connection.close()


def ask_for_rows(address: str, model: Model, rows: Rows, form: str) -> npt.NDArray[np.float32]:
    """Ask by tritonclient; returns the output.

    Raises:
        NoFigure: there is no such answer.
    """
    tensor = triton.InferInput(model.input, list(rows.shape), model.datatype)
    tensor.set_data_from_numpy(rows, binary_data=form == BINARY)
    wanted = triton.InferRequestedOutput(model.output, binary_data=form == BINARY)
    try:
        with triton.InferenceServerClient(address, network_timeout=_ANSWER_SECONDS) as client:
            return _output(client.infer(model.name, [tensor], outputs=[wanted]), model.output)
    except (triton.InferenceServerException, OSError, ValueError, KeyError) as error:
        raise NoFigure(f"a sampled request failed: {error}") from error


def _output(result: Any, name: str) -> npt.NDArray[np.float32]:
    array: npt.NDArray[np.float32] | None = result.as_numpy(name)
    if array is None:
        raise NoFigure("a sampled answer lacks the output")
    return array
