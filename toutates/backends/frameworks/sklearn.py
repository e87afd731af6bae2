"""scikit-learn's models, saved by skops. No pickle is loaded: types that skops does not know have to be named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import skops.io
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from toutates.backends.frameworks.library_warnings import LibraryWarnings
from toutates.backends.frameworks.sklearn_columns import columns_of, results_of
from toutates.backends.interface import Array, Backend, InvalidRequest, Source, Tensor, Tensors
from toutates.system.text import described, one_line

__all__ = ["ScikitLearn"]

_NUMBERS = {"i": ("INT64", np.int64), "u": ("INT64", np.int64), "b": ("BOOL", np.bool_), "f": ("FP64", np.float64)}


#: Of the probe when a model is loaded.
_ROWS = 2
_MAX_SAID = 300


class _Call(NamedTuple):
    """What computes an output.

    Attributes:
        method: of the estimator.
        dtype: in which its answer is sent.
        part: number of the array, where the answer is a list of them; else None.
        columns: whether the output has columns, which an answer without gets.
    """

    method: str
    dtype: Any
    part: int | None = None
    columns: bool = False


class ScikitLearn(Backend):
    """An estimator or a pipeline that ``skops.io.dump`` has written.

    One input ``input__0`` of rows of features, FP32 or FP64, or an input for each named column where some of these are
    texts (``sklearn_columns``). A classifier has the outputs ``label`` and, where it has ``predict_proba``,
    ``probabilities``; anything else ``prediction``. A classifier of several outputs has ``probabilities_0`` and so on,
    one for each. What config.pbtxt does not list is not computed.
    """

    interface = 1
    filenames = ("model.skops",)

    def load(self, source: Source) -> Tensors:
        """See ``Backend``."""
        trusted = [name.strip() for name in source.text("trusted_types").split(",") if name.strip()]
        self._warnings = LibraryWarnings(source.model)
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
            with self._warnings:
                self._model: Any = skops.io.load(source.path, trusted=trusted)
        except Exception as error:
            raise ValueError(f"skops cannot load '{source.path.name}': {described(error)}") from error
        self._check_fitted(source.path.name)
        self._columns = columns_of(self._model, source)
        self._cast: Any = None
        # What is tried here is no request: its warnings are nobody's.
        with LibraryWarnings(source.model, is_silent=True):
            tensors, self._calls = self._outputs(source)
        wanted = {tensor.name for tensor in source.outputs}
        if wanted:
            self._calls = {name: call for name, call in self._calls.items() if name in wanted}
        return Tensors(self._columns.inputs, tensors)

    def _check_fitted(self, filename: str) -> None:
        """
        Raises:
            ValueError: the estimator has no ``predict``, or is not fitted; with what to do.
        """
        kind = type(self._model).__name__
        if not callable(getattr(self._model, "predict", None)):
            raise ValueError(
                f"the {kind} in '{filename}' has no `predict`; save an estimator that predicts, such as a pipeline "
                "that ends with one"
            )
        try:
            check_is_fitted(self._model)
        except NotFittedError:
            raise ValueError(
                f"the {kind} in '{filename}' is not fitted; call its `fit` on an array before it is saved"
            ) from None

    def _outputs(self, source: Source) -> tuple[list[Tensor], dict[str, _Call]]:
        """The outputs, and what computes each.

        They are what some rows give. Where these cannot be computed, which says nothing of others, they are what the
        estimator says of itself, then what the configuration declares.
        """
        rows = self._columns.rows(self._columns.zeros(_ROWS))
        try:
            first = np.asarray(self._ask("predict", rows))
        except Exception:
            # Compiled code may take the floats alone on which the estimator was fitted.
            found = self._columns.other_floats(rows)
            if found is None:
                return self._declared(source)
            self._cast = found.dtype
            try:
                first = np.asarray(self._ask("predict", rows))
            except Exception:
                self._cast = None
                return self._declared(source)
        classes = getattr(self._model, "classes_", None)
        datatype, dtype = _NUMBERS.get(first.dtype.kind, ("BYTES", np.object_))
        name = "prediction" if classes is None else "label"
        tensors, calls = [Tensor(name, datatype, (-1, *first.shape[1:]))], {name: _Call("predict", dtype)}
        if classes is not None and hasattr(self._model, "predict_proba"):
            try:
                found = self._ask("predict_proba", rows)
            except Exception:
                return self._declared(source)
            # An estimator of several outputs has a list, with an array for each.
            of_each = enumerate(found) if isinstance(found, list) else [(None, found)]
            for index, array in of_each:
                output = "probabilities" if index is None else f"probabilities_{index}"
                tensors.append(Tensor(output, "FP32", (-1, *np.asarray(array).shape[1:])))
                calls[output] = _Call("predict_proba", np.float32, index)
        return tensors, calls

    def _declared(self, source: Source) -> tuple[list[Tensor], dict[str, _Call]]:
        """The outputs of an estimator that does not answer zeros: by its attributes, or by the configuration."""
        classes = getattr(self._model, "classes_", None)
        if classes is None:
            given = next((tensor for tensor in source.outputs if tensor.name == "prediction"), None)
            shape: tuple[int, ...] = (-1, -1)
            columns = results_of(self._model)
            if columns is not None:
                shape = (-1, *columns)
            elif given is not None:
                shape = tuple(given.shape)
            datatype = given.datatype if given is not None else "FP64"
            dtype: Any = np.object_ if datatype == "BYTES" else np.dtype(datatype.lower().replace("fp", "float"))
            return [Tensor("prediction", datatype, shape)], {
                "prediction": _Call("predict", dtype, columns=len(shape) > 1)
            }
        of_each = classes if isinstance(classes, list) else [classes]
        datatype, dtype = _NUMBERS.get(np.asarray(of_each[0]).dtype.kind, ("BYTES", np.object_))
        many = isinstance(classes, list)
        tensors = [Tensor("label", datatype, (-1, len(of_each)) if many else (-1,))]
        calls = {"label": _Call("predict", dtype)}
        if hasattr(self._model, "predict_proba"):
            for index, own in enumerate(of_each):
                output = f"probabilities_{index}" if many else "probabilities"
                tensors.append(Tensor(output, "FP32", (-1, len(own))))
                calls[output] = _Call("predict_proba", np.float32, index if many else None)
        return tensors, calls

    def _ask(self, method: str, rows: Any) -> Any:
        """What a method answers. The probe and requests ask alike."""
        return getattr(self._model, method)(rows if self._cast is None else rows.astype(self._cast))

    def run(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """See ``Backend``."""
        rows = self._columns.rows(inputs)
        with self._warnings:
            try:
                answers = {method: self._ask(method, rows) for method in {call.method for call in self._calls.values()}}
            except ValueError as error:
                # Of rows that it cannot take, such as those with NaN or with a category that it does not know.
                raise InvalidRequest(f"{self._columns.problem(inputs)}{one_line(error, _MAX_SAID)}") from error
        return {name: _sent(answers[call.method], call) for name, call in self._calls.items()}


def _sent(answer: Any, call: _Call) -> Array:
    array = np.asarray(answer if call.part is None else answer[call.part])
    if call.columns and array.ndim == 1:
        array = array[:, None]
    return array.astype(call.dtype, copy=False)
