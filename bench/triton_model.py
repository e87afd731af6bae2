"""The model in Triton's Python backend: ONNX Runtime with one thread, all requests of a batch in one run.

Copied beside each model.onnx of Triton's repository, as model.py. One input and one output, as all models of the
benchmark have.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as backend


class TritonPythonModel:
    """See Triton's documentation of its Python backend for who calls what."""

    def initialize(self, args: dict[str, str]) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        path = os.path.join(args["model_repository"], args["model_version"], "model.onnx")
        self._session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name
        self._output = self._session.get_outputs()[0].name

    def execute(self, requests: list[Any]) -> list[Any]:
        rows = [backend.get_input_tensor_by_name(request, self._input).as_numpy() for request in requests]
        scores = self._session.run(None, {self._input: rows[0] if len(rows) == 1 else np.concatenate(rows)})[0]
        responses = []
        start = 0
        for given in rows:
            end = start + len(given)
            responses.append(backend.InferenceResponse([backend.Tensor(self._output, scores[start:end])]))
            start = end
        return responses
