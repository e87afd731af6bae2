"""scikit-learn's models, saved by skops. No pickle is loaded: types that skops does not know have to be named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import skops.io

from toutates.backends.interface import Array, Backend, Source, Tensor, Tensors
from toutates.system.text import described

__all__ = ["ScikitLearn"]

_NUMBERS = {"i": ("INT64", np.int64), "u": ("INT64", np.int64), "b": ("BOOL", np.bool_), "f": ("FP64", np.float64)}


class ScikitLearn(Backend):
    """An estimator or a pipeline that ``skops.io.dump`` has written.

    One input ``input__0`` of rows of features, FP32 or FP64. A classifier has the outputs ``label`` and, where it has
    ``predict_proba``, ``probabilities``; anything else ``prediction``. What config.pbtxt does not list is not computed.
    """

    interface = 1
    filenames = ("model.skops",)

    def load(self, source: Source) -> Tensors:
        """See ``Backend``."""
        trusted = [name.strip() for name in source.text("trusted_types").split(",") if name.strip()]
        try:
            unknown = sorted(set(skops.io.get_untrusted_types(file=source.path)) - set(trusted))
        except Exception as error:
            raise ValueError(f"skops cannot read '{source.path.name}': {described(error)}") from error
        if unknown:
            raise ValueError(
                f"'{source.path.name}' holds types that skops does not trust; if you do, name them in the parameter "
                f"trusted_types: {', '.join(unknown)}"
            )
        try:
            self._model: Any = skops.io.load(source.path, trusted=trusted)
        except Exception as error:
            raise ValueError(f"skops cannot load '{source.path.name}': {described(error)}") from error
        given = source.inputs[0] if len(source.inputs) == 1 else None
        self._input = given.name if given is not None else "input__0"
        datatype = "FP64" if given is not None and given.datatype == "FP64" else "FP32"
        features = int(self._model.n_features_in_)
        tensors, self._calls = self._outputs(np.zeros((1, features)))
        wanted = {tensor.name for tensor in source.outputs}
        if wanted:
            self._calls = {name: call for name, call in self._calls.items() if name in wanted}
        return Tensors([Tensor(self._input, datatype, (-1, features))], tensors)

    def _outputs(self, row: Array) -> tuple[list[Tensor], dict[str, tuple[str, Any]]]:
        """The outputs, and the method and NumPy type of each."""
        classes = getattr(self._model, "classes_", None)
        first = np.asarray(self._model.predict(row))
        datatype, dtype = _NUMBERS.get(first.dtype.kind, ("BYTES", np.object_))
        name = "prediction" if classes is None else "label"
        tensors, calls = [Tensor(name, datatype, (-1, *first.shape[1:]))], {name: ("predict", dtype)}
        if classes is not None and hasattr(self._model, "predict_proba"):
            shape = np.asarray(self._model.predict_proba(row)).shape[1:]
            tensors.append(Tensor("probabilities", "FP32", (-1, *shape)))
            calls["probabilities"] = ("predict_proba", np.float32)
        return tensors, calls

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """See ``Backend``."""
        rows = inputs[self._input]
        return {
            name: np.asarray(getattr(self._model, method)(rows)).astype(dtype, copy=False)
            for name, (method, dtype) in self._calls.items()
        }
