"""scikit-learn's models, saved by skops. No pickle is loaded: types that skops does not know have to be named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import skops.io

from toutates.backends.interface import Array, Backend, Source, Tensor, Tensors
from toutates.system.text import described

__all__ = ["ScikitLearn"]

_NUMBERS = {"i": ("INT64", np.int64), "u": ("INT64", np.int64), "b": ("BOOL", np.bool_), "f": ("FP64", np.float64)}


#: Of the probe when a model is loaded.
_ROWS = 2


class _Call(NamedTuple):
    """What computes an output.

    Attributes:
        method: of the estimator.
        dtype: in which its answer is sent.
        part: number of the array, where the answer is a list of them; else None.
    """

    method: str
    dtype: Any
    part: int | None = None


class ScikitLearn(Backend):
    """An estimator or a pipeline that ``skops.io.dump`` has written.

    One input ``input__0`` of rows of features, FP32 or FP64. A classifier has the outputs ``label`` and, where it has
    ``predict_proba``, ``probabilities``; anything else ``prediction``. A classifier of several outputs has
    ``probabilities_0`` and so on, one for each. What config.pbtxt does not list is not computed.
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
        features = self._features(source.path.name)
        given = source.inputs[0] if len(source.inputs) == 1 else None
        self._input = given.name if given is not None else "input__0"
        datatype = "FP64" if given is not None and given.datatype == "FP64" else "FP32"
        rows = np.zeros((_ROWS, features), np.float64 if datatype == "FP64" else np.float32)
        tensors, self._calls = self._outputs(source.path.name, rows)
        wanted = {tensor.name for tensor in source.outputs}
        if wanted:
            self._calls = {name: call for name, call in self._calls.items() if name in wanted}
        return Tensors([Tensor(self._input, datatype, (-1, features))], tensors)

    def _features(self, filename: str) -> int:
        """How many features a row has.

        Raises:
            ValueError: the estimator has no ``predict``, or is not fitted; with what to do.
        """
        kind = type(self._model).__name__
        if not callable(getattr(self._model, "predict", None)):
            raise ValueError(
                f"the {kind} in '{filename}' has no `predict`; save an estimator that predicts, such as a pipeline "
                "that ends with one"
            )
        features = getattr(self._model, "n_features_in_", None)
        if features is None:
            raise ValueError(f"the {kind} in '{filename}' is not fitted; call its `fit` on an array before it is saved")
        return int(features)

    def _outputs(self, filename: str, rows: Array) -> tuple[list[Tensor], dict[str, _Call]]:
        """The outputs, and what computes each.

        Raises:
            ValueError: the estimator does not answer rows; with its reason.
        """
        classes = getattr(self._model, "classes_", None)
        self._cast: Any = None
        try:
            first = np.asarray(self._ask("predict", rows))
        except Exception:
            # Compiled code may take the floats alone on which the estimator was fitted.
            self._cast = np.float32 if rows.dtype == np.float64 else np.float64
            try:
                first = np.asarray(self._ask("predict", rows))
            except Exception as error:
                kind = type(self._model).__name__
                raise ValueError(
                    f"the {kind} in '{filename}' does not answer a row of {rows.shape[1]} numbers: {described(error)}; "
                    "fit it on an array of numbers before it is saved"
                ) from error
        datatype, dtype = _NUMBERS.get(first.dtype.kind, ("BYTES", np.object_))
        name = "prediction" if classes is None else "label"
        tensors, calls = [Tensor(name, datatype, (-1, *first.shape[1:]))], {name: _Call("predict", dtype)}
        if classes is not None and hasattr(self._model, "predict_proba"):
            found = self._ask("predict_proba", rows)
            # An estimator of several outputs has a list, with an array for each.
            of_each = enumerate(found) if isinstance(found, list) else [(None, found)]
            for index, array in of_each:
                output = "probabilities" if index is None else f"probabilities_{index}"
                tensors.append(Tensor(output, "FP32", (-1, *np.asarray(array).shape[1:])))
                calls[output] = _Call("predict_proba", np.float32, index)
        return tensors, calls

    def _ask(self, method: str, rows: Array) -> Any:
        """What a method answers. The probe and requests ask alike."""
        return getattr(self._model, method)(rows if self._cast is None else rows.astype(self._cast))

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """See ``Backend``."""
        rows = inputs[self._input]
        answers = {method: self._ask(method, rows) for method in {call.method for call in self._calls.values()}}
        return {
            name: np.asarray(answers[call.method] if call.part is None else answers[call.method][call.part]).astype(
                call.dtype, copy=False
            )
            for name, call in self._calls.items()
        }
