"""Runs a TorchServe handler as a Python model. Copied here by ``toutates import``, with the package ``ts`` beside it.

The model's tensors are BYTES of one element per request: ``body`` as it came, ``head`` with the header fields as a JSON
object; ``result`` is what the handler returned, ``result_head`` has its status and header fields. A request whose head
is empty gets an error as an error; any other one gets it as a status.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from ts.service import Result, Service  # noqa: E402


class TritonPythonModel:
    """The handler of the archive beside this file."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the handler; what it raises is why the model cannot be served."""
        gpu = int(args["model_instance_device_id"]) if args["model_instance_kind"] == "GPU" else None
        self.service = Service(HERE, gpu, json.loads(args["model_config"])["max_batch_size"])

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer a batch: the rows of all requests are one list for the handler."""
        rows: list[tuple[bytes, bytes]] = []
        counts: list[int] = []
        for request in requests:
            bodies, heads = (_elements(request, name) for name in ("body", "head"))
            rows += zip(bodies, heads or [b""] * len(bodies), strict=True)
            counts.append(len(bodies))
        results = self.service.answer(rows)
        responses = []
        at = 0
        for count in counts:
            responses.append(_response(results[at : at + count], rows[at : at + count]))
            at += count
        return responses

    def finalize(self) -> None:
        """Let the handler go."""
        del self.service


def _elements(request: Any, name: str) -> list[bytes]:
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return [] if tensor is None else [bytes(element) for element in tensor.as_numpy().ravel()]


def _response(results: list[Result], rows: list[tuple[bytes, bytes]]) -> Any:
    for result, (_, head) in zip(results, rows, strict=True):
        if result.failed and not head:
            text = result.body.decode(errors="replace")
            codes = pb_utils.TritonError
            code = codes.INVALID_ARG if result.status < 500 else codes.INTERNAL
            return pb_utils.InferenceResponse(output_tensors=[], error=codes(text, code))
    columns = ("result", [result.body for result in results]), ("result_head", [result.head() for result in results])
    return pb_utils.InferenceResponse(
        output_tensors=[
            pb_utils.Tensor(name, np.array(values, dtype=np.object_).reshape(-1, 1)) for name, values in columns
        ]
    )
