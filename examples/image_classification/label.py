"""Scores to the name of the best one."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """``SCORES``, FP32 [n, classes], to ``LABEL``, BYTES [n, 1], and ``SCORE``, FP32 [n, 1]."""

    def initialize(self, args: dict[str, str]) -> None:
        """Take the names of the classes from the configuration."""
        parameters = json.loads(args["model_config"])["parameters"]
        self.names = np.array(parameters["labels"]["string_value"].split(","), np.object_)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request."""
        responses = []
        for request in requests:
            scores = pb_utils.get_input_tensor_by_name(request, "SCORES").as_numpy()
            best = scores.argmax(axis=1)
            label = pb_utils.Tensor("LABEL", self.names[best].reshape(-1, 1))
            score = pb_utils.Tensor("SCORE", np.take_along_axis(scores, best[:, None], axis=1))
            responses.append(pb_utils.InferenceResponse(output_tensors=[label, score]))
        return responses
