"""MLServer's runtime for the benchmark's models: ONNX Runtime with one thread.

MLServer has none of its own for ONNX. It hands a request's tensors over as lists of numbers, whatever form they came
in, and takes lists back.
"""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
from mlserver import MLModel
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput

_DTYPES = {"FP32": np.float32, "INT32": np.int32}


class OnnxModel(MLModel):  # type: ignore[misc]  # MLServer is not installed where types are checked
    """The model at ``parameters.uri``, with FP32 outputs."""

    async def load(self) -> bool:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self._session = ort.InferenceSession(self.settings.parameters.uri, options, providers=["CPUExecutionProvider"])
        self._outputs = [output.name for output in self._session.get_outputs()]
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        feed = {
            tensor.name: np.array(tensor.data.root, dtype=_DTYPES[tensor.datatype]).reshape(tensor.shape)
            for tensor in payload.inputs
        }
        arrays = self._session.run(None, feed)
        outputs = [
            ResponseOutput(name=name, shape=list(array.shape), datatype="FP32", data=array.ravel().tolist())
            for name, array in zip(self._outputs, arrays, strict=True)
        ]
        return InferenceResponse(model_name=self.name, model_version="1", outputs=outputs)
